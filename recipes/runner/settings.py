"""The settings of a run: its recipe's YAML, what is laid over it, and fairseq's flags that say the same."""

import difflib
import os
import re
import shlex
import sys
from argparse import Namespace
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

import collab_fairseq
from fairseq_modern.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
#: what --user-dir names: `collab user-dir`
USER_DIR = os.path.dirname(os.path.abspath(collab_fairseq.__file__))
#: what start.sh has found; its name stays as it was given
PYTHON = os.environ.get("PYTHON") or sys.executable

#: sections of fairseq whose settings are flags of fairseq-train, in the order of its command line
TRAINING = (
    "common", "task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "checkpoint",
    "distributed_training",
)  # fmt: skip
#: what does not make a run another: where it is, how it is started and what it is told meanwhile
MACHINE = {
    "common": {"user_dir", "cpu", "fp16", "bf16", "log_format", "log_interval", "tensorboard_logdir", "wandb_project"},
    "task": {"data"}, "dataset": {"max_tokens", "num_workers"}, "optimization": {"update_freq"},
    "checkpoint": {"save_dir"},
}  # fmt: skip
#: what --fast lays over
FAST = "criterion._name=label_smoothed_cross_entropy_chunked optimizer._name=fused_adam model.fast_dropout=true"


class RecipeError(UserError):
    """What was asked for cannot be; one sentence says why, and what to do."""


@dataclass
class Recipe:
    """The section `recipe` of a YAML: what fairseq's own sections do not say. Paths are those of the repository."""

    about: str = ""
    data: str = ""  # where the prepared corpus is, its data-bin within
    prepare: str = ""  # the script that makes it, and its option that names the corpus as downloaded
    source_option: str = "--source"
    tests: Optional[Dict[str, Optional[str]]] = field(default_factory=dict)  # split of the data-bin → test set
    valid_tests: Optional[Dict[str, Optional[str]]] = field(default_factory=dict)  # the same for --valid
    sacrebleu_sets: Optional[Dict[str, str]] = field(default_factory=dict)  # test set → sacreBLEU's, with references
    reference: Optional[str] = None  # raw references in place of the data's
    blind: Optional[List[str]] = field(default_factory=list)  # NAME of sources without references: NAME.en.gz
    blind_sources: Optional[str] = None  # the folder of these
    batch_tokens: Optional[int] = None  # per update; else max_tokens × update_freq × distributed_world_size
    training_module: Optional[str] = None  # folder for fairseq-train's --user-dir; it imports collab_fairseq.models
    device: str = "auto"
    gpus: Optional[int] = None  # per node, or processes on a CPU; else all GPUs
    precision: str = "auto"
    cpu_precision: str = "bf16"  # what `auto` means on a CPU; bf16: where it has units for that, else fp32
    average: int = 5  # of the last checkpoints
    stages: int = 1  # each of which is averaged, translated, scored and recorded
    decoding_tokens: int = 4000  # tokens in a batch of fairseq-generate
    variants: Dict[str, str] = field(default_factory=dict)  # name → settings as on the command line
    stock: Optional[Dict[str, Any]] = None  # what --stock lays over, for fairseq's own transformer
    runs: List[str] = field(default_factory=list)  # HEADS:KEY_DIM[:VARIANT] of a sweep
    root: str = str(ROOT)


def read(path: Path) -> DictConfig:
    """A YAML, laid over those that its `defaults` name, as Hydra reads it."""
    try:
        own = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise RecipeError(f"there is no file {path}") from error
    except (UnicodeDecodeError, YAMLError) as error:
        raise RecipeError(f"{path} is no YAML: {error}") from error
    if not isinstance(own, DictConfig):
        raise RecipeError(f"{path} must hold sections of settings, got a list")
    layers = []
    for name in own.pop("defaults", ["_self_"]):
        layers.append(own if name == "_self_" else read(path.parent / f"{name.partition('@')[0]}.yaml"))
    return OmegaConf.merge(*layers)  # type: ignore[return-value]


def load(recipe: str, config: Optional[str] = None) -> DictConfig:
    """The YAML of a recipe, with that of `config` laid over it: a file, or the name of one in the recipe's folder."""
    layers = [OmegaConf.create({"recipe": asdict(Recipe())}), read(ROOT / "recipes" / recipe / f"{recipe}.yaml")]
    if config:
        beside = ROOT / "recipes" / recipe / f"{config}.yaml"
        if config.endswith(".sh"):
            raise RecipeError(f"--config {config}: settings are YAML now, see recipes/{recipe}")
        layers.append(read(beside if beside.is_file() else Path(config)))
    cfg = OmegaConf.merge(*layers)
    cfg.pop("hydra", None)  # where fairseq-hydra-train has its runs
    cfg.checkpoint.save_dir = MISSING  # --output
    return cfg  # type: ignore[return-value]


def variant(cfg: DictConfig, name: str) -> List[str]:
    """The settings of a variant: of one name, or of several joined by _, each laid over those before."""
    given, rest, found = cfg.recipe.variants, name, []
    while rest:
        first = next((n for n in sorted(given, key=len, reverse=True) if f"{rest}_".startswith(f"{n}_")), None)
        if first is None:
            names = ", ".join(sorted(given)) or "none"
            raise RecipeError(f"expected a variant of this recipe ({names}), or some joined by _, got '{name}'")
        found += shlex.split(given[first])
        rest = rest[len(first) + 1 :]
    return found


def lay_over(cfg: DictConfig, words: List[str]) -> DictConfig:
    """The settings with `key=value` words over them."""
    for word in words:
        if not re.match(r"\w+(\.\w+)+=", word):
            raise RecipeError(f"expected a setting such as optimization.lr=[0.001], got '{word}'")
    try:
        return OmegaConf.merge(cfg, OmegaConf.from_dotlist(words))  # type: ignore[return-value]
    except (OmegaConfBaseException, YAMLError) as error:
        raise RecipeError(f"{' '.join(words)}: {str(error).splitlines()[0]}") from error


def check(cfg: DictConfig) -> None:
    """See that every name is one of fairseq's, of the model's or of a recipe, and every value of its type."""
    schemas = _schemas(cfg)
    for section in cfg:
        if section not in schemas:
            raise RecipeError(f"{section} is no section of settings; the nearest is {_nearest(str(section), schemas)}")
        try:
            OmegaConf.merge(schemas[section], cfg[section])
        except ConfigKeyError as error:
            key, names = f"{section}.{error.full_key}", [about.name for about in fields(error.object_type)]
            nearest = f"{key.rpartition('.')[0]}.{_nearest(str(error.key), names)}"
            raise RecipeError(f"{key} is no setting; the nearest is {nearest}") from error
        except OmegaConfBaseException as error:
            raise RecipeError(f"{section}.{error.full_key}: {str(error).splitlines()[0]}") from error


def _nearest(name: str, names: Any) -> str:
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0)), "")


def _schemas(cfg: DictConfig) -> Dict[Any, Any]:
    """Section → the dataclass that has its settings."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models.transformer import TransformerConfig
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY
    from fairseq.utils import import_user_module

    from collab_fairseq.models.config import TransformerCollabConfig

    import_user_module(Namespace(user_dir=USER_DIR))
    found: Dict[Any, Any] = {section: about.type for section, about in FairseqConfig.__dataclass_fields__.items()}
    found["recipe"] = Recipe
    found["model"] = TransformerConfig if cfg.model._name == "transformer" else TransformerCollabConfig
    registries = {"task": TASK_DATACLASS_REGISTRY, **{k: v["dataclass_registry"] for k, v in REGISTRIES.items()}}
    for section, registry in registries.items():
        name = OmegaConf.select(cfg, f"{section}._name")
        if section in cfg and name not in registry:
            nearest = _nearest(str(name), registry)
            raise RecipeError(f"{section}._name={name}: there is no such {section}; the nearest is {nearest}")
        found[section] = registry.get(name)
    return found


def _leaves(section: DictConfig, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    for key in section:
        value = None if OmegaConf.is_missing(section, key) else section[key]
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_container(value) if OmegaConf.is_list(value) else value


def flags(cfg: DictConfig, *sections: str) -> List[str]:
    """The settings of sections as words of a command line of fairseq's, but for the data, which have no flag."""
    words: List[str] = []
    for section in sections:
        for key, value in _leaves(cfg.get(section) or OmegaConf.create({})):
            name = {"model": "arch"}.get(section, section) if key == "_name" else key
            flag = "--" + re.sub(r"[._]", "-", name)
            if value is True:
                words.append(flag)
            elif value is not None and value is not False and (section, key) != ("task", "data"):
                words += [flag, ",".join(map(str, value if isinstance(value, list) else [value]))]
    return words


def identity(cfg: DictConfig) -> Dict[str, Any]:
    """The settings that make a run what it is, on whatever machine: name → value."""
    found = {"recipe.average": cfg.recipe.average, "recipe.batch_tokens": cfg.recipe.batch_tokens}
    if cfg.recipe.training_module:
        found["recipe.training_module"] = cfg.recipe.training_module.replace(f"{ROOT}/", "")
    for section in (*TRAINING[:-1], "generation", "common_eval"):
        for key, value in _leaves(cfg.get(section) or OmegaConf.create({})):
            if key not in MACHINE.get(section, ()) and value is not None:
                found[f"{section}.{key}"] = value.replace(f"{ROOT}/", "") if isinstance(value, str) else value
    return found


def batch_of(cfg: DictConfig) -> int:
    """Tokens per update, padding included."""
    training = cfg.distributed_training.distributed_world_size
    return int(cfg.recipe.batch_tokens or cfg.dataset.max_tokens * cfg.optimization.update_freq[0] * training)

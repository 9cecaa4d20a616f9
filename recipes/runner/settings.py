"""The settings of a run: its recipe's YAML, what overrides it, and fairseq's flags that say the same."""

import os
import re
import shlex
import sys
from argparse import Namespace
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

import collab_fairseq
from fairseq_modern.errors import UserError

from .suggestions import suggestion

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
#: what --fast overrides
FAST = "criterion._name=label_smoothed_cross_entropy_chunked optimizer._name=fused_adam model.fast_dropout=true"


class RecipeError(UserError):
    """What was asked for cannot be; one sentence says why, and what to do."""


class SettingsError(RecipeError):
    """A wrong setting or command line."""

    exit_status = 2


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
    stock: Optional[Dict[str, Any]] = None  # overrides of --stock, for fairseq's own transformer
    runs: List[str] = field(default_factory=list)  # HEADS:KEY_DIM[:VARIANT] of a sweep
    root: str = str(ROOT)


def read(path: Path, readers: Tuple[Path, ...] = ()) -> DictConfig:
    """A YAML, which overrides those that its `defaults` name, as Hydra reads it.

    Args:
        readers: the files whose `defaults` led here.
    """
    if path.resolve() in readers:
        raise SettingsError(f"defaults must name other files; got {path} in a circle")
    try:
        own = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise SettingsError(f"there is no file {path}") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise SettingsError(f"{path} is no YAML of settings: {error}") from error
    if not isinstance(own, DictConfig):
        raise SettingsError(f"{path} must hold sections of settings; got a list")
    names = OmegaConf.to_container(own).pop("defaults", ["_self_"])  # type: ignore[union-attr,call-arg]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise SettingsError(f"defaults in {path} must be a list of names of YAML files; got {names}")
    own.pop("defaults", None)
    layers = []
    for name in names:
        parent = path.parent / f"{name.partition('@')[0]}.yaml"
        layers.append(own if name == "_self_" else read(parent, (*readers, path.resolve())))
    return OmegaConf.merge(*layers)  # type: ignore[return-value]


def load(recipe: str, config: Optional[str] = None) -> DictConfig:
    """The YAML of a recipe, overridden by that of `config`: a file, or the name of one in the recipe's folder."""
    layers = [OmegaConf.create({"recipe": asdict(Recipe())}), read(ROOT / "recipes" / recipe / f"{recipe}.yaml")]
    if config:
        neighbour = ROOT / "recipes" / recipe / f"{config}.yaml"
        overrides = read(neighbour if neighbour.is_file() else Path(config))
        values: Any = OmegaConf.to_container(overrides)
        for section, value in values.items():
            if not isinstance(value, dict):
                raise SettingsError(f"{section} in {config} must be a section of settings; got {shown(value)}")
        _check_given(OmegaConf.merge(*layers), values)  # type: ignore[arg-type]
        layers.append(overrides)
    cfg = OmegaConf.merge(*layers)
    cfg.pop("hydra", None)  # where fairseq-hydra-train has its runs
    cfg.checkpoint.save_dir = MISSING  # --output
    if config:
        check(cfg)  # type: ignore[arg-type]
    return cfg  # type: ignore[return-value]


def _check_given(cfg: DictConfig, overrides: Any, prefix: str = "") -> None:
    """See that no override is `???`, which would leave the value that there is."""
    for key, value in overrides.items():
        if isinstance(value, dict):
            _check_given(cfg, value, f"{prefix}{key}.")
        elif value == MISSING and OmegaConf.select(cfg, f"{prefix}{key}") is not None:
            raise SettingsError(f"{prefix}{key} must be given; got ???")


def shown(value: Any) -> str:
    """A value as it is written in YAML."""
    return "null" if value is None else str(value)


def variant(cfg: DictConfig, name: str) -> List[str]:
    """The settings of a variant: of one name, or of several joined by _, each overriding those before."""
    given, rest, found = cfg.recipe.variants, name, []
    while rest:
        first = next((n for n in sorted(given, key=len, reverse=True) if f"{rest}_".startswith(f"{n}_")), None)
        if first is None:
            names = ", ".join(sorted(given)) or "none"
            raise SettingsError(
                f"--variant must be a variant of this recipe ({names}), or some joined by _; got '{name}'"
            )
        found += shell_words(f"recipe.variants.{first}", given[first])
        rest = rest[len(first) + 1 :]
    return found


def shell_words(name: str, text: str) -> List[str]:
    """The words of a setting or option that is written as on a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"{name} must be words as in a shell; got {text} ({error})") from error


def overrides(cfg: DictConfig, words: List[str]) -> DictConfig:
    """The settings of `key=value` words, which are to override some of `cfg`."""
    for word in words:
        if not re.match(r"\w+(\.\w+)+=", word):
            raise SettingsError(f"expected a setting such as optimization.lr=[0.001], got '{word}'")
    try:
        settings = OmegaConf.from_dotlist(words)
        _check_given(cfg, OmegaConf.to_container(settings))
    except (OmegaConfBaseException, YAMLError) as error:
        raise SettingsError(f"{' '.join(words)}: {_first_line(error)}") from error
    return settings


def stock(cfg: DictConfig) -> DictConfig:
    """The settings of fairseq's own transformer of the same size: `recipe.stock`, without what only our model has."""
    from collab_fairseq.models.config import OWN_FIELDS

    cfg = OmegaConf.merge(cfg, cfg.recipe.stock)  # type: ignore[assignment]
    cfg.model = {name: value for name, value in cfg.model.items() if name not in OWN_FIELDS}
    return cfg


def check(cfg: DictConfig) -> Dict[str, DictConfig]:
    """See that every name is one of fairseq's, of the model's or of a recipe, and every value of its type.

    Returns:
        Section → its settings, with the defaults of those that `cfg` does not have.

    Raises:
        SettingsError: naming the setting.
    """
    try:
        OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key} must have a value: {_first_line(error)}") from error
    schemas, complete = _schemas(cfg), {}
    for section in map(str, cfg):
        if section not in schemas:
            raise SettingsError(f"{section} is not a section of settings{suggestion(section, schemas)}")
        try:
            complete[section] = OmegaConf.merge(schemas[section], cfg[section])
        except ConfigKeyError as error:
            key, names = f"{section}.{error.full_key}", [about.name for about in fields(error.object_type)]
            meant = suggestion(str(error.key), names, f"{key.rpartition('.')[0]}.")
            raise SettingsError(f"{key} is not a setting{meant}") from error
        except OmegaConfBaseException as error:
            raise SettingsError(f"{section}.{error.full_key}: {_first_line(error)}") from error
    return complete  # type: ignore[return-value]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _schemas(cfg: DictConfig) -> Dict[Any, Any]:
    """Section → the dataclass that has its settings."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig, TransformerModel
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY
    from fairseq.utils import import_user_module

    from collab_fairseq.models import TransformerCollabModel
    from collab_fairseq.models.config import TransformerCollabConfig

    import_user_module(Namespace(user_dir=USER_DIR))
    of_model = {TransformerModel: TransformerConfig, TransformerCollabModel: TransformerCollabConfig}
    models = {name: of_model[model] for name, model in ARCH_MODEL_REGISTRY.items() if model in of_model}
    registries = {"task": TASK_DATACLASS_REGISTRY, "model": models}
    registries.update({section: registry["dataclass_registry"] for section, registry in REGISTRIES.items()})
    schemas: Dict[Any, Any] = {about.name: about.type for about in fields(FairseqConfig) if is_dataclass(about.type)}
    schemas["recipe"] = Recipe
    for section, registry in registries.items():
        if section in cfg:
            name = OmegaConf.select(cfg, f"{section}._name")
            if name not in registry:
                meant = suggestion(str(name), registry)
                raise SettingsError(f"{section}._name must be one of fairseq or this project; got {shown(name)}{meant}")
            schemas[section] = registry[name]
    return schemas


def leaves(section: DictConfig, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """Name and value of each setting of a section; of nested ones, names with dots."""
    for key in section:
        value = None if OmegaConf.is_missing(section, key) else section[key]
        if isinstance(value, DictConfig):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_container(value) if OmegaConf.is_list(value) else value


def flags(cfg: DictConfig, *sections: str) -> List[str]:
    """The settings of sections as words of a command line of fairseq's, but for the data, which have no flag."""
    words: List[str] = []
    for section in sections:
        for key, value in leaves(cfg.get(section) or OmegaConf.create({})):
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
        for key, value in leaves(cfg.get(section) or OmegaConf.create({})):
            if key not in MACHINE.get(section, ()) and value is not None:
                found[f"{section}.{key}"] = value.replace(f"{ROOT}/", "") if isinstance(value, str) else value
    return found


def stage_ends(updates: int, interval: int, stages: int) -> List[int]:
    """The updates after which a run is averaged: multiples of the interval of its checkpoints, and its end."""
    return [*(updates * n // stages // interval * interval for n in range(1, stages)), updates]


def batch_of(cfg: DictConfig) -> int:
    """Tokens per update, padding included."""
    training = cfg.distributed_training.distributed_world_size
    return int(cfg.recipe.batch_tokens or cfg.dataset.max_tokens * cfg.optimization.update_freq[0] * training)

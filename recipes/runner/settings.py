"""Settings of a recipe: its YAML file, the flags of fairseq that they become, the identity of a run."""

import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import collab_fairseq
from data_prep.interpreter import PYTHON, ROOT
from fairseq_modern.errors import UserError

__all__ = ["PYTHON", "ROOT"]
#: value of --user-dir, as printed by `collab user-dir`
USER_DIR = os.path.dirname(os.path.abspath(collab_fairseq.__file__))

#: sections that become flags of fairseq-train, in the order of its command line
TRAINING_SECTIONS = (
    *("common", "task", "model", "criterion", "optimizer", "lr_scheduler", "optimization"),
    *("dataset", "checkpoint", "distributed_training"),
)
#: sections that become flags of fairseq-generate
DECODING_SECTIONS = ("generation", "common_eval")
#: settings that do not identify a run: its machine, its paths, its log
NOT_IDENTIFYING = {
    *("common.user_dir", "common.cpu", "common.fp16", "common.bf16"),
    *("common.log_format", "common.log_interval", "common.log_file", "common.no_progress_bar"),
    *("common.tensorboard_logdir", "common.wandb_project"),
    *("task.data", "checkpoint.save_dir", "dataset.max_tokens", "dataset.num_workers", "optimization.update_freq"),
}


class SettingsError(UserError):
    """A wrong setting or command line."""

    exit_status = 2


@dataclass
class Recipe:
    """Section `recipe` of a YAML file: settings unknown to fairseq. Paths are relative to the repository."""

    about: str = ""
    data: str = ""  # folder of the prepared corpus, which contains data-bin
    prepare: str = ""  # script that prepares it
    source_option: str = "--source"  # option of that script for the downloaded corpus
    tests: Optional[Dict[str, Optional[str]]] = field(default_factory=dict)  # split of the data-bin → test set
    valid_tests: Optional[Dict[str, Optional[str]]] = field(default_factory=dict)  # the same for --valid
    sacrebleu_sets: Optional[Dict[str, str]] = field(default_factory=dict)  # test set → its name in sacreBLEU
    reference: Optional[str] = None  # raw references that replace those of the data
    blind: Optional[List[str]] = field(default_factory=list)  # NAME of sources without references: NAME.en.gz
    blind_sources: Optional[str] = None  # folder of these sources
    batch_tokens: Optional[int] = None  # per update; default: max_tokens × update_freq × distributed_world_size
    training_module: Optional[str] = None  # folder for fairseq-train's --user-dir; it imports collab_fairseq.models
    device: str = "auto"
    gpus: Optional[int] = None  # per node; with device cpu: processes
    default_gpus: Optional[int] = None  # without a request; default: all GPUs
    node_timeout: int = 600  # seconds that nodes outside Slurm wait for each other at the start
    precision: str = "auto"
    cpu_precision: str = "bf16"  # meaning of `auto` on a CPU; bf16 falls back to fp32 without native support
    average: int = 5  # of the last checkpoints
    stages: int = 1  # each is averaged, translated, scored and recorded
    decoding_tokens: int = 4000  # tokens in a batch of fairseq-generate
    variants: Dict[str, str] = field(default_factory=dict)  # name → settings as on the command line
    stock: Optional[Dict[str, Any]] = None  # overrides of --stock, for fairseq's own transformer
    runs: List[str] = field(default_factory=list)  # HEADS:KEY_DIM[:VARIANT] of a sweep
    root: str = str(ROOT)


def read_yaml(path: Path, parents: Tuple[Path, ...] = ()) -> DictConfig:
    """Read a YAML file. It overrides the files that its `defaults` list, as in Hydra.

    Args:
        parents: files whose `defaults` led to this one.
    """
    if path.resolve() in parents:
        raise SettingsError(f"defaults must not lead back to the same file; got {path} twice")
    try:
        content = OmegaConf.load(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise SettingsError(f"{path} is not a YAML file of settings: {error}") from error
    if not isinstance(content, DictConfig):
        raise SettingsError(f"{path} must contain sections of settings; got a list")
    plain: Any = OmegaConf.to_container(content)
    names = plain.get("defaults", ["_self_"])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"defaults in {path} must be a list of names of YAML files; got {names}")
    content.pop("defaults", None)
    layers = []
    for name in names if "_self_" in names else [*names, "_self_"]:
        if name == "_self_":
            layers.append(content)
        else:
            parent = path.parent / f"{name.partition('@')[0]}.yaml"
            layers.append(read_yaml(parent, (*parents, path.resolve())))
    return OmegaConf.merge(*layers)  # type: ignore[return-value]


def load(recipe: str, config: Optional[str] = None) -> DictConfig:
    """Settings of a recipe's YAML file, overridden by `config`: a file, or the name of one in the recipe's folder."""
    folder = ROOT / "recipes" / recipe
    defaults = {"recipe": asdict(Recipe())}
    cfg: Any = OmegaConf.merge(defaults, read_yaml(folder / f"{recipe}.yaml"))
    plain: Any = OmegaConf.to_container(cfg)
    of_hydra = plain["checkpoint"].get("save_dir")  # for fairseq-hydra-train
    if config:
        neighbour = folder / f"{config}.yaml"
        overrides = read_yaml(neighbour if neighbour.is_file() else Path(config))
        values: Any = OmegaConf.to_container(overrides)
        for section, value in values.items():
            if not isinstance(value, dict):
                raise SettingsError(f"{section} in {config} must be a section of settings; got {shown(value)}")
        if values.get("checkpoint", {}).get("save_dir") not in (None, MISSING, of_hydra):
            raise SettingsError("checkpoint.save_dir must be left out: give --output")
        reject_missing(cfg, values)
        cfg = OmegaConf.merge(cfg, overrides)
    cfg.pop("hydra", None)
    cfg.checkpoint.save_dir = MISSING  # given by --output
    return cfg  # type: ignore[no-any-return]


def reject_missing(cfg: DictConfig, overrides: Any, prefix: str = "") -> None:
    """Reject overrides by `???`: OmegaConf would silently keep the present value."""
    for key, value in overrides.items():
        if isinstance(value, dict):
            reject_missing(cfg, value, f"{prefix}{key}.")
        elif value == MISSING and OmegaConf.select(cfg, f"{prefix}{key}") is not None:
            raise SettingsError(f"{prefix}{key} must be given; got ???")


def shown(value: Any) -> str:
    """A value as written in YAML."""
    return "null" if value is None else str(value)


def leaves(section: DictConfig, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """Name and value of each setting of a section. Names of nested settings have dots."""
    for key in map(str, section):
        value = None if OmegaConf.is_missing(section, key) else section[key]
        if isinstance(value, DictConfig):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_container(value) if OmegaConf.is_list(value) else value


def flags(cfg: DictConfig, *sections: str) -> List[str]:
    """Flags of fairseq's programs for the settings of sections. `task.data` is no flag and is left out."""
    words: List[str] = []
    for section in sections:
        for key, value in leaves(cfg.get(section) or OmegaConf.create({})):
            if key == "left_pad_source":  # fairseq's only flag that turns a setting off
                value = not value
            if value is None or value is False or (section, key) == ("task", "data"):
                continue
            if key == "_name":
                key = "arch" if section == "model" else section
            words.append("--" + re.sub(r"[._]", "-", key))
            if isinstance(value, list):
                words.append(",".join(map(str, value)))
            elif value is not True:
                words.append(str(value))
    return words


def identity(cfg: DictConfig) -> Dict[str, Any]:
    """The settings that identify the training of a run on any machine: name → value."""
    settings = {"recipe.average": cfg.recipe.average, "recipe.batch_tokens": cfg.recipe.batch_tokens}
    if cfg.recipe.training_module:
        settings["recipe.training_module"] = cfg.recipe.training_module
    sections = [section for section in TRAINING_SECTIONS if section != "distributed_training"]
    return {**settings, **_identifying(cfg, *sections)}


def decoding(cfg: DictConfig) -> Dict[str, Any]:
    """The settings that identify the translations of a model: name → value."""
    return _identifying(cfg, "task", *DECODING_SECTIONS)


def _identifying(cfg: DictConfig, *sections: str) -> Dict[str, Any]:
    settings = {}
    for section in sections:
        for key, value in leaves(cfg.get(section) or OmegaConf.create({})):
            name = f"{section}.{key}"
            if name not in NOT_IDENTIFYING and value is not None:
                settings[name] = value
    return {name: _without_root(value) for name, value in settings.items()}


def _without_root(value: Any) -> Any:
    return value.replace(f"{ROOT}/", "") if isinstance(value, str) else value


def test_sets(cfg: DictConfig, valid: bool) -> Dict[str, str]:
    """Split of the data-bin → name of the test set, or with `valid` of the validation set."""
    sets = cfg.recipe.valid_tests if valid else cfg.recipe.tests
    return {split: name for split, name in (sets or {}).items() if name}


def stage_ends(cfg: DictConfig) -> List[int]:
    """The updates at which the stages of a run end: multiples of the checkpoint interval, and the end of the run."""
    updates, stages = cfg.optimization.max_update, cfg.recipe.stages
    interval = cfg.checkpoint.save_interval_updates
    return [*(updates * n // stages // interval * interval for n in range(1, stages)), updates]

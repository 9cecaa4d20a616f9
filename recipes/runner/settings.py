"""Settings of a recipe: its YAML file, overrides, the flags of fairseq that they become, the identity of a run."""

import os
import re
import shlex
import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from omegaconf import MISSING, DictConfig, OmegaConf

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
    variants: Dict[str, str] = field(default_factory=dict)  # name → overrides, separated as in a shell
    stock: Optional[Dict[str, Any]] = None  # overrides for fairseq's own transformer
    runs: List[str] = field(default_factory=list)  # HEADS:KEY_DIM[:VARIANT] of a sweep
    root: str = str(ROOT)
    # on the command line
    variant: Optional[str] = None  # of variants; several joined by _
    fast: bool = False  # see FAST
    use_stock: bool = False
    output: Optional[str] = None  # folder of the run, or of the runs of a sweep
    corpus: Optional[str] = None  # downloaded corpus, for `prepare`
    valid: bool = False  # evaluate on the validation set
    nodes: Optional[int] = None
    node_rank: Optional[int] = None
    master: Optional[str] = None  # HOST:PORT of the first node
    max_tokens: Optional[int] = None  # per process and forward pass
    threads: Optional[int] = None  # per node
    seeds: Optional[List[int]] = None  # of a sweep
    jobs: int = 1  # runs of a sweep at a time
    submit: Optional[str] = None  # command that submits each run of a sweep to a cluster
    table: bool = False  # only write the table of a sweep
    dry_run: bool = False


#: overrides of `recipe.fast`
FAST = ["criterion._name=label_smoothed_cross_entropy_chunked", "optimizer._name=fused_adam", "model.fast_dropout=true"]


def read_yaml(file: Path) -> DictConfig:
    """A YAML file and its `defaults`, as Hydra composes them."""
    from hydra import compose, initialize_config_dir

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the version is global, and fairseq's calls need this one
        with initialize_config_dir(str(file.resolve().parent), version_base="1.1"):
            cfg = compose(file.stem)
    OmegaConf.set_struct(cfg, False)
    return cfg


def load(recipe: str, config: Optional[str] = None) -> DictConfig:
    """Settings of a recipe's YAML file, overridden by `config`: a file, or the name of one in the recipe's folder."""
    folder = ROOT / "recipes" / recipe
    layers = [folder / f"{recipe}.yaml"]
    if config:
        neighbour = folder / f"{config}.yaml"
        layers.append(neighbour if neighbour.is_file() else Path(config))
    cfg: Any = OmegaConf.merge({"recipe": asdict(Recipe())}, *map(read_yaml, layers))
    cfg.checkpoint.save_dir = MISSING  # that of a YAML file is for fairseq-hydra-train
    return cfg  # type: ignore[no-any-return]


def override(cfg: DictConfig, flags: Dict[str, Any], words: List[str]) -> DictConfig:
    """Apply all overrides to the settings of a recipe, later ones win: variant, `recipe.fast`, flags (setting → value),
    words (`SECTION.NAME=VALUE`).
    """
    last = OmegaConf.create()
    for name, value in flags.items():
        OmegaConf.update(last, name, value)
    last = OmegaConf.merge(last, OmegaConf.from_dotlist(words))  # type: ignore[assignment]
    recipe: Any = OmegaConf.merge(cfg.recipe, last.get("recipe") or {})
    if recipe.use_stock:
        if recipe.fast or {"model.collaborative_heads", "model.key_dim"} & set(flags):
            raise UserError("--stock excludes --heads, --key-dim and --fast")
        cfg = stock(cfg)
    # --heads none: d_model, unless a later override sets a key dimension
    first = ["model.key_dim=null"] if OmegaConf.select(last, "model.collaborative_heads") == "none" else []
    first += variant(recipe, recipe.variant) if recipe.variant else []
    merged: Any = OmegaConf.merge(cfg, OmegaConf.from_dotlist(first + (FAST if recipe.fast else [])), last)
    if not any(word.startswith("checkpoint.save_interval_updates=") for word in (*first, *words)):
        _keep_number_of_checkpoints(merged, cfg)
    if OmegaConf.is_missing(merged.common, "user_dir"):
        merged.common.user_dir = None if recipe.use_stock else USER_DIR
    return merged  # type: ignore[no-any-return]


def _keep_number_of_checkpoints(cfg: DictConfig, recipe: DictConfig) -> None:
    """Scale the checkpoint interval with the length of the run, if an override changes the length."""
    interval, updates = recipe.checkpoint.save_interval_updates, recipe.optimization.max_update
    if interval > 0 and cfg.optimization.max_update != updates:
        number = max(1, updates // interval)
        cfg.checkpoint.save_interval_updates = max(1, cfg.optimization.max_update // number)


def stock(cfg: DictConfig) -> DictConfig:
    """Settings of fairseq's own transformer of the same size: `recipe.stock`, without the fields of this project."""
    from fairseq.models.transformer import TransformerConfig

    merged: Any = OmegaConf.merge(cfg, cfg.recipe.stock)
    known = {"_name", *(each.name for each in fields(TransformerConfig))}
    merged.model = {name: value for name, value in merged.model.items() if name in known}
    return merged  # type: ignore[no-any-return]


def variant(recipe: DictConfig, name: str) -> List[str]:
    """The overrides of a variant, or of several joined by _, each overriding those before it."""
    parts = [name] if name in recipe.variants else name.split("_")
    if unknown := {*parts} - {*recipe.variants}:
        known = ", ".join(sorted(recipe.variants)) or "none"
        raise UserError(f"--variant must be of this recipe ({known}), or some joined by _; got {min(unknown)}")
    return [word for part in parts for word in shlex.split(recipe.variants[part])]


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
                settings[name] = value.replace(f"{ROOT}/", "") if isinstance(value, str) else value
    return settings


def test_sets(cfg: DictConfig, valid: bool) -> Dict[str, str]:
    """Split of the data-bin → name of the test set, or with `valid` of the validation set."""
    sets = cfg.recipe.valid_tests if valid else cfg.recipe.tests
    return {split: name for split, name in (sets or {}).items() if name}


def stage_ends(cfg: DictConfig) -> List[int]:
    """The updates at which the stages of a run end: multiples of the checkpoint interval, and the end of the run."""
    updates, stages = cfg.optimization.max_update, cfg.recipe.stages
    interval = cfg.checkpoint.save_interval_updates
    return [*(updates * n // stages // interval * interval for n in range(1, stages)), updates]

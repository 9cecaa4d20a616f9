"""Validation of settings before any work: names, types, ranges, and whether fairseq-train can build everything."""

import difflib
import logging
import math
from argparse import Namespace
from dataclasses import fields, is_dataclass
from typing import Any, Dict, Iterable, List

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fairseq_modern.errors import is_user_error

from .settings import (
    DECODING_SECTIONS,
    TRAINING_SECTIONS,
    USER_DIR,
    Recipe,
    SettingsError,
    leaves,
    shown,
    stage_ends,
    test_sets,
)

logger = logging.getLogger("recipe")

SECTIONS = (*TRAINING_SECTIONS, *DECODING_SECTIONS, "recipe")
#: settings without a value until the run starts
SET_LATER = {"common.user_dir", "checkpoint.save_dir", "task.data"}
#: settings whose values must be at least 1
POSITIVE = (
    *("recipe.average", "recipe.stages", "recipe.batch_tokens", "recipe.gpus", "recipe.default_gpus"),
    *("recipe.decoding_tokens", "common.log_interval", "dataset.max_tokens", "dataset.batch_size"),
    *("dataset.validate_interval", "optimization.max_update", "optimization.update_freq"),
    *("distributed_training.distributed_world_size", "recipe.node_timeout"),
    *("checkpoint.save_interval", "checkpoint.save_interval_updates", "generation.beam", "generation.nbest"),
    *("model.encoder.layers", "model.encoder.embed_dim"),
    *("model.encoder.ffn_embed_dim", "model.encoder.attention_heads"),
    *("model.decoder.layers", "model.decoder.embed_dim"),
    *("model.decoder.ffn_embed_dim", "model.decoder.attention_heads"),
    *("model.max_source_positions", "model.max_target_positions"),
)
#: settings whose values must be at least 0
NOT_NEGATIVE = (
    *("common.seed", "dataset.num_workers", "dataset.validate_interval_updates"),
    *("optimization.clip_norm", "optimizer.weight_decay", "lr_scheduler.warmup_updates"),
)
#: what to do instead → settings that a recipe sets itself, or with which a step could not use the results of an earlier
#: one. They may only have fairseq's default
RESERVED = {
    "give --device": "common.cpu common.tpu distributed_training.distributed_backend",
    "give --precision": "common.amp common.bf16 common.memory_efficient_bf16 common.memory_efficient_fp16",
    "give --output": "checkpoint.save_dir",
    "give --data": "task.data",
    "give recipe.tests": "dataset.gen_subset",
    "give recipe.training_module": "common.user_dir",
    "a recipe resumes from its checkpoints, and averages the last ones before optimization.max_update": (
        "optimization.max_epoch optimization.stop_time_hours checkpoint.patience dataset.validate_after_updates "
        "checkpoint.no_save checkpoint.no_last_checkpoints checkpoint.no_save_optimizer_state "
        "checkpoint.checkpoint_suffix checkpoint.checkpoint_shard_count checkpoint.write_checkpoints_asynchronously "
        "checkpoint.model_parallel_size common.model_parallel_size distributed_training.use_sharded_state"
    ),
    "a recipe starts the training processes": (
        "distributed_training.distributed_rank distributed_training.distributed_init_method "
        "distributed_training.distributed_port distributed_training.distributed_no_spawn "
        "distributed_training.distributed_num_procs distributed_training.nprocs_per_node "
        "distributed_training.device_id"
    ),
    "a recipe translates with the averages of its run": "common_eval.path common_eval.model_overrides",
    "a recipe translates without references": "generation.score_reference generation.prefix_size",
    "a recipe scores the output of fairseq-generate": "common_eval.quiet common_eval.results_path",
}
#: common names of settings → fairseq's, or this project's
ALIASES = {
    "learning_rate": "optimization.lr",
    "batch_size": "recipe.batch_tokens",
    "epochs": "optimization.max_update",
    "max_epochs": "optimization.max_update",
    "steps": "optimization.max_update",
    "max_steps": "optimization.max_update",
    "warmup": "lr_scheduler.warmup_updates",
    "warmup_steps": "lr_scheduler.warmup_updates",
}


def check(cfg: DictConfig) -> Dict[str, DictConfig]:
    """Check that every setting exists in fairseq, the model or the recipe, and that its value has the right type.

    Returns:
        Section → its settings, including the defaults that `cfg` lacks.

    Raises:
        SettingsError: names the wrong setting.
    """
    try:
        OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key} must have a value: {first_line(error)}") from error
    for section in map(str, cfg):
        if section not in SECTIONS:
            raise SettingsError(f"{section} is not a section of a recipe's settings{suggestion(section, SECTIONS)}")
    schemas, complete = _schemas(cfg), {}
    for section in map(str, cfg):
        try:
            complete[section] = OmegaConf.merge(schemas[section], cfg[section])
        except ConfigKeyError as error:
            name = f"{section}.{error.full_key}"
            known = [field.name for field in fields(error.object_type)]  # type: ignore[arg-type]
            similar = suggestion(str(error.key), known, f"{name.rpartition('.')[0]}.")
            raise SettingsError(f"{name} is not a setting{similar}") from error
        except OmegaConfBaseException as error:
            raise SettingsError(f"{section}.{error.full_key}: {first_line(error)}") from error
        for name, value in leaves(cfg[section]):
            if isinstance(value, bool) and isinstance(OmegaConf.select(complete[section], name), str):
                raise SettingsError(f"{section}.{name} must be text, in quotes if YAML reads a boolean; got {value}")
    return complete  # type: ignore[return-value]


def reject_reserved(cfg: DictConfig) -> None:
    """Reject settings in `RESERVED`, unless they have fairseq's default."""
    schemas = _schemas(cfg)
    for instead, names in RESERVED.items():
        for name in names.split():
            section, _, key = name.partition(".")
            value, default = OmegaConf.select(cfg, name), getattr(schemas.get(section), key, None)
            if value not in (None, default):
                raise SettingsError(f"{name} must be left out: {instead}; got {shown(value)}")


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _schemas(cfg: DictConfig) -> Dict[Any, Any]:
    """Section → the dataclass of its settings."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig, TransformerModel
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY
    from fairseq.utils import import_user_module

    from collab_fairseq.models import TransformerCollabModel
    from collab_fairseq.models.config import TransformerCollabConfig

    import_user_module(Namespace(user_dir=USER_DIR))
    configs = {TransformerModel: TransformerConfig, TransformerCollabModel: TransformerCollabConfig}
    models = {name: configs[model] for name, model in ARCH_MODEL_REGISTRY.items() if model in configs}
    registries = {"task": TASK_DATACLASS_REGISTRY, "model": models}
    registries.update({section: registry["dataclass_registry"] for section, registry in REGISTRIES.items()})
    schemas: Dict[Any, Any] = {field.name: field.type for field in fields(FairseqConfig) if is_dataclass(field.type)}
    schemas["recipe"] = Recipe
    for section, registry in registries.items():
        if section not in cfg:
            continue
        name = OmegaConf.select(cfg, f"{section}._name")
        if name not in registry:
            similar = suggestion(str(name), registry)
            raise SettingsError(
                f"{section}._name must be registered by fairseq or this project; got {shown(name)}{similar}"
            )
        schemas[section] = registry[name]
    return schemas


def suggestion(name: str, known: Iterable[Any], prefix: str = "") -> str:
    """End of an error message about an unknown name; empty if no known name is similar.

    Args:
        name: last part of the unknown name.
        known: valid names in its place.
        prefix: sections before it, with a dot at the end.
    """
    similar = difflib.get_close_matches(name, [str(each) for each in known], n=1)
    if name in ALIASES:
        return f"; did you mean {ALIASES[name]}?"
    return f"; did you mean {prefix}{similar[0]}?" if similar else ""


def validate(cfg: DictConfig) -> None:
    """Reject settings that cannot be trained with. Reads no files and allocates no parameters.

    Raises:
        SettingsError: names the setting, its valid values and its value.
    """
    complete = OmegaConf.create(check(cfg), flags={"allow_objects": True})
    for name in sorted(OmegaConf.missing_keys(cfg) - SET_LATER):
        raise SettingsError(f"{name} must be given; got ???")
    _check_ranges(complete)
    _build(cfg, complete)
    warmup, updates = OmegaConf.select(complete, "lr_scheduler.warmup_updates"), cfg.optimization.max_update
    if warmup and warmup >= updates:
        logger.warning(
            "the run ends within its warm-up: lr_scheduler.warmup_updates should be below optimization.max_update, %d; "
            "got %d",
            updates,
            warmup,
        )


def _check_ranges(complete: DictConfig) -> None:
    if complete.common.log_format != "json":
        raise SettingsError(
            f"common.log_format must be json, which a recipe reads; got {shown(complete.common.log_format)}"
        )
    if len(_values(complete, "optimization.update_freq")) > 1:
        raise SettingsError(
            f"optimization.update_freq must be one number in a recipe; got {complete.optimization.update_freq}"
        )
    for value in _values(complete, "optimization.lr"):
        if not 0 < value < math.inf:
            raise SettingsError(f"optimization.lr must be positive and finite; got {value}")
    for least, names in ((1, POSITIVE), (0, NOT_NEGATIVE)):
        for name in names:
            for value in _values(complete, name):
                if value is None and name != "dataset.max_tokens":  # optional
                    continue
                if value is None or not least <= value < math.inf:
                    raise SettingsError(f"{name} must be at least {least}; got {shown(value)}")
    probabilities = {"criterion.label_smoothing": OmegaConf.select(complete, "criterion.label_smoothing")}
    for name, value in leaves(complete.model):
        if name.endswith(("dropout", "drop")):
            probabilities[f"model.{name}"] = value
    for name, value in probabilities.items():
        if isinstance(value, float) and not 0 <= value < 1:
            raise SettingsError(f"{name} must be in [0, 1); got {shown(value)}")


def _values(complete: DictConfig, name: str) -> List[Any]:
    """The values of a list setting, or the one value of another; [None] if no section has the setting."""
    value = OmegaConf.select(complete, name)
    if not OmegaConf.is_list(value):
        return [value]
    if not value:
        raise SettingsError(f"{name} must have at least one value; got []")
    return list(value)


def _build(cfg: DictConfig, complete: DictConfig) -> None:
    """Build what fairseq-train builds, with an empty dictionary and parameters on the meta device."""
    import torch
    from fairseq import optim
    from fairseq.data import Dictionary
    from fairseq.optim.lr_scheduler import build_lr_scheduler
    from fairseq.tasks import TASK_REGISTRY

    from collab_fairseq.modules.settings import parse_sites

    dictionary = Dictionary()
    model_settings = cfg.model.copy()
    model_settings.pop("attention_from", None)  # a file that may exist on another machine only
    try:
        section = "task"
        task = TASK_REGISTRY[complete.task._name](complete.task, dictionary, dictionary)
        with torch.device("meta"):
            section = "model"
            parse_sites(model_settings.get("collaborative_heads") or "none", "--heads")
            model = task.build_model(model_settings)
            section = "criterion"
            task.build_criterion(complete.criterion)
        section = "optimizer"
        optimizer = optim.build_optimizer(complete.optimizer, list(model.parameters()))
        section = "lr_scheduler"
        scheduler = build_lr_scheduler(complete.lr_scheduler, optimizer)
        _check_lowest_rate(scheduler, complete.optimization)
    except Exception as error:
        if is_user_error(error):
            raise SettingsError(str(error)) from error
        raise SettingsError(
            f"fairseq cannot build {section} from these settings: {type(error).__name__}: {error}"
        ) from error


def _check_lowest_rate(scheduler: Any, optimization: DictConfig) -> None:
    """Reject a value of stop_min_lr that ends training before max_update."""
    if optimization.stop_min_lr < 0:  # fairseq's default
        return
    updates = range(0, optimization.max_update, max(1, optimization.max_update // 1000))
    lowest = min(scheduler.step_update(update) for update in updates)
    if lowest <= optimization.stop_min_lr:
        raise SettingsError(
            f"optimization.stop_min_lr must be below the learning rate of every update, {lowest:g}; "
            f"got {optimization.stop_min_lr}"
        )


def check_test_sets(cfg: DictConfig, valid: bool) -> None:
    """Reject --valid without validation sets, and one file of references for several test sets."""
    names = list(test_sets(cfg, valid).values())
    if valid and not names:
        raise SettingsError("--valid: this recipe has no references for its validation set")
    if cfg.recipe.reference and len(names) > 1:
        raise SettingsError(
            f"--reference must be the references of one test set; got {cfg.recipe.reference} for {', '.join(names)}"
        )


def check_averages(cfg: DictConfig) -> None:
    """Reject averages of more checkpoints than a stage writes or keeps."""
    stages, average = cfg.recipe.stages, cfg.recipe.average
    if stages > 1 and cfg.lr_scheduler._name == "cosine":
        raise SettingsError(f"--stages must be 1 with a learning rate that falls to zero (cosine); got {stages}")
    interval = cfg.checkpoint.save_interval_updates
    end = stage_ends(cfg)[0]
    if end // interval < average:
        options = "--average" if stages == 1 else "--average or --stages"
        raise SettingsError(
            f"--average must be at most {end // interval}, the number of checkpoints by update {end} (one every "
            f"{interval}); got {average}; lower {options}, or raise --updates"
        )
    kept = cfg.checkpoint.keep_interval_updates
    if 0 < kept < average:  # otherwise fairseq keeps all
        raise SettingsError(
            f"--average must be at most {kept}, the number of checkpoints kept; got {average}; "
            f"give checkpoint.keep_interval_updates={average}, or lower --average"
        )

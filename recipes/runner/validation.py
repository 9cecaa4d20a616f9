"""Validate the settings of a run before any work: their ranges, then all that fairseq-train builds of them."""

import logging
import math
from typing import Any, List

from omegaconf import DictConfig, OmegaConf

from fairseq_modern.errors import is_user_error

from .settings import SettingsError, check, leaves, shown, stage_ends

logger = logging.getLogger("recipe")

#: settings that have no value until a run is started: the command line or the runner gives it
GIVEN_LATER = {"common.user_dir", "checkpoint.save_dir", "task.data"}
SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
#: least value → settings; in a list each value, and there is one at least
LEAST = {
    1: (
        "recipe.average", "recipe.stages", "recipe.batch_tokens", "recipe.gpus", "recipe.decoding_tokens",
        "common.log_interval", "dataset.max_tokens", "dataset.batch_size", "dataset.validate_interval",
        "distributed_training.distributed_world_size", "optimization.max_update", "optimization.update_freq",
        "checkpoint.save_interval", "checkpoint.save_interval_updates", "generation.beam", "generation.nbest",
        *(f"model.{side}.{size}" for side in ("encoder", "decoder") for size in SIZES),
        "model.max_source_positions", "model.max_target_positions",
    ),
    0: (
        "common.seed", "dataset.num_workers", "dataset.validate_interval_updates", "optimization.clip_norm",
        "optimizer.weight_decay", "lr_scheduler.warmup_updates",
    ),
}  # fmt: skip


def validate(cfg: DictConfig) -> None:
    """Reject settings that cannot be trained with. Nothing is read, and no memory is taken for parameters.

    Raises:
        SettingsError: naming a setting, what it must be and what it is.
    """
    complete = OmegaConf.create(check(cfg), flags={"allow_objects": True})
    for name in sorted(OmegaConf.missing_keys(cfg) - GIVEN_LATER):
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
    for value in _values(complete, "optimization.lr"):
        if not 0 < value < math.inf:
            raise SettingsError(f"optimization.lr must be positive numbers; got {value}")
    for least, names in LEAST.items():
        for name in names:
            for value in _values(complete, name):
                if value is None and name != "dataset.max_tokens":  # may be absent
                    continue
                if value is None or not least <= value < math.inf:
                    raise SettingsError(f"{name} must be at least {least}; got {shown(value)}")
    fractions = {f"model.{name}": value for name, value in leaves(complete.model) if name.endswith(("dropout", "drop"))}
    fractions["criterion.label_smoothing"] = OmegaConf.select(complete, "criterion.label_smoothing")
    for name, value in fractions.items():
        if isinstance(value, float) and not 0 <= value < 1:
            raise SettingsError(f"{name} must be in [0, 1); got {shown(value)}")


def _values(complete: DictConfig, name: str) -> List[Any]:
    """The values of a setting that is a list, else its value; None where no section has such a setting."""
    value = OmegaConf.select(complete, name)
    if not OmegaConf.is_list(value):
        return [value]
    if not value:
        raise SettingsError(f"{name} must have at least one value; got []")
    return list(value)


def _build(cfg: DictConfig, complete: DictConfig) -> None:
    """Build what fairseq-train builds, with a dictionary of a few symbols and parameters without memory."""
    import torch
    from fairseq import optim
    from fairseq.data import Dictionary
    from fairseq.optim.lr_scheduler import build_lr_scheduler
    from fairseq.tasks import TASK_REGISTRY

    from collab_fairseq.modules.settings import parse_sites

    dictionary = Dictionary()
    model_settings = cfg.model.copy()
    model_settings.pop("attention_from", None)  # a file, which may be on another machine
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
        build_lr_scheduler(complete.lr_scheduler, optimizer)
    except Exception as error:
        if is_user_error(error):
            raise SettingsError(str(error)) from error
        raise SettingsError(
            f"{section} must be settings that fairseq can build; got {type(error).__name__}: {error}"
        ) from error


def check_averages(cfg: DictConfig) -> None:
    """Reject averages of more checkpoints than there are or are kept."""
    stages, average, keep = cfg.recipe.stages, cfg.recipe.average, cfg.checkpoint.keep_interval_updates
    if stages > 1 and cfg.lr_scheduler._name == "cosine":
        raise SettingsError(
            f"--stages {stages}: with a learning rate that falls to zero at the end only that can be averaged"
        )
    interval = cfg.checkpoint.save_interval_updates
    first = stage_ends(cfg.optimization.max_update, interval, stages)[0]
    if first // interval < average:
        lower = "--average" if stages == 1 else "--average or --stages"
        raise SettingsError(
            f"--average {average}: there are fewer checkpoints, {first // interval}, by update {first}, one every "
            f"{interval}; lower {lower}, or raise --updates"
        )
    if 0 < keep < average:  # else fairseq keeps all
        raise SettingsError(
            f"--average {average}: only {keep} checkpoints are kept; give checkpoint.keep_interval_updates={average}, "
            "or a lower --average"
        )

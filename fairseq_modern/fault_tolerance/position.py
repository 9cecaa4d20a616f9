"""Defect: resuming within an epoch with other batches skips some of the data and repeats others, without a warning.

Check: the settings in `BATCHES`, which determine what a position within an epoch, a number of batches of one process,
means. If one of them has changed, training resumes at the next epoch, with a warning.
"""

import logging
from types import ModuleType
from typing import Any, Dict

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import adapts_checkpoints

logger = logging.getLogger(__name__)

# The settings that determine the batches of a process.
BATCHES = {
    "processes": ("distributed_training", "distributed_world_size"),
    "--max-tokens": ("dataset", "max_tokens"),
    "--batch-size": ("dataset", "batch_size"),
    "--required-batch-size-multiple": ("dataset", "required_batch_size_multiple"),
    "--train-subset": ("dataset", "train_subset"),
    "--seed": ("common", "seed"),
}


def batch_settings(cfg: Any) -> Dict[str, Any]:
    """Return the settings in `BATCHES` that a configuration has."""
    return {name: cfg[section][key] for name, (section, key) in BATCHES.items() if key in cfg.get(section, {})}


def adapt(state: Any, cfg: Any) -> None:
    """Move the position of a checkpoint to the next epoch if the settings produce other batches."""
    position = (state.get("extra_state") or {}).get("train_iterator") or {}
    if state.get("cfg") is None or not position.get("iterations_in_epoch"):
        return
    before, now = batch_settings(state["cfg"]), batch_settings(cfg)
    changed = [name for name in now if name in before and before[name] != now[name]]
    if not changed:
        return
    changes = ", ".join(f"{name} {before[name]} → {now[name]}" for name in changed)
    epoch, updates = position["epoch"], state["optimizer_history"][-1]["num_updates"]
    position.update(epoch=epoch + 1, iterations_in_epoch=0)
    logger.warning(
        f"the batches have changed ({changes}): resuming at epoch {epoch + 1} after update {updates}; "
        f"the rest of epoch {epoch} is skipped"
    )


def patch_trainer(module: ModuleType) -> None:
    """Adapt the checkpoints that `fairseq.trainer.Trainer` loads."""

    @adapts_checkpoints(module)
    def resume(trainer, state, filename, *_, **__):
        cfg = trainer.cfg.checkpoint
        if fault_tolerance.is_on() and not cfg.reset_dataloader and filename != cfg.finetune_from_model:
            adapt(state, trainer.cfg)

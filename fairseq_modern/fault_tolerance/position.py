"""Where in an epoch a training resumes.

The position within the epoch that a checkpoint holds is a number of batches of one process. Where the training resumes
with another number of processes or other batches it means nothing, and data would be skipped or seen twice, as it
published does without a word. Here the training then resumes at the next epoch and says so.
"""

import logging
from types import ModuleType
from typing import Any, Dict

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import adapts_checkpoints

logger = logging.getLogger(__name__)

# What the batches of a process follow from: their number, and the position among them, hold for these settings only.
BATCHES = {
    "processes": ("distributed_training", "distributed_world_size"),
    "--max-tokens": ("dataset", "max_tokens"),
    "--batch-size": ("dataset", "batch_size"),
    "--required-batch-size-multiple": ("dataset", "required_batch_size_multiple"),
    "--train-subset": ("dataset", "train_subset"),
    "--seed": ("common", "seed"),
}


def batch_settings(cfg: Any) -> Dict[str, Any]:
    """The settings that the batches of a process follow from, as far as the configuration has them."""
    return {name: cfg[section][key] for name, (section, key) in BATCHES.items() if key in cfg.get(section, {})}


def adapt(state: Any, cfg: Any) -> None:
    """Move the position of a checkpoint that a training with these settings takes up to the next epoch, if it must."""
    position = (state.get("extra_state") or {}).get("train_iterator") or {}
    if state.get("cfg") is None or not position.get("iterations_in_epoch"):
        return
    before, now = batch_settings(state["cfg"]), batch_settings(cfg)
    others = [name for name in now if name in before and before[name] != now[name]]
    if not others:
        return
    changes = ", ".join(f"{name} {before[name]} before and {now[name]} now" for name in others)
    epoch, updates = position["epoch"], state["optimizer_history"][-1]["num_updates"]
    position.update(epoch=epoch + 1, iterations_in_epoch=0)
    logger.warning(
        f"the batches of epoch {epoch} are others than when it was begun ({changes}): resuming at epoch "
        f"{epoch + 1} after update {updates}; the rest of epoch {epoch} is left out"
    )


def patch_trainer(module: ModuleType) -> None:
    """Wrap how `fairseq.trainer.Trainer` takes up a checkpoint."""

    @adapts_checkpoints(module)
    def resume(trainer: Any, state: Any, filename: str, *_: Any, **__: Any) -> None:
        cfg = trainer.cfg.checkpoint
        if fault_tolerance.is_on() and not cfg.reset_dataloader and filename != cfg.finetune_from_model:
            adapt(state, trainer.cfg)

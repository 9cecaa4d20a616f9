"""Where in an epoch a training goes on.

The position within the epoch that a checkpoint holds is a number of batches of one process. If the training goes on
with another number of processes or other batches it means nothing, and data would be skipped or seen twice, as it
published does without a word. Here the training then goes on at the next epoch and says so.
"""

import logging
from types import ModuleType
from typing import Any, Dict

from fairseq_modern import survival
from fairseq_modern.patching import wrap

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
MADE_FOR = "made_for"  # where a loaded position carries them


def batch_settings(cfg: Any) -> Dict[str, Any]:
    """The settings that the batches of a process follow from, as far as the configuration has them."""
    return {name: cfg[section][key] for name, (section, key) in BATCHES.items() if key in cfg.get(section, {})}


def patch(module: ModuleType) -> None:
    """Let what `fairseq.checkpoint_utils` loads carry these settings beside its position."""

    @wrap(module)
    def load_checkpoint_to_cpu(original: Any, *args: Any, **options: Any) -> Any:
        state = original(*args, **options)
        position = (state.get("extra_state") or {}).get("train_iterator") if survival.is_on() else None
        if position and state.get("cfg") is not None:  # travels with it to all processes
            position[MADE_FOR] = batch_settings(state["cfg"])
        return state


def patch_trainer(module: ModuleType) -> None:
    """Let `fairseq.trainer.Trainer` go on at the next epoch where the position within the last one means nothing."""

    @wrap(module.Trainer)
    def load_checkpoint(original: Any, self: Any, filename: str, *args: Any, **options: Any) -> Any:
        from fairseq.logging import metrics

        extra_state = original(self, filename, *args, **options)
        position = (extra_state or {}).get("train_iterator") or {}
        if MADE_FOR not in position:
            return extra_state
        before, now = position.pop(MADE_FOR), batch_settings(self.cfg)
        others = [name for name in now if name in before and before[name] != now[name]]
        cfg = self.cfg.checkpoint
        if others and position.get("iterations_in_epoch", 0) > 0 and filename != cfg.finetune_from_model:
            epoch = position["epoch"]
            position.update(epoch=epoch + 1, iterations_in_epoch=0)
            metrics.reset_meters("train")  # the averages of an epoch
            if not cfg.reset_dataloader and self.is_data_parallel_master:
                changes = ", ".join(f"{name} {before[name]} before and {now[name]} now" for name in others)
                logger.warning(
                    f"the batches of epoch {epoch} are others than when it was begun ({changes}): going on at epoch "
                    f"{epoch + 1} after update {self.get_num_updates()}; the rest of epoch {epoch} is left out"
                )
        return extra_state

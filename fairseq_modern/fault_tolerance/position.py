"""Defects of resuming within an epoch.

- With different batches, it skips some of the data and repeats others, without a warning. Check: the settings in
  `BATCHES`, because a position within an epoch is a number of batches of one process; and --update-freq, which must
  divide the position: otherwise, fairseq skips the last batches and repeats the epoch. If a check fails, training
  resumes at the next epoch, with a warning.
- With --skip-remainder-batch, it leaves out as many batches as were trained before, or ends in an error. Check: the
  flag. Only the last batch of the epoch is then left out.
"""

import logging
from argparse import Namespace
from types import ModuleType
from typing import Any, Dict

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import replaced, step, wrap

logger = logging.getLogger(__name__)

# The settings that determine the batches of a process. The path of the data does not: data may have been moved.
BATCHES = {
    "processes": ("distributed_training", "distributed_world_size"),
    "--max-tokens": ("dataset", "max_tokens"),
    "--batch-size": ("dataset", "batch_size"),
    "--required-batch-size-multiple": ("dataset", "required_batch_size_multiple"),
    "--train-subset": ("dataset", "train_subset"),
    "--grouped-shuffling": ("dataset", "grouped_shuffling"),
    "--update-ordered-indices-seed": ("dataset", "update_ordered_indices_seed"),
    "--skip-remainder-batch": ("optimization", "skip_remainder_batch"),
    "--seed": ("common", "seed"),
    "--max-source-positions": ("task", "max_source_positions"),
    "--max-target-positions": ("task", "max_target_positions"),
    "--truncate-source": ("task", "truncate_source"),
    "--tokens-per-sample": ("task", "tokens_per_sample"),
    "--sample-break-mode": ("task", "sample_break_mode"),
    "--num-batch-buckets": ("task", "num_batch_buckets"),
    "--upsample-primary": ("task", "upsample_primary"),
}


def batch_settings(cfg: Any) -> Dict[str, Any]:
    """Return the settings in `BATCHES` that a configuration has."""
    settings = {}
    for name, (section, key) in BATCHES.items():
        values = cfg.get(section) or {}
        if isinstance(values, Namespace):  # a task without a dataclass
            values = vars(values)
        if key in values:
            settings[name] = values[key]
    return settings


def update_freq(cfg: Any, epoch: int) -> int:
    """Return the number of batches per update of a process in an epoch, counted from 1."""
    frequencies = cfg["optimization"]["update_freq"]
    return int(frequencies[min(epoch, len(frequencies)) - 1])


def adapt(state: Any, cfg: Any) -> None:
    """Move the position of a checkpoint to the next epoch if the settings produce different batches."""
    position = (state.get("extra_state") or {}).get("train_iterator") or {}
    if state.get("cfg") is None or not position.get("iterations_in_epoch"):
        return
    before, now = batch_settings(state["cfg"]), batch_settings(cfg)
    changed = [name for name in now if name in before and before[name] != now[name]]
    changes = [f"{name} {before[name]} → {now[name]}" for name in changed]
    epoch, batches = position["epoch"], position["iterations_in_epoch"]
    if not changes and batches % update_freq(cfg, epoch):
        changes = [f"position {batches} is not a multiple of --update-freq {update_freq(cfg, epoch)}"]
    if not changes:
        return
    updates = state["optimizer_history"][-1]["num_updates"]
    position.update(epoch=epoch + 1, iterations_in_epoch=0)
    logger.warning(
        f"the batches have changed ({', '.join(changes)}): resuming at epoch {epoch + 1} after update {updates}; "
        f"the rest of epoch {epoch} is skipped"
    )


@step()
def adapt_checkpoint(trainer: Any, state: Any, filename: str) -> None:
    """Adapt a checkpoint that a trainer has read, unless its position is not used."""
    cfg = trainer.cfg.checkpoint
    if not cfg.reset_dataloader and filename != cfg.finetune_from_model:
        adapt(state, trainer.cfg)


def patch_iterator(module: ModuleType) -> None:
    """Wrap `EpochBatchIterator._get_iterator_for_epoch` of `fairseq.data.iterators`."""

    @wrap(module.EpochBatchIterator)
    def _get_iterator_for_epoch(original, self, *args, **options):
        if not (self.skip_remainder_batch and fault_tolerance.is_on()):
            return original(self, *args, **options)
        with replaced(self, skip_remainder_batch=False):
            iterator = original(self, *args, **options)
        return None if iterator is None else iterator.take(len(iterator) - 1)

"""Finish a save that was interrupted before `checkpoint_last.pt`, the last of its files.

All files of a save have the same content. fairseq decides which files these are, and which older ones it removes;
instead of writing the state of a trainer, it copies the file that exists.
"""

import copy
import logging
import os
from types import SimpleNamespace
from typing import Any, Optional

from fairseq_modern.fault_tolerance.checkpoints import LAST, Checkpoint, is_valid

logger = logging.getLogger(__name__)


def restore_last(module: Any, cfg: Any, latest: Optional[Checkpoint]) -> None:
    """Copy the latest valid checkpoint, if any, to `checkpoint_last.pt` and the other files of its save.

    `module`: `fairseq.checkpoint_utils`, with the settings `cfg`.
    """
    last = os.path.join(cfg.save_dir, LAST)
    if latest is None or latest.path == last:
        return
    if os.path.exists(last) and not is_valid(last):
        os.replace(last, last + ".damaged")
        logger.warning(f"{last} is damaged; renamed it to {LAST}.damaged")
    logger.warning(f"resuming from {latest.path}, the latest valid checkpoint ({latest.updates} updates)")
    finish_save(module, cfg, latest)


def finish_save(module: Any, cfg: Any, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint of the folder in `cfg` to all files to which fairseq saves at its update, `checkpoint_last.pt`
    included.
    """

    def save(file: str, _: Any) -> None:
        if os.path.abspath(file) != os.path.abspath(checkpoint.path):
            module.PathManager.copy(checkpoint.path, file, overwrite=True)

    trainer = SimpleNamespace(
        data_parallel_rank=0,
        should_save_checkpoint_on_current_rank=True,
        checkpoint_suffix="",
        consolidate_optimizer=lambda: None,
        get_num_updates=lambda: checkpoint.updates,
        save_checkpoint=save,
    )
    position, best = checkpoint.extra["train_iterator"], checkpoint.extra.get("best")
    ends_epoch = position.get("iterations_in_epoch") == 0
    epoch_itr = SimpleNamespace(
        epoch=position["epoch"] - ends_epoch, end_of_epoch=lambda: ends_epoch, state_dict=lambda: position
    )
    cfg = copy.copy(cfg)
    cfg.write_checkpoints_asynchronously = False  # fairseq would not copy
    state = vars(module.save_checkpoint)  # fairseq keeps the best score of the run here
    before = dict(state)
    if best is not None:
        state["best"] = best
    try:
        module.save_checkpoint(cfg, trainer, epoch_itr, None if best is None else checkpoint.extra.get("val_loss"))
    finally:
        state.clear()
        state.update(before)

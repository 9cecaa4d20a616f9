"""Finish a save that was interrupted before `checkpoint_last.pt`, the last of its files.

All files of a save have the same content. fairseq decides which files these are, and which older ones it removes;
instead of writing the state of a trainer, it copies the file that exists.
"""

import copy
import os
from types import SimpleNamespace
from typing import Any, Dict


def finish_save(module: Any, cfg: Any, path: str, updates: int, extra: Dict[str, Any]) -> None:
    """Copy a checkpoint to all files to which fairseq saves at its update, `checkpoint_last.pt` included.

    Args:
        module: `fairseq.checkpoint_utils`.
        cfg: settings of the section `checkpoint`.
        path: of the checkpoint, in the folder of `cfg`.
        updates: its number of updates.
        extra: its `train_iterator`, and `val_loss` and `best` if it has them.
    """

    def save(file: str, _: Any) -> None:
        if os.path.abspath(file) != os.path.abspath(path):
            module.PathManager.copy(path, file, overwrite=True)

    trainer = SimpleNamespace(
        data_parallel_rank=0,
        should_save_checkpoint_on_current_rank=True,
        checkpoint_suffix="",
        consolidate_optimizer=lambda: None,
        get_num_updates=lambda: updates,
        save_checkpoint=save,
    )
    position, best = extra["train_iterator"], extra.get("best")
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
        module.save_checkpoint(cfg, trainer, epoch_itr, None if best is None else extra.get("val_loss"))
    finally:
        state.clear()
        state.update(before)

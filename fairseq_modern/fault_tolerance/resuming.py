"""What a training resumes from after it was killed.

As published, fairseq looks at `checkpoint_last.pt` only, and starts from scratch where that or a --restore-file is not
there. Here, before a training loads anything, the first process

- waits until no other training works in the folder, and removes unfinished files (`folder`);
- where `checkpoint_last.pt` is missing or damaged, puts the newest whole checkpoint of the folder in its place. A whole
  `checkpoint_last.pt` is what training resumes from, however it came there: it may have been put there.

A --restore-file that is not there is refused.
"""

import logging
import os
import zipfile
from types import ModuleType
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from fairseq_modern import fault_tolerance
from fairseq_modern.errors import CheckpointError
from fairseq_modern.fault_tolerance.folder import CHECKPOINT, lock
from fairseq_modern.files import remove_stale_temp_files
from fairseq_modern.loading import check_sums, unpickle
from fairseq_modern.patching import wrap

logger = logging.getLogger(__name__)

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


class Checkpoint(NamedTuple):
    """A checkpoint that training can resume from."""

    path: str
    updates: int
    best: bool  # no earlier checkpoint of its training has a better score


def read(path: str) -> Optional[Checkpoint]:
    """What a file says about itself; None if it is no checkpoint to resume from. `is_valid` tells if its data are."""
    try:
        mapped = zipfile.is_zipfile(path)  # else of torch < 1.6, or damaged
        state = unpickle(path, map_location="cpu", mmap=mapped or None)
        extra = state["extra_state"]
        extra["train_iterator"]["epoch"]
        if state.get("last_optimizer_state", {}) is None:  # an average
            return None
        score, updates = extra.get("val_loss"), state["optimizer_history"][-1]["num_updates"]
        return Checkpoint(path, updates, best=score is not None and score == extra["best"])
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # a damaged file makes torch raise nearly anything
        return None


def is_valid(path: str) -> bool:
    """Whether all of a file's data are as they were written."""
    if not zipfile.is_zipfile(path):
        return read(path) is not None
    try:
        check_sums(path)
    except Exception:  # so does a damaged directory of an archive
        return False
    return True


def latest_valid_checkpoint(directory: str) -> Optional[Checkpoint]:
    """What training resumes from: a folder's `checkpoint_last.pt`, else the whole checkpoint with the most updates."""
    last = os.path.join(directory, LAST)
    if is_valid(last):
        return read(last) or Checkpoint(last, 0, best=False)  # such as an average; fairseq will say if it will not do
    found = [read(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)]
    readable = [checkpoint for checkpoint in found if checkpoint is not None]
    readable.sort(key=lambda checkpoint: (checkpoint.updates, checkpoint.path), reverse=True)
    return next((checkpoint for checkpoint in readable if is_valid(checkpoint.path)), None)


def complete(directory: str, copy: Any) -> None:
    """Where `checkpoint_last.pt` is missing or damaged, copy the newest whole checkpoint there, and to
    `checkpoint_best.pt` too if it is the best so far.

    Args:
        directory: a `--save-dir`.
        copy: copies a file to a name, whole or not at all.
    """
    newest = latest_valid_checkpoint(directory)
    last, best = os.path.join(directory, LAST), os.path.join(directory, BEST)
    if newest is None or newest.path == last:
        return
    if os.path.exists(last):
        os.replace(last, last + ".damaged")
        logger.warning(f"{last} is damaged; it is now called {LAST}.damaged")
    logger.warning(f"resuming from {newest.path}, the newest whole checkpoint ({newest.updates} updates)")
    if newest.best and newest.path != best:
        copy(newest.path, best, overwrite=True)
    copy(newest.path, last, overwrite=True)


def prepare(cfg: Any, trainer: Any, copy: Any) -> None:
    """Put the checkpoint folder in order before a training resumes in it, as the first process only."""
    directory = cfg.get("save_dir")
    if cfg.get("no_save") or not directory or not os.path.isdir(directory):  # a remote one
        return
    lock(directory)
    for name in remove_stale_temp_files(directory):
        logger.info(f"removed {name}, left by an interrupted write")
    if cfg.restore_file == LAST and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix:
        complete(directory, copy)


def patch(module: ModuleType) -> None:
    """Wrap how `fairseq.checkpoint_utils` loads what a training resumes from."""

    @wrap(module)
    def load_checkpoint(original: Any, cfg: Any, trainer: Any, **options: Any) -> Any:
        if fault_tolerance.is_on():
            if trainer.is_data_parallel_master:
                prepare(cfg, trainer, module.PathManager.copy)
            if dist.is_initialized() and trainer.data_parallel_world_size > 1 and not trainer.tpu:
                dist.barrier(group=trainer.data_parallel_process_group)
        return original(cfg, trainer, **options)


def patch_trainer(module: ModuleType) -> None:
    """Let `fairseq.trainer.Trainer` refuse a checkpoint that it was told to resume from and that is not there."""

    @wrap(module.Trainer)
    def load_checkpoint(original: Any, self: Any, filename: str, *args: Any, **options: Any) -> Any:
        if fault_tolerance.is_on() and not module.PathManager.isfile(filename):
            default = os.path.join(self.cfg.checkpoint.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")
            if os.path.abspath(filename) != os.path.abspath(default):
                raise CheckpointError(
                    f"expected a checkpoint to resume from, but there is no file {filename}; "
                    "a name without a folder is looked for in the current folder."
                )
        return original(self, filename, *args, **options)

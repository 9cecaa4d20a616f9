"""Defect: training starts from scratch if `checkpoint_last.pt` is missing or damaged, or a --restore-file is missing.

Check: the files. Before a training run loads a checkpoint, the first process

- waits until no other run uses the folder, and removes temporary files of interrupted writes;
- copies the latest valid checkpoint of the folder to `checkpoint_last.pt` if that is missing or damaged. A valid
  `checkpoint_last.pt` stays, whatever its age: the user may have put it there.

A missing --restore-file is an error.
"""

import logging
import os
import re
import zipfile
from types import ModuleType
from typing import Any, List, NamedTuple, Optional

import filelock
import torch
import torch.distributed as dist

from fairseq_modern import fault_tolerance
from fairseq_modern.errors import CheckpointError, UserError
from fairseq_modern.files import acquire_lock, remove_stale_temp_files
from fairseq_modern.loading import unpickle, verify_checksums
from fairseq_modern.patching import wrap

logger = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LAST, BEST, LOCK = "checkpoint_last.pt", "checkpoint_best.pt", ".lock"

_locks: List[filelock.BaseFileLock] = []


class Checkpoint(NamedTuple):
    """A checkpoint from which training can resume."""

    path: str
    updates: int
    best: bool  # no earlier checkpoint of its run has a better score


def read(path: str) -> Optional[Checkpoint]:
    """Return a description of a checkpoint; None if training cannot resume from it. `is_valid` verifies the data."""
    try:
        can_map = zipfile.is_zipfile(path)  # otherwise written by torch < 1.6, or damaged
        state = unpickle(path, map_location="cpu", mmap=can_map or None)
        extra = state["extra_state"]
        extra["train_iterator"]["epoch"]
        if state.get("last_optimizer_state", {}) is None:  # an average
            return None
        score, updates = extra.get("val_loss"), state["optimizer_history"][-1]["num_updates"]
        return Checkpoint(path, updates, best=score is not None and score == extra["best"])
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # torch raises almost any exception for a damaged file
        return None


def is_valid(path: str) -> bool:
    """Whether the data of a checkpoint match their checksums."""
    if not zipfile.is_zipfile(path):
        return read(path) is not None
    try:
        verify_checksums(path)
    except Exception:  # almost any, if the directory of the archive is damaged
        return False
    return True


def latest_valid_checkpoint(directory: str) -> Optional[Checkpoint]:
    """Return `checkpoint_last.pt` if it is valid, otherwise the valid checkpoint with the most updates."""
    last = os.path.join(directory, LAST)
    if is_valid(last):
        return read(last) or Checkpoint(last, 0, best=False)  # an average, for example: fairseq may reject it
    checkpoints = [read(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)]
    readable = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    readable.sort(key=lambda checkpoint: (checkpoint.updates, checkpoint.path), reverse=True)
    return next((checkpoint for checkpoint in readable if is_valid(checkpoint.path)), None)


def restore_last(directory: str, copy: Any) -> None:
    """Copy the latest valid checkpoint to `checkpoint_last.pt` if that is missing or damaged.

    If it is the best so far, also copy it to `checkpoint_best.pt`. `copy` is `PathManager.copy`.
    """
    latest = latest_valid_checkpoint(directory)
    last, best = os.path.join(directory, LAST), os.path.join(directory, BEST)
    if latest is None or latest.path == last:
        return
    if os.path.exists(last):
        os.replace(last, last + ".damaged")
        logger.warning(f"{last} is damaged; renamed it to {LAST}.damaged")
    logger.warning(f"resuming from {latest.path}, the latest valid checkpoint ({latest.updates} updates)")
    if latest.best and latest.path != best:
        copy(latest.path, best, overwrite=True)
    copy(latest.path, last, overwrite=True)


def lock(directory: str) -> None:
    """Exclude other training runs, on all nodes, from a folder until `unlock` or the end of this process."""

    def on_wait() -> None:
        logger.info(f"waiting for another training run in {directory}")

    try:
        _locks.append(acquire_lock(os.path.join(directory, LOCK), on_wait))
    except TimeoutError as error:
        raise UserError(
            f"another training run is active in {directory}; wait until it ends, or give another --save-dir."
        ) from error


def unlock() -> None:
    """Release all locks of this process."""
    while _locks:
        _locks.pop().release()


def prepare_folder(cfg: Any, trainer: Any, copy: Any) -> None:
    """Lock and clean the checkpoint folder, and restore `checkpoint_last.pt`."""
    directory = cfg.get("save_dir")
    if cfg.get("no_save") or not directory or not os.path.isdir(directory):  # or a remote folder
        return
    lock(directory)
    for name in remove_stale_temp_files(directory):
        logger.info(f"removed {name}, left by an interrupted write")
    if cfg.restore_file == LAST and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix:
        restore_last(directory, copy)


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.checkpoint_utils.load_checkpoint`."""

    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **options):
        if fault_tolerance.is_on():
            if trainer.is_data_parallel_master:
                prepare_folder(cfg, trainer, module.PathManager.copy)
            if dist.is_initialized() and trainer.data_parallel_world_size > 1 and not trainer.tpu:
                dist.barrier(group=trainer.data_parallel_process_group)
        return original(cfg, trainer, **options)


def patch_trainer(module: ModuleType) -> None:
    """Wrap `fairseq.trainer.Trainer.load_checkpoint`."""

    @wrap(module.Trainer)
    def load_checkpoint(original, self, filename, *args, **options):
        if fault_tolerance.is_on() and not module.PathManager.isfile(filename):
            default = os.path.join(self.cfg.checkpoint.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")
            if os.path.abspath(filename) != os.path.abspath(default):
                raise CheckpointError(f"there is no checkpoint {filename} (--restore-file).")
        return original(self, filename, *args, **options)

"""Checkpoints from which training can resume, and the latest valid one of a folder."""

import os
import re
import zipfile
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from fairseq_modern.fault_tolerance.command import KEY
from fairseq_modern.loading import unpickle, verify_checksums

CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LAST = "checkpoint_last.pt"
PARTS = ("train_iterator", "val_loss", "best", KEY)


class Checkpoint(NamedTuple):
    """A checkpoint from which training can resume."""

    path: str
    updates: int
    extra: Dict[str, Any]  # the parts of its `extra_state` in `PARTS`

    @property
    def command(self) -> Optional[Dict[str, str]]:
        """The command that wrote it."""
        return self.extra.get(KEY)


def read(path: str) -> Optional[Checkpoint]:
    """Return a description of a checkpoint; None if training cannot resume from it. `is_valid` verifies the data."""
    try:
        can_map = zipfile.is_zipfile(path)  # otherwise written by torch < 1.6, or damaged
        state = unpickle(path, map_location="cpu", mmap=can_map or None)
        extra = state["extra_state"]
        extra["train_iterator"]["epoch"]
        if state.get("last_optimizer_state", {}) is None:  # an average
            return None
        parts = {name: extra[name] for name in PARTS if name in extra}
        return Checkpoint(path, state["optimizer_history"][-1]["num_updates"], parts)
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


def latest_valid_checkpoint(
    directory: str, command: Optional[Dict[str, str]] = None, asynchronous: bool = False
) -> Optional[Checkpoint]:
    """Return `checkpoint_last.pt` if it is valid, otherwise the valid checkpoint with the most updates.

    Args:
        command: prefer the checkpoints that it wrote.
        asynchronous: return the checkpoint with the most updates even if `checkpoint_last.pt` is valid.
    """
    last = os.path.join(directory, LAST)
    if is_valid(last):
        # None for an average, for example: fairseq may reject it
        checkpoint = read(last)
        if checkpoint is None or not asynchronous:
            return checkpoint or Checkpoint(last, 0, {})

    def rank(checkpoint: Checkpoint) -> Tuple[bool, int, str]:
        return command is not None and checkpoint.command == command, checkpoint.updates, checkpoint.path

    paths = [os.path.join(directory, name) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)]
    checkpoints = sorted(filter(None, map(read, paths)), key=rank, reverse=True)
    return next((checkpoint for checkpoint in checkpoints if is_valid(checkpoint.path)), None)

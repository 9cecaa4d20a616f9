"""The checkpoint folder of a training: it is that training's alone, has room, and holds nothing half-written."""

import errno
import logging
import os
import re
import time
from typing import Any, List

import torch

from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LEFT_OVER = re.compile(r"(checkpoint.*|crash)\.pt(\.[0-9a-f]{16})?\.tmp")  # without digits: of an earlier release
PATIENCE = 60  # seconds to wait for another training to leave the folder

_locks: List[int] = []


def remove_left_overs(directory: str) -> None:
    """Remove what was being written when an earlier training was killed."""
    for name in filter(LEFT_OVER.fullmatch, os.listdir(directory)):
        os.remove(os.path.join(directory, name))
        logger.info(f"removed {name}, left over from an interrupted write")


def lock(directory: str) -> None:
    """Keep other trainings out of a folder until `unlock`, or the end of this process and those forked from it.

    Raises:
        UserError: another training is at work there, and was a minute later.
    """
    import fcntl

    descriptor, end, told = os.open(directory, os.O_RDONLY), time.monotonic() + PATIENCE, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                break  # a file system without locks
            if time.monotonic() > end:
                os.close(descriptor)
                raise UserError(
                    f"another training is at work in {directory}, or what a killed one left running; "
                    "end it, or give another --save-dir."
                ) from error
        if not told:
            logger.info(f"waiting for another training, or what is left of one, to leave {directory}")
        told = True
        time.sleep(0.2)
    _locks.append(descriptor)


def unlock() -> None:
    """Let other trainings in."""
    while _locks:
        os.close(_locks.pop())


def number_of_files(cfg: Any) -> int:
    """How many checkpoints a training keeps at the same time, the one being written included.

    Args:
        cfg: fairseq's configuration. Those kept without end count once.
    """
    keep, saved = cfg.checkpoint, 1
    if not keep.no_last_checkpoints:
        saved += 1
    if not cfg.dataset.disable_validation:
        saved += 1 + max(0, keep.keep_best_checkpoints)
    if not keep.no_epoch_checkpoints:
        saved += max(1, keep.keep_last_epochs)
    if keep.save_interval_updates > 0:
        saved += max(1, keep.keep_interval_updates)
    return saved


def check_space(cfg: Any, model: torch.nn.Module) -> None:
    """Raise UserError if the disk has no room for the checkpoints of a training that is about to begin.

    One takes what the largest present one takes, else 4 bytes for each parameter (2 in half precision) and the 8 of
    Adam's two moments, of which no optimizer of fairseq has more.
    """
    directory = cfg.checkpoint.save_dir
    present = [
        os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)
    ]
    parameters = list(model.parameters())
    estimate = sum(p.numel() * (p.element_size() + 8 * p.requires_grad) for p in parameters)
    size = max(present, default=estimate)
    number = max(1, number_of_files(cfg) - len(present))
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < number * size:
        raise UserError(
            f"{directory} has {free / 1e6:,.1f} MB free, but this training will write {number} more "
            f"checkpoint{'s' * (number > 1)} of {size / 1e6:,.1f} MB there; make room or give another --save-dir."
        )

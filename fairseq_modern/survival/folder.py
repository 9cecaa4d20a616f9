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
LOCK = ".lock"
PATIENCE = 60  # seconds to wait for another training to leave the folder

_locks: List[int] = []


def remove_left_overs(directory: str) -> None:
    """Remove what was being written when an earlier training was killed."""
    for name in filter(LEFT_OVER.fullmatch, os.listdir(directory)):
        os.remove(os.path.join(directory, name))
        logger.info(f"removed {name}, left over from an interrupted write")


def lock(directory: str) -> None:
    """Keep other trainings out of a folder until `unlock` or the end of this process, on other nodes too.

    NFS and Lustre tell all nodes of a lock only where it is fcntl's, on a file that is open for writing: `.lock`.

    Raises:
        UserError: another training is at work there, and was a minute later.
    """
    import fcntl

    descriptor = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
    end, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def checkpoint_size(cfg: Any, model: torch.nn.Module) -> int:
    """Bytes of a checkpoint with the state of Adam, of which no optimizer of fairseq has more.

    fairseq writes parameters in fp32, whatever they are; under `--fp16` and `--bf16` the optimizer has them once more.
    One with several names, such as a shared embedding, is written once for each where it is cast or copied for that.
    """
    half = (cfg.common.fp16 or cfg.common.bf16) and not (
        cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
    )
    size, seen = 0, set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        new, number = parameter not in seen, parameter.numel()
        if new or parameter.is_cuda or parameter.element_size() < 4:
            size += number * max(4, parameter.element_size())
        if new and parameter.requires_grad:
            size += number * (8 + 4 * half)
        seen.add(parameter)
    return size


def check_space(cfg: Any, model: torch.nn.Module) -> None:
    """Raise UserError if the disk has no room for the checkpoints of a training that is about to begin.

    One takes what the largest present one takes, else its `checkpoint_size`. A quota is not seen.
    """
    directory = cfg.checkpoint.save_dir
    present = [
        os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)
    ]
    size = max(present, default=checkpoint_size(cfg, model))
    number = max(1, number_of_files(cfg) - len(present))
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < number * size:
        raise UserError(
            f"{directory} has {free / 1e6:,.1f} MB free, but this training will write {number} more "
            f"checkpoint{'s' * (number > 1)} of {size / 1e6:,.1f} MB there; make room or give another --save-dir."
        )

"""The checkpoint folder of a training: it is that training's alone, and holds nothing half-written."""

import errno
import logging
import os
import re
import time
from typing import List

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

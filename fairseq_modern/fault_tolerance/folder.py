"""The checkpoint folder of a training run: one run at a time works there."""

import logging
import os
import re
from typing import List

import filelock

from fairseq_modern.errors import UserError
from fairseq_modern.files import acquire_lock

logger = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LOCK = ".lock"

_locks: List[filelock.BaseFileLock] = []


def lock(directory: str) -> None:
    """Keep other training runs out of a folder until `unlock` or the end of this process, on other nodes too.

    Raises:
        UserError: another run is active there, and was a minute later.
    """
    waiting = f"waiting for another training run to leave {directory}"
    try:
        _locks.append(acquire_lock(os.path.join(directory, LOCK), lambda: logger.info(waiting)))
    except TimeoutError as error:
        raise UserError(
            f"another training run is active in {directory}; wait until it ends, or give another --save-dir."
        ) from error


def unlock() -> None:
    """Let other training runs in."""
    while _locks:
        _locks.pop().release()

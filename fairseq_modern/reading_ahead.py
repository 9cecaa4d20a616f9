"""Patches: a training that ends amid an epoch may abort (SIGABRT, status 134) instead of ending with its own status.

As published, a daemon thread reads batches ahead (`--data-buffer-size`). Where the end of Python finds it at work in
torch, torch's C++ code aborts the process (https://github.com/pytorch/pytorch/issues/38228). Here the thread is asked
to stop, and waited for, before Python ends.
"""

import atexit
import contextlib
import queue
import threading
import time
from types import ModuleType
from typing import Any

from fairseq_modern.patching import names

PATIENCE = 10  # seconds for the batch that is being read


def stop(reader: Any) -> None:
    """Have the thread end after the batch that it reads, with room for it in its queue."""
    reader._max_len = 0
    end = time.monotonic() + PATIENCE
    while reader.is_alive() and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            reader._queue.get(timeout=0.05)


def patch(module: ModuleType) -> None:
    """Stop the threads of `fairseq.data.iterators` at the end of Python."""
    kind = module.BackgroundConsumer
    if not {"_max_len", "_queue"} <= names(kind.run):
        return

    @atexit.register
    def stop_all() -> None:
        for thread in threading.enumerate():
            if isinstance(thread, kind):
                stop(thread)

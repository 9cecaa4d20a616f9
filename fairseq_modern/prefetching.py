"""Defect: a training run that ends within an epoch may abort (SIGABRT, status 134) and lose its exit status.

Check: the thread that reads batches ahead (`--data-buffer-size`) runs when Python exits; it is then stopped first.
torch aborts a process in which a daemon thread outlives Python (https://github.com/pytorch/pytorch/issues/38228).
"""

import atexit
import contextlib
import queue
import threading
import time
from types import ModuleType
from typing import Any

from fairseq_modern.patching import names

TIMEOUT = 10  # seconds to wait for the current batch


def stop(reader: Any) -> None:
    """Let the thread finish its current batch, with space for it in the queue, and then end."""
    reader._max_len = 0
    end = time.monotonic() + TIMEOUT
    while reader.is_alive() and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            reader._queue.get(timeout=0.05)


def patch(module: ModuleType) -> None:
    """Stop the threads of `fairseq.data.iterators` at exit."""
    consumer = module.BackgroundConsumer
    if not {"_max_len", "_queue"} <= names(consumer.run):
        return

    @atexit.register
    def stop_all() -> None:
        for thread in threading.enumerate():
            if isinstance(thread, consumer):
                stop(thread)

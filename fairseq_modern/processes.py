"""Processes of a training run: the exit status of those that can resume, and the end of those without a parent."""

import ctypes
import os
import signal
import sys

#: exit status of a process that stopped on request and saved its state (EX_TEMPFAIL in sysexits.h: try again)
STOPPED = 75
PR_SET_PDEATHSIG = 1  # in <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the process `parent` ends for any reason, or has ended (on Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)

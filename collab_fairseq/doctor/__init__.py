"""Can this machine run a recipe? Checks that each give a `Finding`: what was found, and what to do where it is bad.

Importing this needs the standard library alone: torch and fairseq are looked at in a Python of their own (`probe.py`).
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Iterator, Optional

import collab_fairseq

from . import checks, trial
from .checks import Finding

__all__ = ["Finding", "checks", "examine", "trial"]


def examine(data: Optional[str] = None, updates: bool = True) -> Iterator[Finding]:
    """All checks, those first whose failing makes others fail.

    Args:
        data: folder of fairseq-preprocess, or None.
        updates: make five updates of a small model.
    """
    yield from checks.packages(sys.version_info[:3])
    folder = os.path.dirname(os.path.abspath(collab_fairseq.__file__))
    found = trial.ask(folder)
    yield from checks.gpus(found["torch"], driver=os.path.exists("/proc/driver/nvidia/version"))
    yield checks.cpu()
    yield checks.hook(found["hook"])
    yield checks.user_dir(found["user_dir"])
    if data:
        yield checks.data(data)
    if updates and ("error" in found["torch"] or "error" in found["user_dir"]):
        yield Finding("trial run", "warn", "not tried", checks.FIRST)
    elif updates:
        with tempfile.TemporaryDirectory(prefix="collab-doctor-") as work:
            yield trial.trial(found["torch"]["gpus"], folder, Path(work))

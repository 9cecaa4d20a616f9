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
    torch, folder = trial.ask("torch"), os.path.dirname(os.path.abspath(collab_fairseq.__file__))
    yield from checks.cards(torch, driver=os.path.exists("/proc/driver/nvidia/version"))
    yield checks.cpu()
    yield checks.hook(trial.ask("hook"))
    models = trial.ask("user_dir", folder)
    yield checks.user_dir(models)
    if data:
        yield checks.data(data, trial.ask("data", data))
    if updates and ("error" in torch or "error" in models):
        yield Finding("trial run", "warn", "not tried", checks.MEND)
    elif updates:
        with tempfile.TemporaryDirectory(prefix="collab-doctor-") as work:
            yield trial.trial(torch["cards"], folder, Path(work))

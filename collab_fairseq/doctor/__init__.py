"""Can this machine run a recipe? Checks that each give a `Finding`: what was found, and what to do where it is bad.

>>> from collab_fairseq import doctor
>>> for finding in doctor.examine(data="data/multi30k/data-bin"):  # doctest: +SKIP
...     print(finding)

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

#: those that --keep-interval-updates 5 leaves, last, best, a new one and its copy
CHECKPOINTS = 9
#: types of the joined dictionary of the paper's data
TYPES = 32768


def examine(
    data: Optional[str] = None,
    save_dir: str = ".",
    checkpoints: int = CHECKPOINTS,
    arch: str = "transformer_collab",
    parameters: Optional[int] = None,
    updates: bool = True,
) -> Iterator[Finding]:
    """All checks, those first whose failing makes others fail.

    Args:
        data: folder of fairseq-preprocess, or None.
        save_dir: where checkpoints will go; need not exist.
        checkpoints: how many must find room there at once.
        arch: whose size they have, at its defaults, unless `parameters` says it.
        updates: make five updates of a small model.
    """
    yield from checks.packages(sys.version_info[:3])
    torch, folder = trial.ask("torch"), os.path.dirname(os.path.abspath(collab_fairseq.__file__))
    yield from checks.cards(torch, driver=os.path.exists("/proc/driver/nvidia/version"))
    yield checks.cpu()
    yield checks.hook(trial.ask("hook"))
    models = trial.ask("user_dir", folder, arch, (checks.types(data) if data else 0) or TYPES)
    yield checks.user_dir(models, arch)
    yield checks.disk(save_dir, parameters or models.get("parameters"), checkpoints)
    if data:
        yield checks.data(data)
    if updates and ("error" in torch or "error" in models):
        yield Finding("trial run", "warn", "not tried", checks.MEND)
    elif updates:
        with tempfile.TemporaryDirectory(prefix="collab-doctor-") as work:
            yield trial.trial(torch["cards"], folder, Path(work))

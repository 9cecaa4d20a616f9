"""Patches `--user-dir` where Python has imported the package before, as a notebook does.

As published, fairseq then registers none of its models and tasks, and fails to find them later.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.utils.import_user_module`."""

    @wrap(module)
    def import_user_module(original: Any, args: Any) -> None:
        given = getattr(args, "user_dir", None)
        folder = os.path.abspath(given) if given else ""
        name = os.path.basename(folder)
        left_out = name in sys.modules and folder not in getattr(module.import_user_module, "memo", ())
        original(args)
        for kind in ("tasks", "models"):
            if left_out and os.path.isdir(os.path.join(folder, kind)):
                register = getattr(importlib.import_module(f"fairseq.{kind}"), f"import_{kind}")
                register(os.path.join(folder, kind), f"{name}.{kind}")

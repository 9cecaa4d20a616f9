"""The Python interpreter of data preparation and recipes, and of the programs that they start.

NAME.sh and recipes/NAME/run.sh take $PYTHON, or the first `python` or `python3` on PATH. This module and the `__main__`
modules need only the standard library, so that any interpreter can report that it lacks the project.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: the interpreter for the programs that are started
PYTHON = os.path.abspath(shutil.which(os.environ.get("PYTHON") or sys.executable) or sys.executable)


def pass_on() -> None:
    """Start programs with this interpreter and this checkout; exit with status 2 if the project is not installed."""
    os.environ["PYTHON"] = PYTHON
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for package in ("torch", "fairseq", "hydra"):
        if not find_spec(package):
            sys.stderr.write(f"error: '{sys.executable}' has no {package}; install the project first or set $PYTHON\n")
            sys.exit(2)

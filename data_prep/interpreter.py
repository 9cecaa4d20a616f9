"""The Python interpreter of data preparation and recipes, and of the programs that they start.

Any interpreter can start them, since this module and the `__main__` modules need only the standard library: NAME.sh and
recipes/NAME/run.sh take $PYTHON, or the first `python` or `python3` on PATH. Then --python PROGRAM selects another one.
"""

import argparse
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import List

ROOT = Path(__file__).resolve().parents[1]
#: the interpreter for the programs that are started
PYTHON = os.path.abspath(shutil.which(os.environ.get("PYTHON") or sys.executable) or sys.executable)


def select(module: str, argv: List[str]) -> List[str]:
    """Continue with `python -m module` in the interpreter that --python names, if there is one.

    Returns:
        The arguments without this option.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--python", default=PYTHON)
    selected, words = parser.parse_known_args(argv)
    program = shutil.which(selected.python)
    if not program:
        sys.stderr.write(f"error: --python must be an interpreter; got '{selected.python}'\n")
        sys.exit(2)
    os.environ["PYTHON"] = os.path.abspath(program)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if os.environ["PYTHON"] != PYTHON:
        sys.stderr.flush()
        os.execv(program, [program, "-m", module, *words])
    for package in ("torch", "fairseq", "hydra"):
        if not find_spec(package):
            sys.stderr.write(f"error: '{program}' has no {package}; install the project first or give --python\n")
            sys.exit(2)
    return words

"""Programs of fairseq and of this project that a recipe calls."""

import os
import shlex
import sysconfig
from typing import Any

from collab_fairseq.cli.main import build_parser

from .settings import PYTHON, RecipeError


def tool(name: str) -> str:
    """A console script of this Python."""
    path = os.path.join(sysconfig.get_path("scripts"), name)
    if not os.access(path, os.X_OK):
        raise RecipeError(
            f"'{PYTHON}' has no {name} ({path} is missing); install the project first (README.md) or name "
            "another --python"
        )
    return path


def collab(*words: Any) -> None:
    """Do what `collab` does with these words, in this process."""
    argv = [str(word) for word in words]
    args = build_parser().parse_args(argv)
    args.command_line = shlex.join(["collab", *argv])  # for records
    status = args.run(args)
    if status:
        raise RecipeError(f"collab {words[0]} ended with status {status}")

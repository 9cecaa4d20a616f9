"""Make the tables on Markdown pages again, or check that they are up to date.

    collab tables README.md docs/*.md
    collab tables README.md --check

A table stands between two comments. The first has its name and the command that prints it:

    <!-- results: collab table results/runs/multi30k-*-u2500.json --columns heads,key_dim,sacrebleu -->
    …
    <!-- /results -->

The command is `collab table …`, `cat FILE` for the caption of a figure, `python -m recipes NAME PROGRAM …` or
`python -m MODULE …`, for a module of the folder benchmarks, and runs in this process, without a shell: words are quoted
and patterns expanded as in bash, relative to the current folder. It may continue on further lines. Pages without tables
are left out.
"""

import argparse
import functools
import glob
import importlib
import importlib.util
import logging
import os
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, List

from collab_fairseq.files import write_text
from collab_fairseq.records import pages
from fairseq_modern.errors import UserError

from . import table

HELP = "make the tables on pages again, by the commands above them"
#: folders with modules that have a function `markdown(arguments, folder)`
STUDIES = ("recipes", "benchmarks")

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="+", metavar="PAGE", help="Markdown pages")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is not up to date")


def run(args: argparse.Namespace) -> int:
    stale = []
    for page in args.pages:
        before = Path(page).read_bytes().decode("utf-8")
        folder = os.path.dirname(os.path.abspath(page))
        after, changed = pages.remake(before, functools.partial(markdown, folder=folder), page)
        stale += [f"{name} in {page}" for name in changed]
        if changed and not args.check:
            write_text(after, page)
            logger.info("wrote %s in %s", ", ".join(changed), page)
        elif not changed and after is not before:
            logger.info("%s is up to date", page)
    if stale and args.check:
        raise UserError(f"not up to date: {', '.join(stale)}; run this command without --check")
    return 0


def markdown(command: str, folder: str) -> str:
    """The table that a command prints; ``folder``: of the page, for relative links to records."""
    program, *arguments = words(command) or [""]
    if program == "collab" and arguments[:1] == ["table"]:
        return table.markdown(arguments[1:], folder)
    if program == "cat":
        return "".join(Path(file).read_text(encoding="utf-8") for file in arguments)
    end = 4 if arguments[1:2] == ["recipes"] else 2  # python -m recipes NAME PROGRAM
    name = ".".join(arguments[1:end]) if program == "python" and arguments[:1] == ["-m"] else ""
    if name.partition(".")[0] not in STUDIES:
        raise UserError(
            f"the command must be collab table, cat FILE, or python -m MODULE in {' or '.join(STUDIES)}; got {command}"
        )
    text: str = _module(name).markdown(arguments[end:], folder)
    return text


def _module(name: str) -> Any:
    """A module of the repository in the current folder, as `python -m` finds it."""
    package = name.partition(".")[0]
    if package not in sys.modules:
        spec = PathFinder.find_spec(package, [os.getcwd(), *sys.path])
        if spec is None or spec.loader is None:
            raise UserError(f"the current folder must have the package {package}; got {os.getcwd()}")
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(name)


def words(command: str) -> List[str]:
    """The words of a command, with patterns of files expanded; as in bash, a pattern without matches stays."""
    return [file for word in shlex.split(" ".join(command.split())) for file in sorted(glob.glob(word)) or [word]]

"""Console programs of fairseq and of this project, as recipes call them."""

import os
import shlex
import sysconfig
from typing import Any

from collab_fairseq.cli.main import build_parser
from fairseq_modern.errors import UserError


def tool(name: str) -> str:
    """The path of a console script of this Python environment."""
    return os.path.join(sysconfig.get_path("scripts"), name)


def collab(*words: Any) -> None:
    """Run a `collab` subcommand in this process."""
    argv = [str(word) for word in words]
    args = build_parser().parse_args(argv)
    args.command_line = shlex.join(["collab", *argv])  # for records
    status = args.run(args)
    if status:
        raise UserError(f"collab {words[0]} failed with exit status {status}")

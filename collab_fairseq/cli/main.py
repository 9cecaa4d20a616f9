"""`collab`: entry point and list of the subcommands.

A subcommand is a module of this package with `HELP` (one line), `add_arguments(parser)` and, unless it has its own
subcommands, `run(args) -> int`. It imports slow modules (torch, fairseq, sacrebleu) inside `run`, so `collab --help`
stays fast. A new subcommand is one file and one line below.
"""

import argparse
import importlib
import logging
import sys
from typing import Any, Callable, List, Optional

import collab_fairseq
from fairseq_modern.errors import is_user_error

from .options import add_command

#: in the order of `collab --help`
COMMANDS = ("average", "translate", "export", "score", "reparam", "heads", "table", "tables", "doctor", "user-dir")


def build_parser() -> argparse.ArgumentParser:
    description = "Tools for fairseq transformers with collaborative attention heads."
    parser = argparse.ArgumentParser(prog="collab", description=description)
    parser.add_argument("--version", action="version", version=f"collab_fairseq {collab_fairseq.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"collab_fairseq.cli.{name.replace('-', '_')}")
        run = getattr(module, "run", None)
        module.add_arguments(add_command(commands, name, str(module.__doc__), run, module.HELP))
    return parser


def guarded(name: str, run: Callable[[], Any]) -> int:
    """Call `run` and return its exit status (None: 0).

    User errors and errors of the operating system are shown as one line on standard error, with exit status 1. Other
    errors are bugs and keep their traceback.
    """
    try:
        return int(run() or 0)
    except BrokenPipeError:  # for example, our output is piped to `head`
        sys.stderr.close()
        return 1
    except Exception as error:
        if not (is_user_error(error) or isinstance(error, OSError)):
            raise
        sys.stderr.write(f"{name}: error: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand and return its exit status."""
    args = build_parser().parse_args(argv)
    name = args.parser.prog  # includes the subcommand
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s", stream=sys.stderr)
    return guarded(name, lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())

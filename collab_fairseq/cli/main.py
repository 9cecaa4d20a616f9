"""`collab`: entry point and list of the subcommands.

A subcommand is a module of this package with `HELP` (one line), `add_arguments(parser)` and, unless it has subcommands
of its own, `run(args) -> int`. It imports what is slow (torch, fairseq, sacrebleu) inside `run`, so that
`collab --help` answers at once. A new subcommand is one file and one line below.
"""

import argparse
import logging
import sys
from typing import Any, Callable, List, Optional

import collab_fairseq
from fairseq_modern.errors import is_user_error

from .options import add_commands

#: in the order of `collab --help`: what people type first, what recipes call last
COMMANDS = ("average", "translate", "export", "score", "reparam", "heads", "bench", "table", "doctor", "user-dir")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `collab` with all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="collab", description="Tools around fairseq for transformers with collaborative attention heads."
    )
    parser.add_argument("--version", action="version", version=f"collab_fairseq {collab_fairseq.__version__}")
    add_commands(parser, "command", {name: name.replace("-", "_") for name in COMMANDS})
    return parser


def guarded(name: str, run: Callable[[], Any]) -> int:
    """The exit status of `run`, which may give none; also for the scripts of recipes.

    A user error, and any error of the operating system, is shown as one line on standard error with its `exit_status`,
    or 1. Other errors are faults of the program and keep their traceback.
    """
    try:
        return int(run() or 0)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return 1
    except Exception as error:
        if not (is_user_error(error) or isinstance(error, OSError)):
            raise
        sys.stderr.write(f"{name}: error: {' '.join(str(error).split())}\n")
        return int(getattr(error, "exit_status", 1))
    except KeyboardInterrupt:
        return 130


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; returns the exit status."""
    args = build_parser().parse_args(argv)
    name = args.parser.prog  # with the subcommand
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s", stream=sys.stderr)
    return guarded(name, lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())

"""`collab`: entry point and list of the subcommands.

A subcommand is a module of this package with `HELP` (one line), `add_arguments(parser)` and `run(args) -> int`. It
imports what is slow (torch, fairseq, sacrebleu) inside `run`, so that `collab --help` answers at once. A new subcommand
is one file and one line below.
"""

import argparse
import importlib
import logging
import sys
from typing import List, Optional

import collab_fairseq

COMMANDS = {
    "average": "collab_fairseq.cli.average",
    "bench": "collab_fairseq.cli.bench",
    "doctor": "collab_fairseq.cli.doctor",
    "export": "collab_fairseq.cli.export",
    "heads": "collab_fairseq.cli.heads",
    "record": "collab_fairseq.cli.record",
    "reparam": "collab_fairseq.cli.reparam",
    "score": "collab_fairseq.cli.score",
    "table": "collab_fairseq.cli.table",
    "translate": "collab_fairseq.cli.translate",
    "user-dir": "collab_fairseq.cli.user_dir",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `collab` with all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="collab", description="Tools around fairseq for transformers with collaborative attention heads."
    )
    parser.add_argument("--version", action="version", version=f"collab_fairseq {collab_fairseq.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; returns the exit status.

    An error whose class has a true attribute `user_error`, and any error of the operating system, is shown as one line
    on standard error with status 1. Other errors are faults of the program and keep their traceback.
    """
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format=f"collab {args.command}: %(message)s", stream=sys.stderr)
    try:
        return int(args.run(args))
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return 1
    except Exception as error:
        if not (getattr(error, "user_error", False) or isinstance(error, OSError)):
            raise
        sys.stderr.write(f"collab {args.command}: error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

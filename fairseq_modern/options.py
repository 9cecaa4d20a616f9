"""Mends fairseq's command line.

As published, `--bf16` is taken for `--tpu`, so that training in bfloat16 looks for torch_xla, on a GPU as well: here
only `--tpu` means a TPU. `--help` beside `--arch` shows the flags of that model, too. `fairseq-validate` without
`--task` takes that of the checkpoint, and a name that no one has registered is an error that names `--user-dir`.
"""

import argparse
import functools
import re
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap


@functools.lru_cache(maxsize=1)
def task_of(path: str) -> Optional[str]:
    """The task that a checkpoint was trained for."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    task = load_checkpoint_to_cpu(path)["cfg"]["task"]
    return getattr(task, "_name", None) or getattr(task, "task", None)


def default_task() -> Optional[str]:
    """That of the checkpoint of this command line (`--path`), unless it names one itself (`--task`)."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--path", "--task"):
        parser.add_argument(flag)
    given = parser.parse_known_args()[0]
    return task_of(given.path) if given.task is None and given.path is not None else None


def patch(module: ModuleType) -> None:
    """Wrap the parsers of `fairseq.options` and what they make of a command line."""

    @wrap(module)
    def parse_args_and_arch(
        original: Any, parser: Any, input_args: Optional[Sequence[str]] = None, *rest: Any, **options: Any
    ) -> Any:
        words = list(sys.argv[1:] if input_args is None else input_args)
        has_arch = any(word in ("-a", "--arch") or word.startswith("--arch=") for word in words)
        if has_arch and not {"-h", "--help"}.isdisjoint(words):

            def parse_known_args(*_: Any) -> Any:
                """The first of two calls, which is to find the model whose flags are then added."""
                del parser.parse_known_args
                return parser.parse_known_args([word for word in words if word not in ("-h", "--help")])

            parser.parse_known_args = parse_known_args
        parsed = original(parser, input_args, *rest, **options)
        args = parsed[0] if isinstance(parsed, tuple) else parsed
        given = "--tpu" in (sys.argv[1:] if input_args is None else input_args)
        if getattr(args, "tpu", False) and not given and not parser.get_default("tpu"):
            args.tpu = False
        return parsed

    @wrap(module)
    def get_parser(original: Any, *args: Any, **options: Any) -> Any:
        parser = original(*args, **options)
        original_error = parser.error

        def error(message: str) -> None:
            absent = re.match(r"argument (?:-a/)?(--(?:arch|task|criterion|optimizer))\b.* choice: '(\S+)'", message)
            if absent is not None:
                raise UserError(f"fairseq has no {absent[1]} {absent[2]}; add the --user-dir that brings it.")
            original_error(message)

        parser.error = error
        return parser

    @wrap(module)
    def get_validation_parser(original: Any, task: Optional[str] = None) -> Any:
        return original(task or default_task())

"""Patches fairseq's command line.

As published, `--bf16` is taken for `--tpu`, so that training in bfloat16 looks for torch_xla, on a GPU as well: here
only `--tpu` means a TPU. `--help` beside `--arch` shows the flags of that model, too. `fairseq-validate` without
`--task` reads its command line as fairseq-generate does; it validates with the task of the checkpoint either way. A
name that no one has registered is an error that names `--user-dir`.
"""

import re
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap


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
        if getattr(args, "tpu", False) and "--tpu" not in words and not parser.get_default("tpu"):
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
        return original(task or "translation")

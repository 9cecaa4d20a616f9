"""Defects of reading text.

- A carriage return within a sentence ends the line, which shifts source against target without a warning. Check: text
  is opened without `newline`. Lines then end at "\\n" only; "\\r\\n" is read as "\\n", as before.
- fairseq-preprocess accepts a source and a target with different numbers of lines. Check: the numbers, before it writes
  anything.
"""

import fileinput
import io
import os
from types import ModuleType
from typing import Any, Iterator, List

from fairseq_modern.errors import UserError
from fairseq_modern.patching import StandIn, wrap


class Lines(io.TextIOWrapper):
    """Text whose lines end at "\\n" or "\\r\\n"; iteration calls `readline`."""

    def readline(self, *size: Any) -> str:  # type: ignore[override]
        line = super().readline(*size)
        return line[:-2] + "\n" if line.endswith("\r\n") else line


def open_lines(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    """Replaces `open`."""
    if mode != "r" or args or options.get("newline") is not None:
        return open(file, mode, *args, **options)
    return Lines(open(file, "rb"), newline="\n", **options)


def patch(module: ModuleType) -> None:
    """Replace `open` in a module that reads sentences."""
    module.open = open_lines  # type: ignore[attr-defined]


def patch_interactive(module: ModuleType) -> None:
    """Replace how `fairseq_cli.interactive` opens files; lines of standard input end at newlines only."""

    def hook_encoded(encoding: str) -> Any:
        return lambda path, mode: open_lines(path, mode, encoding=encoding)

    module.fileinput = StandIn(fileinput, hook_encoded=hook_encoded)  # type: ignore[attr-defined]


def number_of_lines(path: str) -> int:
    """Return the number of lines of a file; the last one may lack its "\\n"."""
    count, last = 0, b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def parallel_files(args: Any, file_name: Any) -> Iterator[List[str]]:
    """Yield files of fairseq-preprocess that must have the same number of lines; `file_name` is its function."""
    prefixes = [args.trainpref] if args.trainpref else []
    for listed in (args.validpref, args.testpref):
        prefixes += listed.split(",") if listed else []
    for prefix in prefixes:
        files = [file_name(prefix, lang) for lang in (args.source_lang, args.target_lang)]
        if args.align_suffix and os.path.exists(file_name(prefix, args.align_suffix)):
            files.append(file_name(prefix, args.align_suffix))
        if args.alignfile and prefix == args.trainpref:
            files.append(args.alignfile)
        yield files


def patch_preprocess(module: ModuleType) -> None:
    """Replace `open` in `fairseq_cli.preprocess`, and wrap its `main`."""
    patch(module)

    @wrap(module)
    def main(original, args):
        if not args.only_source and not args.dict_only:
            for first, *others in parallel_files(args, module._file_name):
                expected = number_of_lines(first)
                for other in others:
                    number = number_of_lines(other)
                    if number != expected:
                        raise UserError(
                            f"{first} and {other} must have the same number of lines; got {expected} and {number}"
                        )
        return original(args)

"""Translate raw text with an exported model.

    collab translate DIR text.en > text.de
    collab translate DIR <<< "A man is riding a bike."

DIR is a folder that `collab export` made. One line comes out for each that goes in, in order; empty lines stay empty.
Text is read, translated and written in buffers, so that it may be of any length. A line that is not UTF-8, or longer
than the model takes, is named on standard error, comes out empty, and makes the exit status 1. Interrupted, the
command keeps what it has written.

With --scores each line starts with its score (log-probability per token, base 2) and a tab; with --nbest N there are up
to N lines for each, which start with the number of the line and the score.
"""

import argparse
import contextlib
import logging
import os
import sys
from typing import Any, BinaryIO, Callable, Iterator, Optional

from . import options

HELP = "translate text with an exported model"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="DIR", help="folder that `collab export` made")
    add("file", metavar="FILE", nargs="?", help="raw text, a sentence a line (default: standard input)")
    add("--beam", type=options.positive, default=5, metavar="N", help="hypotheses of the search (default: 5)")
    add("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")
    add("--nbest", type=options.positive, metavar="N", help="so many translations of each line")
    add("--scores", action="store_true", help="with their scores")
    add("--max-length", type=options.positive, default=200, metavar="N", help="tokens of a translation (default: 200)")
    options.add_machine(parser)
    add("--precision", default="float32", metavar="NAME", help="float32, float16, bfloat16; of ctranslate2 also int8")
    text = "lines read, translated and written at a time (default: 256; 1 at a terminal)"
    add("--buffer", type=options.positive, metavar="N", help=text)

    def intermixed(argv: Any, namespace: Any) -> Any:
        """Before Python 3.12 an optional FILE could not stand behind flags."""
        del parser.parse_known_args
        try:
            return parser.parse_known_intermixed_args(argv, namespace)
        finally:
            setattr(parser, "parse_known_args", intermixed)  # noqa: B010  (a method, to mypy)

    setattr(parser, "parse_known_args", intermixed)  # noqa: B010


def run(args: argparse.Namespace) -> int:
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    import collab_fairseq

    with _open(args.file) as stream:
        given = {name: getattr(args, name) for name in ("device", "precision", "threads")}
        translator = collab_fairseq.load(args.model, **given)
        return _translate(translator, stream, args)


def _open(file: Optional[str]) -> Any:
    if file is None:
        return contextlib.nullcontext(sys.stdin.buffer)
    if not os.path.isfile(file):
        folder = f"{file} is a folder: DIR comes first, then FILE"
        raise options.UserError(folder if os.path.isdir(file) else f"there is no file {file}")
    return open(file, "rb")


def _translate(translator: Any, stream: BinaryIO, args: argparse.Namespace) -> int:
    refused = []

    def refuse(number: int, reason: str) -> None:
        refused.append(number)
        logger.error("line %d was not translated: %s", number, reason)

    from tqdm import tqdm

    search = {"beam": args.beam, "lenpen": args.lenpen, "max_length": args.max_length, "nbest": args.nbest or 1}
    search["scores"] = bool(args.scores or args.nbest)
    typed = stream.isatty()
    number, out = 0, sys.stdout.buffer
    with tqdm(total=_lines(stream), unit="line", disable=typed or not sys.stderr.isatty()) as bar:
        try:
            chunks = translator.stream(
                _decode(stream, refuse), refuse, buffer=args.buffer or (1 if typed else 256), **search
            )
            for chunk in chunks:
                for best in chunk:
                    number += 1
                    for found in best:
                        line = f"{found.score:.4f}\t{found.text}" if args.scores or args.nbest else found.text
                        out.write((f"{number}\t{line}\n" if args.nbest else f"{line}\n").encode())
                out.flush()
                bar.update(len(chunk))
        except KeyboardInterrupt:
            logger.error("interrupted; %d lines are translated", number)
            return 130
    return 1 if refused else 0


def _lines(stream: BinaryIO) -> Optional[int]:
    """Lines of a file; None of a pipe, whose end is not known."""
    if not stream.seekable():
        return None
    start = stream.tell()
    total = sum(1 for _ in stream)
    stream.seek(start)
    return total


def _decode(stream: BinaryIO, refuse: Callable[[int, str], None]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            refuse(number, f"it is not UTF-8 (byte {error.start + 1})")
            text = ""
        yield text.removeprefix("\ufeff") if number == 1 else text

"""Translate raw text with a trained model.

    collab translate MODEL text.en > text.de
    collab translate MODEL <<< "A man is riding a bike."

MODEL is a folder made by `collab export`, or a checkpoint whose data-bin, with its SentencePiece model, is still in
place (export models with BPE codes first). The output has one line per input line, in order; empty lines stay empty.
Text of any length is read, translated and written in buffers. A line that is not UTF-8, or longer than the model
allows, is reported on standard error, becomes an empty line, and sets the exit status to 1. UTF-16 text is rejected.
When interrupted, the command keeps the lines written so far.

With --scores each line starts with its score (log-probability, base 2, divided by length^lenpen) and a tab. With
--nbest N each input line has up to N output lines, which start with the number of the input line and the score.
"""

import argparse
import contextlib
import logging
import os
import re
import sys
import tempfile
from typing import Any, BinaryIO, Callable, Iterator, Optional

from . import options

HELP = "translate text with a trained model"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder made by `collab export`, or checkpoint")
    add("file", metavar="FILE", nargs="?", help="raw text, one sentence per line (default: standard input)")
    add("--beam", type=options.positive, default=5, metavar="N", help="beam size (default: 5)")
    add("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")
    text = "print up to N translations of each line, with line number and score"
    add("--nbest", type=options.positive, metavar="N", help=text)
    add("--scores", action="store_true", help="start each line with its score")
    text = "maximum length of a translation in tokens (default: 200)"
    add("--max-length", type=options.positive, default=200, metavar="N", help=text)
    options.add_machine(parser, also="; with ctranslate2 at most 4")
    text = "precision of the computation: float32, float16, bfloat16; for ctranslate2 also int8 (default: float32)"
    add("--precision", default="float32", metavar="NAME", help=text)
    text = "lines read, translated and written at a time (default: 256; 1 at a terminal)"
    add("--buffer", type=options.positive, metavar="N", help=text)

    def intermixed(argv: Any, namespace: Any) -> Any:
        """Allow an optional FILE after flags, which argparse does not before Python 3.12."""
        del parser.parse_known_args
        try:
            return parser.parse_known_intermixed_args(argv, namespace)
        finally:
            setattr(parser, "parse_known_args", intermixed)  # noqa: B010  (a method, to mypy)

    setattr(parser, "parse_known_args", intermixed)  # noqa: B010


def run(args: argparse.Namespace) -> int:
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    import collab_fairseq

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(_open(args.file))
        folder = _export(args.model, stack) if os.path.isfile(args.model) else args.model
        translator = collab_fairseq.load(folder, device=args.device, precision=args.precision, threads=args.threads)
        return _translate(translator, stream, args)


def _export(checkpoint: str, stack: contextlib.ExitStack) -> str:
    """A model folder of a checkpoint, for the time of this command."""
    from collab_fairseq.export import write
    from collab_fairseq.export.source import read_source

    folder = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "model")
    try:
        source = read_source(checkpoint)
    except options.UserError as error:
        if "--" not in str(error):
            raise
        raise options.UserError(f"{error}: flags of `collab export`, whose folder this command takes") from error
    write(source, "folder", folder)
    return folder


def _open(file: Optional[str]) -> Any:
    if file is None:
        return contextlib.nullcontext(sys.stdin.buffer)
    if os.path.isdir(file):
        raise options.UserError(f"FILE must be a file; got the folder {file}: MODEL comes first, then FILE")
    return open(file, "rb")


def _translate(translator: Any, stream: BinaryIO, args: argparse.Namespace) -> int:
    failed = []

    def report(number: int, reason: str) -> None:
        failed.append(number)
        logger.error("line %d was not translated: %s", number, reason)

    from tqdm import tqdm

    scores = bool(args.scores or args.nbest)
    search = {"beam": args.beam, "lenpen": args.lenpen, "max_length": args.max_length, "nbest": args.nbest or 1}
    typed = stream.isatty()
    buffer = args.buffer or (1 if typed else 256)
    number, out = 0, sys.stdout.buffer
    with tqdm(total=_lines(stream), unit="line", disable=typed or not sys.stderr.isatty()) as bar:
        try:
            lines = _decode(stream, args.file or "standard input", report)
            for chunk in translator.stream(lines, report, buffer=buffer, scores=scores, **search):
                for best in chunk:
                    number += 1
                    for translation in best:
                        text = re.sub(r"[\r\n]+", " ", translation.text)  # byte units can spell a line break
                        line = f"{translation.score:.4f}\t{text}" if scores else text
                        out.write((f"{number}\t{line}\n" if args.nbest else f"{line}\n").encode())
                out.flush()
                bar.update(len(chunk))
        except KeyboardInterrupt:
            logger.error("interrupted after %d lines", number)
            return 130
    return 1 if failed else 0


def _lines(stream: BinaryIO) -> Optional[int]:
    """Number of lines of a file; None for a pipe, whose end is not known."""
    if not stream.seekable():
        return None
    start = stream.tell()
    total = sum(1 for _ in stream)
    stream.seek(start)
    return total


def _decode(stream: BinaryIO, name: str, report: Callable[[int, str], None]) -> Iterator[str]:
    from collab_fairseq.scoring.references import check_encoding

    for number, line in enumerate(stream, start=1):
        if number == 1:
            check_encoding(line, name)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            report(number, f"it is not UTF-8 (byte {error.start + 1})")
            text = ""
        yield text.removeprefix("\ufeff") if number == 1 else text

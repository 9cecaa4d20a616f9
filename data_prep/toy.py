#!/usr/bin/env python3
"""Make an English-German corpus from a grammar written for this project (data_prep/toy_grammar.py).

    toy.py --output DIR [--seed N] [--train N] [--valid N] [--test N]

Writes train, valid and test as .en and .de: raw text, one sentence per line. Equal options give equal files, on every
version of Python. No English sentence occurs twice, so that the three parts have no sentence pair in common. DIR
appears whole or not at all.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from toy_grammar import Sentences

SIZES = {"train": 12000, "valid": 500, "test": 500}
LANGUAGES = ("en", "de")
Parts = Dict[str, List[Tuple[str, str]]]


def corpus(seed: int, sizes: Dict[str, int]) -> Parts:
    """Sentence pairs of every part; the test set comes first, so that it does not depend on the size of training."""
    sentences = Sentences(seed)
    made: Dict[str, str] = {}
    while len(made) < sum(sizes.values()):
        english, german = sentences.sentence()
        made.setdefault(english, german)
    pairs = iter(made.items())
    return {part: [next(pairs) for _ in range(sizes[part])] for part in ("test", "valid", "train")}


def write_lines(path: Path, lines: List[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def write(parts: Parts, folder: Path, languages: Sequence[str] = LANGUAGES) -> None:
    """Write PART.LANGUAGE into a folder."""
    for part, pairs in parts.items():
        for side, lang in enumerate(languages):
            write_lines(folder / f"{part}.{lang}", [pair[side] for pair in pairs])


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What decides the corpus."""
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="of the corpus (default: %(default)s)")
    for part, size in SIZES.items():
        text = "sentence pairs (default: %(default)s)"
        parser.add_argument(f"--{part}", type=positive, default=size, metavar="N", help=text)


def described(args: argparse.Namespace) -> Tuple[Sequence[str], List[str]]:
    """The languages, and what prepared.txt says besides the options."""
    return LANGUAGES, []


def parts_of(args: argparse.Namespace) -> Parts:
    return corpus(args.seed, {part: getattr(args, part) for part in SIZES})


def make(args: argparse.Namespace, folder: Path, say: Any = None) -> None:
    """Write the texts that the options ask for."""
    write(parts_of(args), folder)


def run(parser: argparse.ArgumentParser, make: Any) -> int:
    """Read the options of a script that makes a corpus; `make(args, folder)` writes it."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    add_options(parser)
    args = parser.parse_args()
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        parser.error(f"--output must be a new or empty folder, but {args.output} is there")
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{args.output.name}.", dir=args.output.parent) as work:
            folder = Path(work, "whole")
            folder.mkdir()
            make(args, folder)
            os.replace(folder, args.output)
    except OSError as error:
        sys.stderr.write(f"data_prep/{parser.prog}: error: {error}\n")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return run(parser, make)


if __name__ == "__main__":
    sys.exit(main())

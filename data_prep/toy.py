#!/usr/bin/env python3
"""Make an English-German corpus from a grammar written for this project (data_prep/toy_grammar.py).

    toy.py --output DIR [--seed N] [--train N] [--valid N] [--test N]

Writes train, valid and test as .en and .de: raw text, one sentence per line. Equal options give equal files, on every
version of Python. No English sentence occurs twice, so that the three parts have no sentence pair in common. DIR
appears whole or not at all.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

from toy_grammar import Sentences

SIZES = {"train": 12000, "valid": 500, "test": 500}
# of sentences tried in a row; a small part of what the grammar can say is ever asked for
_PATIENCE = 10000


class CorpusError(Exception):
    """The corpus cannot be made as asked for."""


def distinct(seed: int) -> Iterator[Tuple[str, str]]:
    """Sentence pairs with English sides that never repeat."""
    seen: Set[str] = set()
    fruitless = 0
    for en, de in Sentences(seed):
        fruitless = fruitless + 1 if en in seen else 0
        if fruitless > _PATIENCE:
            raise CorpusError(f"the grammar has no more than {len(seen)} sentences at hand, expected more")
        if not fruitless:
            seen.add(en)
            yield en, de


def corpus(seed: int, sizes: Dict[str, int]) -> Dict[str, List[Tuple[str, str]]]:
    """Sentence pairs of every part; the test set comes first, so that it does not depend on the size of training."""
    pairs = distinct(seed)
    return {part: [next(pairs) for _ in range(sizes[part])] for part in ("test", "valid", "train")}


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `output` when the block ends, and is gone if it fails.

    Raises:
        CorpusError: `output` is there already.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CorpusError(f"{output} must be a new or empty folder, but it exists; choose another --output")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{output.name}.", dir=output.parent))
    try:
        yield partial
        partial.chmod(0o755)
        os.replace(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_lines(path: Path, lines: List[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def write(parts: Dict[str, List[Tuple[str, str]]], folder: Path) -> None:
    """Write PART.en and PART.de into a folder."""
    for part, pairs in parts.items():
        for side, lang in enumerate(("en", "de")):
            write_lines(folder / f"{part}.{lang}", [pair[side] for pair in pairs])


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def run(parser: argparse.ArgumentParser, make: Any) -> int:
    """Read the options of a script that makes a corpus; `make` writes its parts to a folder as the options say."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="(default: %(default)s)")
    for part, size in SIZES.items():
        parser.add_argument(
            f"--{part}", type=positive, default=size, metavar="N", help="sentence pairs (default: %(default)s)"
        )
    args = parser.parse_args()
    try:
        with new_folder(args.output) as folder:
            make(corpus(args.seed, {part: getattr(args, part) for part in SIZES}), folder, args)
    except (CorpusError, OSError) as error:
        sys.stderr.write(f"data_prep/{parser.prog}: error: {error}\n")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return run(parser, lambda parts, folder, args: write(parts, folder))


if __name__ == "__main__":
    sys.exit(main())

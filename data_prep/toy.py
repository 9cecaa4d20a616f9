#!/usr/bin/env python3
"""Make an English-German corpus from a grammar written for this project (data_prep/toy_grammar.py).

    toy.py --output DIR [--seed N] [--train N] [--valid N] [--test N]

Writes train, valid and test as .en and .de: raw text, one sentence per line. Equal options give equal files, on every
version of Python. No English sentence occurs twice, so that the three parts have no sentence pair in common. The
German agrees in gender, case and number and has German word order; where English does not tell what German must
(you: du, ihr, Sie; synonyms; free word order), chance decides, so that no translation is right
throughout. DIR appears whole or not at all.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

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
        if en in seen:
            fruitless += 1
            if fruitless > _PATIENCE:
                raise CorpusError(f"the grammar has no more than {len(seen)} sentences at hand, expected more")
            continue
        fruitless = 0
        seen.add(en)
        yield en, de


def corpus(seed: int, sizes: Dict[str, int]) -> Dict[str, List[Tuple[str, str]]]:
    """Sentence pairs of every part; the test set comes first, so that it does not depend on the size of training."""
    pairs = distinct(seed)
    return {part: [next(pairs) for _ in range(sizes[part])] for part in ("test", "valid", "train")}


def write(parts: Dict[str, List[Tuple[str, str]]], output: Path) -> None:
    """Write PART.en and PART.de into a new folder.

    Raises:
        CorpusError: `output` is there already.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CorpusError(f"{output} must be a new or empty folder, but it exists; choose another --output")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{output.name}.", dir=output.parent))
    try:
        for part, pairs in parts.items():
            for side, lang in enumerate(("en", "de")):
                text = "".join(pair[side] + "\n" for pair in pairs)
                with open(partial / f"{part}.{lang}", "w", encoding="utf-8", newline="\n") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
        partial.chmod(0o755)
        os.replace(partial, output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="(default: %(default)s)")
    for part, size in SIZES.items():
        parser.add_argument(
            f"--{part}", type=positive, default=size, metavar="N", help="sentence pairs (default: %(default)s)"
        )
    args = parser.parse_args()
    try:
        write(corpus(args.seed, {part: getattr(args, part) for part in SIZES}), args.output)
    except (CorpusError, OSError) as error:
        sys.stderr.write(f"data_prep/toy.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A synthetic English-German corpus from a grammar (toy_grammar.py): train, valid and test.

Equal options give equal files, on every version of Python. No English sentence occurs twice, so the three parts share
no sentence pair.
"""

import argparse
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from collab_fairseq.cli.options import positive
from data_prep.toy_grammar import Sentences

SIZES = {"train": 12000, "valid": 500, "test": 500}
LANGUAGES = ("en", "de")
Parts = Dict[str, List[Tuple[str, str]]]


def corpus(seed: int, sizes: Dict[str, int]) -> Parts:
    """The sentence pairs of each part; the test set is generated first, so it does not depend on the other sizes."""
    sentences = Sentences(seed)
    german_of: Dict[str, str] = {}
    while len(german_of) < sum(sizes.values()):
        english, german = sentences.sentence()
        german_of.setdefault(english, german)
    pairs = iter(german_of.items())
    return {part: [next(pairs) for _ in range(sizes[part])] for part in ("test", "valid", "train")}


def write_lines(path: Path, lines: List[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def write(parts: Parts, folder: Path, languages: Sequence[str] = LANGUAGES) -> None:
    """Write PART.LANGUAGE into a folder."""
    for part, pairs in parts.items():
        for side, lang in enumerate(languages):
            write_lines(folder / f"{part}.{lang}", [pair[side] for pair in pairs])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the corpus."""
    text = "random seed of the corpus (default: %(default)s)"
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help=text)
    for part, size in SIZES.items():
        text = f"sentence pairs of {part} (default: %(default)s)"
        parser.add_argument(f"--{part}", type=positive, default=size, metavar="N", help=text)


def describe(args: argparse.Namespace) -> Tuple[Sequence[str], List[str]]:
    """The languages, and additional lines of prepared.txt."""
    return LANGUAGES, []


def parts_of(args: argparse.Namespace) -> Parts:
    """The corpus with the sizes of the options."""
    return corpus(args.seed, {part: getattr(args, part) for part in SIZES})


def make(args: argparse.Namespace, folder: Path, say: Any = None) -> None:
    """Write the three parts."""
    write(parts_of(args), folder)

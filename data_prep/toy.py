"""An English-German corpus from a grammar written for this project (toy_grammar.py): train, valid and test.

Equal options give equal files, on every version of Python. No English sentence occurs twice, so that the three parts
have no sentence pair in common.
"""

import argparse
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from toy_grammar import Sentences

from collab_fairseq.cli.options import positive

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

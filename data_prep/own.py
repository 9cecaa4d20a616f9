"""The user's own corpus: two raw text files, or a folder with train, valid and test, verified and split.

A line is a sentence; the same line of the other file is its translation. Of two files, the pairs with the smallest
SHA-256 become valid and test, independently of the order of the lines, and no training pair contains one of their
sentences. Of a folder, train is used without the pairs of valid and test.
"""

import argparse
import hashlib
import re
import unicodedata
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

from collab_fairseq.cli.options import positive
from collab_fairseq.scoring.references import read_lines
from data_prep.toy import write
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256

PARTS = ("train", "valid", "test")
MIN_PAIRS = {"train": 500, "valid": 1, "test": 1}
#: fewer test sentences give an unreliable BLEU
FEW_TEST_SENTENCES = 100
Pair = Tuple[str, str]


def add_options(parser: Any) -> None:
    """Add the options that determine the corpus."""
    text = "two raw text files, the source language first; or a folder with two files each of train, valid and test"
    parser.add_argument("--source", nargs="+", type=Path, default=[], metavar="PATH", help=text)
    text = "such as en-de (default: the suffixes of the two files; required for a folder)"
    parser.add_argument("--languages", default="", metavar="FROM-TO", help=text)
    text = "pairs of two files held out for valid, and as many for test (default: one in fifty, at most 1000)"
    parser.add_argument("--held-out", type=positive, metavar="N", help=text)


def languages(args: argparse.Namespace) -> Pair:
    """The source and the target language."""
    names, paths = args.languages, args.source
    if len(paths) != 2 and not (len(paths) == 1 and paths[0].is_dir()):
        got = " ".join(map(str, paths)) or "nothing"
        raise UserError(f"--source must be two text files or a folder; got {got}")
    if not names and len(paths) == 1:
        raise UserError(f"{paths[0]} is a folder: give its languages, such as --languages en-de")
    names = names or "-".join(path.suffix[1:] for path in paths)
    match = re.fullmatch(r"([A-Za-z_]+)-([A-Za-z_]+)", names)
    if not match or match[1] == match[2]:
        raise UserError(f"--languages must be two languages, such as en-de; got '{names}'")
    return match[1], match[2]


def files(args: argparse.Namespace) -> Dict[str, List[Path]]:
    """Part → its two files; two files of --source are train."""
    langs = languages(args)
    files = {"train": args.source}
    if len(args.source) == 1:
        folder = args.source[0]
        files = {part: [folder / f"{part}.{lang}" for lang in langs] for part in PARTS}
    return files


def describe(args: argparse.Namespace) -> Tuple[Pair, List[str]]:
    """The languages, and additional lines of prepared.txt."""
    langs = languages(args)
    lines = [f"{path.name} {sha256(path)}" for paths in files(args).values() for path in paths]
    return langs, [*lines, f"languages {'-'.join(langs)}, held out {args.held_out or 'by size'}"]


def read_pairs(paths: List[Path]) -> List[Pair]:
    """The sentence pairs of two files, in NFC, as SentencePiece's, with single spaces between words."""
    first, second = (
        [" ".join(unicodedata.normalize("NFC", line).split()) for line in read_lines(path, "the text")]
        for path in paths
    )
    if len(first) != len(second):
        raise UserError(
            f"both files must have the same number of lines, which are translations of each other; "
            f"got {len(first):,} in {paths[0]}, {len(second):,} in {paths[1]}"
        )
    return list(zip(first, second, strict=True))


def hold_out(pairs: List[Pair], number: int) -> Dict[str, List[Pair]]:
    """Split pairs into train, and `number` each for valid and test; no sentence is in two of them."""
    parts: Dict[str, List[Pair]] = {"test": [], "valid": []}
    held_out: Set[str] = set()
    for pair in sorted(set(pairs), key=lambda pair: hashlib.sha256("\t".join(pair).encode()).digest()):
        unfilled = [part for part in parts.values() if len(part) < number]
        if not unfilled:
            break
        if not held_out.intersection(pair):
            unfilled[0].append(pair)
            held_out.update(pair)
    return {"train": [pair for pair in pairs if not held_out.intersection(pair)], **parts}


def read(args: argparse.Namespace, say: Callable[[str], None]) -> Dict[str, List[Pair]]:
    """The pairs of the three parts."""
    parts = {part: read_pairs(paths) for part, paths in files(args).items()}
    pairs = [pair for pair in parts["train"] if all(pair)]
    empty = len(parts["train"]) - len(pairs)
    if "test" in parts:
        origin = "as given"
        held_out = {*parts["valid"], *parts["test"]}
        parts["train"] = [pair for pair in pairs if pair not in held_out]
    else:
        origin = "held out from the files, the same pairs each time"
        parts = hold_out(pairs, args.held_out or min(1000, len(pairs) // 50))
    sizes = ", ".join(f"{part} {len(parts[part]):,}" for part in PARTS)
    for part, least in MIN_PAIRS.items():
        if len(parts[part]) < least:
            raise UserError(
                f"{part} must have at least {least:,} sentence pairs; got {len(parts[part]):,} "
                f"of the {len(pairs):,} pairs in the files ({sizes})"
            )
    say(f"{sizes} pairs; valid and test are {origin}")
    say(f"not in train: {empty:,} pairs with an empty side, {len(pairs) - len(parts['train']):,} for valid and test")
    if len(parts["test"]) < FEW_TEST_SENTENCES:
        say(f"the test set has fewer than {FEW_TEST_SENTENCES} sentences: its BLEU is unreliable")
    return parts


def make(args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> int:
    """Write the three parts; returns the largest useful vocabulary size."""
    parts = read(args, say)
    write(parts, folder, languages(args))
    characters = {character for pair in parts["train"] for side in pair for character in side}
    return len(parts["train"]) // 4 + len(characters)

"""A corpus of one's own: two raw text files, or a folder with train, valid and test, checked and divided.

A line is a sentence, and the same line of the other file is its translation. Two files are divided: the pairs of valid
and test are those with the smallest SHA-256, whatever their order, and no sentence of theirs, on either side, stays in
train. Of a folder, pairs that are in valid or test are left out of train.
"""

import argparse
import hashlib
import re
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from toy import write
from unpack import CorpusError

from collab_fairseq.cli.options import positive
from fairseq_modern.files import sha256

PARTS = ("train", "valid", "test")
FEW = 100  # test sentences
#: fewer pairs teach nothing
LEAST = 500
Pair = Tuple[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What decides the corpus."""
    about = "two raw text files, the one to translate from first; or a folder with train, valid and test, each in two"
    parser.add_argument("--source", nargs="+", type=Path, default=[], metavar="PATH", help=about)
    about = "such as en-de (default: how the two files' names end; needed for a folder)"
    parser.add_argument("--languages", default="", metavar="FROM-TO", help=about)
    about = "pairs cut off for valid, and as many for test (default: 1000, of less than 50,000 pairs one in fifty)"
    parser.add_argument("--held-out", type=positive, metavar="N", help=about)


def languages(args: argparse.Namespace) -> Pair:
    """The languages to translate from and to."""
    named, given = args.languages, args.source
    if len(given) != 2 and not (len(given) == 1 and given[0].is_dir()):
        got = " ".join(map(str, given)) or "nothing"
        raise CorpusError(f"--source must name two text files or a folder, got {got}")
    if not named and len(given) == 2:
        named = "-".join(path.suffix[1:] for path in given)
    found = re.fullmatch(r"([A-Za-z_]+)-([A-Za-z_]+)", named)
    if not found or found[1] == found[2]:
        why = f"got '{named}'" if named else f"{given[0]} does not tell which one to translate from"
        raise CorpusError(f"two languages are needed, such as --languages en-de: {why}")
    return found[1], found[2]


def files(args: argparse.Namespace) -> Dict[str, List[Path]]:
    """Part → its two files; two files are all for training."""
    langs, given = languages(args), args.source
    found = {"train": given}
    if len(given) == 1:
        found = {part: [given[0] / f"{part}.{lang}" for lang in langs] for part in PARTS}
    for path in (path for pair in found.values() for path in pair if not path.is_file()):
        raise CorpusError(f"there is no file {path}")
    return found


def described(args: argparse.Namespace) -> Tuple[Pair, List[str]]:
    """The languages, and what prepared.txt says besides the options."""
    langs, sums = languages(args), [f"{path.name} {sha256(path)}" for pair in files(args).values() for path in pair]
    return langs, [*sums, f"languages {'-'.join(langs)}, held out {args.held_out or 'by size'}"]


def lines(path: Path) -> List[str]:
    """The lines without the blanks around them."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{path} is not UTF-8 text, see line {line}; convert it, as iconv does") from error
    found = [" ".join(line.split()) for line in text.split("\n")]
    return found if found[-1] else found[:-1]


def pairs(sides: List[Path]) -> List[Pair]:
    """The sentence pairs of two files."""
    first, second = map(lines, sides)
    if len(first) != len(second):
        raise CorpusError(
            f"{sides[0]} has {len(first):,} lines, {sides[1]} {len(second):,}: line for line they must be translations"
        )
    return list(zip(first, second, strict=True))


def divided(found: List[Pair], number: int) -> Dict[str, List[Pair]]:
    """Valid and test cut off, with no sentence in common with train or each other."""
    parts: Dict[str, List[Pair]] = {"test": [], "valid": []}
    seen: Dict[str, str] = {}
    for pair in sorted(set(found), key=lambda pair: hashlib.sha256("\t".join(pair).encode()).digest()):
        part = next((part for part in parts if len(parts[part]) < number), None)
        if part is None:
            break
        if not any(side in seen for side in pair):
            parts[part].append(pair)
            seen.update(dict.fromkeys(pair, part))
    return {"train": [pair for pair in found if not any(side in seen for side in pair)], **parts}


def read(args: argparse.Namespace, say: Callable[[str], None]) -> Dict[str, List[Pair]]:
    """The pairs of the three parts."""
    parts = {part: pairs(sides) for part, sides in files(args).items()}
    whole = [pair for pair in parts["train"] if all(pair)]
    empty = len(parts["train"]) - len(whole)
    held_out = set()
    if "test" in parts:
        held_out = {*parts["valid"], *parts["test"]}
        parts["train"] = [pair for pair in whole if pair not in held_out]
    else:
        parts = divided(whole, args.held_out or min(1000, len(whole) // 50))
    for part, least in (("train", LEAST), ("valid", 1), ("test", 1)):
        if len(parts[part]) < least:
            given = ", ".join(f"{name} {len(parts[name]):,}" for name in PARTS)
            raise CorpusError(
                f"{part} must have at least {least:,} sentence pairs; got {len(parts[part]):,} of the {len(whole):,} "
                f"pairs in the files ({given})"
            )
    how = "as given" if held_out else "held out from the files, the same pairs each time"
    say(f"{', '.join(f'{part} {len(parts[part]):,}' for part in PARTS)} pairs; valid and test are {how}")
    say(f"not in train: {empty:,} pairs with an empty side, {len(whole) - len(parts['train']):,} for valid and test")
    if len(parts["test"]) < FEW:
        say(f"the test set has fewer than {FEW} sentences: its BLEU will say little")
    return parts


def most_pieces(found: List[Pair]) -> int:
    """How large a vocabulary a corpus of this size has use for."""
    return len(found) // 4 + len({letter for pair in found for side in pair for letter in side})


def make(args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> None:
    """Write the three parts; a small corpus has fewer pieces."""
    parts = read(args, say)
    args.vocab_size = min(args.vocab_size, most_pieces(parts["train"]))
    write(parts, folder, languages(args))

"""Data sets: the fields of SET.yaml, and the options of SET.sh."""

import argparse
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from collab_fairseq.cli.options import positive

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class DataSet:
    """The fields of SET.yaml. A text is a file name without its language: `train` is train.en and train.de."""

    about: str
    #: `archives` that contain the texts, `gzipped` texts, or a `program`, SET.py, that writes the texts
    kind: str
    #: first line of prepared.txt: the options that determine the result (not for gzipped texts)
    header: str = ""
    languages: List[str] = field(default_factory=lambda: ["en", "de"])
    #: split of the data-bin (train, valid, valid1, ..., test, test1, ...) → text
    texts: Dict[str, str] = field(default_factory=dict)
    #: option that names a local copy of the corpus, and its help
    option: str = ""
    option_help: str = ""
    #: environment variable that replaces the default of this option
    variable: str = ""
    #: where the archives can be downloaded, if the manifest has no URLs
    url: str = ""
    #: SentencePiece pieces (0: the texts are already segmented)
    vocab_size: int = 0
    #: SentencePiece is trained on about this many lines (none: all)
    sentencepiece_lines: Optional[int] = None
    #: limits of training pairs, and which of them are held out: see pieces.clean (0: no limits)
    longest: int = 0
    ratio: float = 0.0
    every: int = 0
    #: additional flags of fairseq-preprocess, and its processes (none: one per core)
    flags: List[str] = field(default_factory=list)
    workers: Optional[int] = None
    #: files of OUTPUT, for --help
    holds: str = ""


def program_of(name: str) -> Any:
    """The module SET.py.

    `add_options(parser)` adds its options, `describe(args)` returns the languages and additional lines of prepared.txt,
    `make(args, folder, say)` writes the texts and returns the largest useful vocabulary size (None: any). With
    limits of training pairs (`longest`), MIN_PAIRS["train"] is the smallest number of pairs within them.
    """
    return importlib.import_module(f"data_prep.{name}")


def parser_of(name: str, data_set: DataSet) -> argparse.ArgumentParser:
    """The parser of SET.sh."""
    epilog = f"""OUTPUT then contains data-bin/ for fairseq, {data_set.holds}
prepared.txt (the origin of the data) and SHA256SUMS of all files. It is written atomically. A second run only verifies
it."""
    parser = argparse.ArgumentParser(
        f"data_prep/{name}.sh",
        allow_abbrev=False,
        usage="%(prog)s [options]",
        description=data_set.about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    if data_set.kind == "program":
        program_of(name).add_options(parser)
    else:
        origin = parser.add_mutually_exclusive_group()
        origin.add_argument(data_set.option, dest="local_copy", metavar="PATH", help=data_set.option_help)
        text = "download URL/<archive> instead, from a mirror; an interrupted download is continued"
        origin.add_argument("--url", default="", help=text)
        text = "largest unpacked size of each archive, in GiB (default: 20 times its size, at least 1 GiB)"
        add("--unpacked-limit", type=positive, metavar="N", help=text)
        text = f"expected archives and texts with checksums and line counts (default: data_prep/{name}.tsv)"
        add("--manifest", type=Path, default=HERE / f"{name}.tsv", metavar="FILE", help=text)
    pieces = parser.add_mutually_exclusive_group()
    if data_set.vocab_size:
        text = "SentencePiece pieces, shared by both languages (default: %(default)s)"
        pieces.add_argument("--vocab-size", type=positive, default=data_set.vocab_size, metavar="N", help=text)
    if data_set.kind == "gzipped":
        text = "encode with this SentencePiece model, that of an existing translation model"
        pieces.add_argument("--spm", type=Path, metavar="FILE", help=text)
        text = "joint dictionary of that translation model (dict.*.txt of its data)"
        add("--dict", type=Path, metavar="FILE", help=text)
    text = f"output folder (default: data/{name} of the repository)"
    add("--output", type=Path, default=HERE.parent / "data" / name, metavar="DIR", help=text)
    text = f"processes of fairseq-preprocess (default: {data_set.workers or 'the number of cores'})"
    add("--workers", type=positive, default=data_set.workers, metavar="N", help=text)
    add("--force", action="store_true", help="rebuild an existing output")
    return parser

"""What a SET.yaml of this folder says, and the options that follow from it."""

import argparse
import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from runner.options import Parser, positive

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class DataSet:
    """What SET.yaml may say. A text is a name without its language: `train` stands for train.en and train.de."""

    about: str
    #: first line of prepared.txt: the options that decide the result; none: a corpus of gzipped texts
    header: str = ""
    languages: List[str] = field(default_factory=lambda: ["en", "de"])
    #: the program of this folder that makes the texts; none: they are unpacked
    maker: str = ""
    #: split of the data-bin -> text; none: those that the manifest of gzipped texts names
    texts: Dict[str, str] = field(default_factory=dict)
    #: the option that names the corpus as it was downloaded, and its help
    option: str = ""
    given: str = ""
    #: option -> environment variable that has its default
    variables: Dict[str, str] = field(default_factory=dict)
    #: where the archives are, one by one
    url: str = ""
    #: SentencePiece pieces; 0: the texts are in pieces already
    vocab_size: int = 0
    #: about how many lines SentencePiece learns from; none: all
    lines: Optional[int] = None
    #: which training pairs are left out or held out, see pieces.clean; 0: none
    longest: int = 0
    ratio: float = 0.0
    every: int = 0
    #: more flags of fairseq-preprocess, and its processes; none: one a core
    flags: List[str] = field(default_factory=list)
    workers: Optional[int] = None
    #: what OUTPUT holds besides
    holds: str = ""


def maker_of(data_set: DataSet) -> Any:
    """The program, with `add_options(parser)`, `described(args)` and `make(args, folder, say)`: it writes the texts."""
    return importlib.import_module(data_set.maker)


def parser_of(name: str, data_set: DataSet) -> argparse.ArgumentParser:
    """The options of a data set; their defaults are its own, or those of environment variables."""

    def default(option: str, otherwise: str = "") -> str:
        return os.environ.get(data_set.variables.get(option, ""), "") or otherwise

    ending = f"""OUTPUT then holds data-bin/ for fairseq, {data_set.holds} prepared.txt (what it was made from)
and SHA256SUMS of all. It appears whole or not at all. A second run checks it and does nothing more."""
    parser = Parser(
        f"data_prep/{name}.sh", usage="%(prog)s [options]", description=data_set.about, epilog=ending,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    if data_set.maker:
        maker_of(data_set).add_options(parser)
    else:
        add(data_set.option, dest="given", default=default(data_set.option[2:]), metavar="PATH", help=data_set.given)
        about = "download URL/<archive> instead, from a mirror; an interrupted download is continued"
        add("--url", default="", help=about)
        about = "each archive may unpack to this many GiB (default: 20 times its size, or 1 GiB if that is more)"
        add("--unpacked-limit", type=positive, metavar="N", help=about)
        about = f"expected archives and texts: sums, line counts (default: data_prep/{name}.tsv)"
        add("--manifest", type=Path, default=default("manifest", f"{HERE}/{name}.tsv"), metavar="FILE", help=about)
    if data_set.vocab_size:
        about = "SentencePiece pieces, both languages together (default: %(default)s)"
        add("--vocab-size", type=positive, default=data_set.vocab_size, metavar="N", help=about)
    if not data_set.header:
        about = "encode with this SentencePiece model, for a translation model that was trained with it"
        add("--spm", type=Path, metavar="FILE", help=about)
        about = "that translation model's joint dictionary (dict.*.txt of its data)"
        add("--dict", type=Path, metavar="FILE", help=about)
    about = f"where the result goes (default: data/{name} of the repository)"
    add("--output", type=Path, default=default("output", f"{HERE.parent}/data/{name}"), metavar="DIR", help=about)
    about = f"processes of fairseq-preprocess (default: {data_set.workers or 'the number of cores'})"
    add("--workers", type=positive, default=data_set.workers, metavar="N", help=about)
    add("--force", action="store_true", help="rebuild an output that is there already")
    return parser

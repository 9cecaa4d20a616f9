"""Flags and checks that subcommands share."""

import argparse
import os
import re
import shlex
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.files import check_writable
from collab_fairseq.records import environment
from fairseq_modern.errors import UserError


def add_command(
    commands: Any,
    name: str,
    description: str,
    run: Optional[Callable[[argparse.Namespace], int]],
    help: Optional[str] = None,
) -> argparse.ArgumentParser:
    """Add a subcommand to the result of `add_subparsers`; its help is by default the first line of the description."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help or description.splitlines()[0],
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def reject_flags(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Raise UserError for flags that do not apply; the message is the flag and `reason`."""
    for name in names:
        if getattr(args, name, None) != args.parser.get_default(name):
            raise UserError(f"--{name.replace('_', '-')} {reason}")


def positive(text: str) -> int:
    """A positive integer, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer; got {text!r}")
    return int(text)


def number(text: str) -> int:
    """An integer ≥ 0, for argparse."""
    return 0 if text == "0" else positive(text)


def numbers(text: str) -> List[int]:
    """Positive integers joined by commas, for argparse."""
    return [positive(word) for word in text.split(",")]


def checkpoint(path: str) -> str:
    """The checkpoint of a model folder made by `collab export --to folder`; any other path as it is.

    Raises:
        UserError: the folder has an invalid card, or files that differ from it.
    """
    from collab_fairseq.translation.tokenizer import CARD, read_card

    file = os.path.join(path, "model.pt")
    if not (os.path.isfile(os.path.join(path, CARD)) and os.path.isfile(file)):
        return path
    read_card(path)
    return file


def pair(text: str) -> Tuple[str, str]:
    """SPLIT=FILE, for argparse."""
    name, _, file = text.partition("=")
    if not (name and file):
        raise argparse.ArgumentTypeError(f"must be SPLIT=FILE, such as test=test.de; got {text!r}")
    return name, file


def references(pairs: Sequence[Tuple[str, str]]) -> Dict[str, str]:
    """Split → file of the `--reference` options; raises UserError if a split is repeated or a file is missing."""
    splits = [split for split, _ in pairs]
    if len(set(splits)) < len(splits):
        raise UserError(f"--reference must name each split once; got {', '.join(splits)}")
    for split, file in pairs:
        if not os.path.isfile(file):
            raise UserError(f"--reference {split}={file}: there is no such file")
    return dict(pairs)


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N; got {text!r}")
    return text


def add_machine(parser: argparse.ArgumentParser, threads: Optional[int] = None, also: str = "") -> None:
    """--device and --threads; `also` ends the help of the latter."""
    add = parser.add_argument
    text = "auto, cpu, cuda or cuda:N (default: auto: a GPU if available)"
    add("--device", type=_device, default="auto", help=text)
    text = f"CPU threads (default: {threads or 'OMP_NUM_THREADS, else all cores'}{also})"
    add("--threads", type=positive, default=threads, metavar="N", help=text)


def choose_device(args: argparse.Namespace) -> str:
    """The device of --device; sets the number of threads and the current GPU."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if args.device.startswith("cuda"):
        number = int(args.device.partition(":")[2] or 0)
        usable = environment.usable_gpus()
        if number >= usable:
            names = ", ".join(f"cuda:{index}" for index in range(usable)) or "none"
            raise UserError(f"--device must be a GPU that torch can use ({names}); got {args.device}")
        torch.cuda.set_device(number)
    return str(args.device)


def add_sites(parser: argparse.ArgumentParser, what: str = "sites") -> None:
    """--sites; `what` begins its help."""
    text = f"{what}: encoder, cross and decoder, joined by _ (default: %(default)s)"
    parser.add_argument("--sites", default="encoder_cross_decoder", metavar="SITES", help=text)


def check_new(output: str) -> None:
    """Check that the file of a model can be written and does not exist: a model is never overwritten."""
    check_writable(output)
    if os.path.lexists(output):
        raise UserError(f"{output} already exists; choose another output, or remove it first")


def check_distinct(output: str, *sources: str) -> None:
    """Check that an output is not one of its inputs."""
    for source in sources:
        if os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):
            raise UserError(f"{output} is one of the inputs and would be overwritten")


def command(program: str = "collab") -> str:
    """The command line, for records."""
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])

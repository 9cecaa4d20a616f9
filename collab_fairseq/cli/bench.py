"""Measure speed and memory side by side with standard heads and the authors' way, on this machine.

    collab bench layer                                    one attention layer: training, inference, peak memory
    collab bench decode                                   steps of beam search, and whole translation
    collab bench train [--profile]                        training steps of whole models
    collab bench layer --rows 'layer/encoder/*/dk128/*' --output layer.json --figure layer.svg
    collab bench table layer.json decode.json train.json [--output README.md --marker speed] [--check]

All contestants run in one process, in interleaved rounds, after their results have been compared; the table shows
medians, ratios and goals. --quick runs everything in miniature, in seconds: it shows that it runs and measures nothing.
"""

import argparse
import logging
import os
import shlex
import sys
from typing import Any, Dict, List

from collab_fairseq.reporting.files import check_targets, write_json

HELP = "measure speed and memory beside the baselines"

logger = logging.getLogger(__name__)

#: seconds per row and rounds at least: rows of whole models take longer
_SECONDS = {"layer": 20.0, "decode": 60.0, "train": 120.0}
_LEAST = {"layer": 5, "decode": 3, "train": 5}


class UsageError(ValueError):
    """Flags that cannot be followed, or a page that is not up to date."""

    user_error = True


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return number


def _positive_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each thing that is measured, and the table."""
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, about in (
        ("layer", "one attention layer"),
        ("decode", "decoding steps and whole translation"),
        ("train", "training steps of whole models"),
    ):
        command = commands.add_parser(what, help=about, description=about)
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: cuda if any")
        command.add_argument(
            "--dtype",
            choices=("float32", "float16", "bfloat16"),
            help="default: float32 on a CPU, float16 on a GPU (autocast in `train`)",
        )
        command.add_argument("--threads", type=_positive, default=1, help="CPU threads (default: 1)")
        command.add_argument(
            "--rows",
            action="append",
            default=[],
            metavar="PATTERN",
            help="only rows whose id matches, such as 'layer/encoder/*/dk128/*'; repeatable; --list shows the ids",
        )
        command.add_argument("--list", action="store_true", help="print the ids of the rows and stop")
        command.add_argument("--rounds", type=_positive, default=200, help="at most so many per row (default: 200)")
        command.add_argument(
            "--seconds",
            type=_positive_seconds,
            default=_SECONDS[what],
            help=f"no new round of a row after so many, once it has {_LEAST[what]} (default: %(default)g)",
        )
        command.add_argument(
            "--clock",
            choices=("wall", "processor"),
            default="wall",
            help="wall time, or processor time of this process, which other programs on the machine disturb less "
            "(one thread, no GPU; default: wall)",
        )
        command.add_argument("--seed", type=int, default=1, help="of parameters, inputs and turns (default: 1)")
        command.add_argument(
            "--lengths",
            metavar="NAME",
            help="sentence lengths: newstest2014, multi30k or a file with one length per line (default: by row)",
        )
        if what != "layer":
            command.add_argument("--vocabulary", type=_positive, help="symbols of the models (default: by row)")
        if what == "decode":
            command.add_argument("--sentences", type=_positive, default=1000, help="to translate (default: 1000)")
            command.add_argument("--batch", type=_positive, default=64, help="sentences of a batch (default: 64)")
            command.add_argument("--data", metavar="DATA_BIN", help="translate its test set instead of made-up sources")
        if what == "train":
            command.add_argument("--profile", action="store_true", help="also the costliest operators of a step")
        command.add_argument("--quick", action="store_true", help="miniatures, to see that everything runs")
        command.add_argument("--output", metavar="FILE", help="where the record goes, JSON")
        command.add_argument("--figure", metavar="FILE", help="draw the ratios: FILE.png or FILE.svg")
    table = commands.add_parser("table", help="the goals from records", description="The goals from records, Markdown.")
    table.add_argument("records", nargs="+", metavar="RECORD", help="of collab bench")
    table.add_argument("--output", metavar="FILE", help="where the table goes (default: printed)")
    table.add_argument("--marker", metavar="NAME", help="only the part of --output between these markers is written")
    table.add_argument("--check", action="store_true", help="write nothing; fail where --output would change")


def run(args: argparse.Namespace) -> int:
    """Measure, or make the table."""
    return _table(args) if args.what == "table" else _measure(args)


def _measure(args: argparse.Namespace) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler tells of its starts and stops
    import warnings

    import torch

    from collab_fairseq.bench import record, report
    from collab_fairseq.bench.cases import Options, choose
    from collab_fairseq.bench.cases import run as run_cases
    from collab_fairseq.bench.lengths import histogram
    from collab_fairseq.bench.roofline import measure_peaks
    from collab_fairseq.bench.timing import CLOCKS, Budget, Stopwatch

    # fairseq gives torch a boolean and an additive mask at once, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a GPU that torch can use, but torch finds none here; use --device cpu")
    if args.clock == "processor" and (device.type == "cuda" or args.threads > 1):
        raise UsageError("--clock processor is for one thread of a CPU; use --threads 1 and --device cpu")
    check_targets(args.output, args.figure)
    if args.figure and not args.figure.lower().endswith((".png", ".svg")):
        raise UsageError(f"--figure must end in .png or .svg, got {args.figure}")
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype or ("float16" if device.type == "cuda" else "float32"))
    quick = args.quick
    budget = Budget(args.rounds, args.seconds, min(args.rounds, _LEAST[args.what]))
    options = Options(
        device=device,
        dtype=dtype,
        budget=Budget(min(2, args.rounds), 1.0, 1, 1) if quick else budget,
        seed=args.seed,
        lengths=histogram(args.lengths) if args.lengths else None,
        sentences=min(6, args.sentences) if quick and args.what == "decode" else getattr(args, "sentences", 0),
        batch=min(3, args.batch) if quick and args.what == "decode" else getattr(args, "batch", 0),
        data=getattr(args, "data", None),
        vocabulary=getattr(args, "vocabulary", None),
        clock=args.clock,
        quick=quick,
    )
    chosen = choose(_cases(args.what, options), args.rows)
    if args.list:
        sys.stdout.write("".join(f"{case.id}\n" for case in chosen))
        return 0
    peaks = measure_peaks(Stopwatch(device, CLOCKS[args.clock]), device, dtype, quick)
    logger.info("measured here: copy %.3g GB/s, matmul %.3g GFLOP/s", peaks.copy / 1e9, peaks.matmul / 1e9)
    rows = run_cases(chosen, options, peaks)
    profiles: List[Dict[str, Any]] = []
    if getattr(args, "profile", False):
        from collab_fairseq.bench.profiling import profile

        profiles = profile(chosen, options)
    command = shlex.join(["collab", *sys.argv[1:]])
    made = record.make(args.what, command, options, args.threads, rows, peaks, profiles)
    if args.output:
        write_json(made, args.output)
        logger.info("wrote %s", args.output)
    if args.figure:
        report.draw(made, args.figure)
        logger.info("wrote %s", args.figure)
    sys.stdout.write(report.full_table(made))
    return 0


def _cases(what: str, options: Any) -> List[Any]:
    if what == "layer":
        from collab_fairseq.bench import layer

        return list(layer.cases(options))
    if what == "decode":
        from collab_fairseq.bench import decode, search

        return [*decode.cases(options), *search.cases(options)]
    from collab_fairseq.bench import train

    return list(train.cases(options))


def _table(args: argparse.Namespace) -> int:
    if (args.marker or args.check) and not args.output:
        raise UsageError(f"{'--marker' if args.marker else '--check'} needs --output")
    check_targets(None if args.check else args.output)
    from collab_fairseq.bench import record, report
    from collab_fairseq.reporting import pages

    records = [record.load(path) for path in args.records]
    folder = os.path.dirname(os.path.abspath(args.output)) if args.output else os.getcwd()
    text = report.page_part(records, args.records, folder)
    if not args.output:
        sys.stdout.write(text)
        return 0
    logger.info("%s", pages.publish(text, args.output, args.marker, args.check))
    return 0

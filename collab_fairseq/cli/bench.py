"""Measure speed and memory side by side with standard heads and the authors' way, on this machine.

    collab bench layer                                    one attention layer: training, inference, peak memory
    collab bench decode                                   steps of beam search, and whole translation
    collab bench train [--profile]                        training steps of whole models
    collab bench layer --rows 'layer/encoder/*/dk128/*' --output layer.json --figure layer.svg
    collab bench table layer.json decode.json train.json [--rows ...] [--output README.md --marker speed] [--check]

All contestants run in one process, in interleaved rounds, after their results have been compared; the table shows
medians and ratios. --quick runs everything in miniature, in seconds: it shows that it runs and measures nothing.

Rows, at width 512 and 8 heads if not said otherwise; N sentences, T target and S source positions, key dim D:

    layer/SITE/NxT/dkD/train         forward and backward of a layer; forward: without gradients; memory: peak of both
    layer/table1-nmt, table1-bert    forward at the sizes of Table 1 of the paper; BERT: width 768, 12 heads
    decode/cross/NxBEAM/SS/dkD       step of one layer in beam search; decode/self/NxBEAM/TT/dkD: with reordered cache
    decode/beam-step/SIZE/...        step of a whole decoder; .../graph: as a CUDA graph
    decode/translate/SIZE/N/dkD      beam search over N sentences
    train/SIZE/NxT/dkD               forward, label-smoothed loss, backward and Adam of a whole model
"""

import argparse
import logging
import os
import shlex
import sys
from dataclasses import fields

from collab_fairseq.records.files import check_targets

from .options import UsageError, check_figure, positive

HELP = "measure speed and memory beside the baselines"

logger = logging.getLogger(__name__)

#: of each thing that is measured: what it is, seconds per row, rounds at least; rows of whole models take longer
_WHAT = {
    "layer": ("one attention layer", 20.0, 5),
    "decode": ("decoding steps and whole translation", 60.0, 3),
    "train": ("training steps of whole models", 120.0, 5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each thing that is measured, and the table."""
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, (about, seconds, least) in _WHAT.items():
        command = commands.add_parser(what, help=about, description=about)
        add = command.add_argument
        add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: cuda if any")
        text = "default: float32 on a CPU, float16 on a GPU (autocast in `train`)"
        add("--dtype", choices=("float32", "float16", "bfloat16"), help=text)
        add("--threads", type=positive, default=1, help="CPU threads (default: 1)")
        _add_rows(command)
        add("--list", action="store_true", help="print the ids of the rows and stop")
        add("--rounds", type=positive, default=200, help="at most so many per row (default: 200)")
        add("--seconds", type=float, default=seconds,
            help=f"no new round of a row after so many, once it has {least} (default: %(default)g)")  # fmt: skip
        add("--clock", choices=("wall", "processor"), default="wall",
            help="wall time, or processor time of this process, which other programs on the machine disturb less "
            "(one thread, no GPU; default: wall)")  # fmt: skip
        add("--seed", type=int, default=1, help="of parameters, inputs and turns (default: 1)")
        add("--lengths", metavar="NAME",
            help="of sentences: newstest2014, multi30k or a file with a length per line (default: by row)")  # fmt: skip
        if what != "layer":
            add("--vocabulary", type=positive, help="symbols of the models (default: by row)")
        if what == "decode":
            add("--sentences", type=positive, help="to translate (default: 1000)")
            add("--batch", type=positive, help="sentences of a batch (default: 64)")
            add("--data", metavar="DATA_BIN", help="translate its test set instead of made-up sources")
        add("--profile", action="store_true", help="also the costliest operators of a step")
        add("--quick", action="store_true", help="miniatures, to see that everything runs")
        add("--output", metavar="FILE", help="where the record goes, JSON; one that is there is continued")
        add("--figure", metavar="FILE", help="draw the ratios: FILE.png or FILE.svg")
    table = commands.add_parser("table", help="ratios from records", description="The ratios of records, in Markdown.")
    table.add_argument("records", nargs="+", metavar="RECORD", help="of collab bench")
    _add_rows(table)
    table.add_argument("--output", metavar="FILE", help="where the table goes (default: printed)")
    table.add_argument("--marker", metavar="NAME", help="only the part of --output between these markers is written")
    table.add_argument("--check", action="store_true", help="write nothing; fail where --output would change")


def _add_rows(parser: argparse.ArgumentParser) -> None:
    text = "only rows whose id matches, such as 'layer/encoder/*/dk128/*'; repeatable"
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, or make the table."""
    return _table(args) if args.what == "table" else _measure(args)


def _measure(args: argparse.Namespace) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler tells of its starts and stops
    import warnings

    import torch

    from collab_fairseq.bench import report, runner
    from collab_fairseq.bench.cases import Options

    # fairseq gives torch a boolean and an additive mask at once, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    check_figure(args.figure)
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.dtype = args.dtype or ("float16" if args.device == "cuda" else "float32")
    least = min(args.rounds, _WHAT[args.what][2])
    options = Options(least=least, **{f.name: getattr(args, f.name) for f in fields(Options) if hasattr(args, f.name)})
    if args.list:
        sys.stdout.write("".join(f"{case.id}\n" for case in runner.cases(args.what, options, args.rows)))
        return 0
    command = shlex.join(["collab", *sys.argv[1:]])
    record = runner.run(args.what, options, args.rows, args.output, args.profile, command)
    if args.figure:
        report.draw(record, args.figure)
        logger.info("wrote %s", args.figure)
    sys.stdout.write(report.full_table(record))
    return 0


def _table(args: argparse.Namespace) -> int:
    if (args.marker or args.check) and not args.output:
        raise UsageError(f"{'--marker' if args.marker else '--check'} needs --output")
    check_targets(None if args.check else args.output)
    from collab_fairseq.bench.report import ratio_table
    from collab_fairseq.records import pages, record

    records = [record.load(path, "bench") for path in args.records]
    folder = os.path.dirname(os.path.abspath(args.output)) if args.output else os.getcwd()
    text = ratio_table(records, args.records, folder, args.rows)
    if not args.output:
        sys.stdout.write(text)
        return 0
    logger.info("%s", pages.publish(text, args.output, args.marker, args.check))
    return 0

"""Measure speed and memory side by side with standard heads and the authors' way, on this machine.

    collab bench layer                                    one attention layer: training, peak memory
    collab bench decode                                   steps of beam search, and whole translation
    collab bench train                                    training steps of whole models
    collab bench layer --rows 'layer/encoder/*/dk128/*' --json layer.json
    collab bench table layer.json decode.json train.json [--rows ...] [--output README.md --marker speed] [--check]

All contestants run in one process, in interleaved rounds, after those that compute the same have been compared; the
table shows medians and ratios. --quick runs everything in miniature, in seconds: it shows that it runs, and measures
nothing.

Rows, at width 512 and 8 heads if not said otherwise; N sentences, T target and S source positions, key dim D:

    layer/encoder/NxT/dkD/train      forward and backward of a layer; memory: peak of both
    decode/cross/NxBEAM/SS/dkD       step of one layer in beam search; decode/self/NxBEAM/TT/dkD: with reordered cache
    decode/translate/SIZE/N/dkD      beam search over N sentences; .../bf16: ours in bfloat16
    train/SIZE/NxT/dkD               forward, label-smoothed loss, backward and Adam; .../compiled: with --compile
    train/SIZE/NxT/dkD/fast          ours with the chunked loss, fused_adam and fast dropout; fast-bf16: under --amp;
                                     fast-memory: peak
"""

import argparse
import os
import sys
import warnings
from dataclasses import fields

from .options import Gone, Renamed, add_machine, add_page, check_page, choose_device, command, positive, publish, refuse

HELP = "measure speed and memory beside the baselines"

#: of each thing that is measured: what it is, seconds per row, rounds at least; rows of whole models take longer
_WHAT = {
    "layer": ("one attention layer", 20.0, 5),
    "decode": ("decoding steps and whole translation", 60.0, 3),
    "train": ("training steps of whole models", 120.0, 5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, (about, seconds, least) in _WHAT.items():
        measure = commands.add_parser(what, help=about, description=about)
        measure.set_defaults(run=_measure, parser=measure)
        add = measure.add_argument
        add_machine(measure, threads=1)
        text = "default: float32 on a CPU, float16 on a GPU (autocast in `train`)"
        add("--dtype", choices=("float32", "float16", "bfloat16"), help=text)
        _add_rows(measure)
        add("--list", action="store_true", help="print the ids of the rows and stop")
        add("--rounds", type=positive, default=200, help="at most so many per row (default: 200)")
        add("--seconds", type=float, default=seconds,
            help=f"no new round of a row after so many, once it has {least} (default: %(default)g)")  # fmt: skip
        add("--clock", choices=("wall", "processor"), default="wall",
            help="wall time, or processor time of this process, which other programs on the machine disturb less "
            "(one thread, no GPU; default: wall)")  # fmt: skip
        add("--seed", type=int, default=1, help="of parameters, inputs and turns (default: 1)")
        if what == "train":
            add("--compile", action="store_const", const=True,
                help="layers through torch.compile, fairseq's own too (rows .../compiled)")  # fmt: skip
        if what == "decode":
            add(
                "--sentences",
                action=Gone,
                const="rows decode/translate are of 1,000; --rounds 1 --seconds 1 is the least",
            )
        add("--quick", action="store_true", help="miniatures, to see that everything runs")
        add("--json", metavar="FILE", help="where the record goes; one that is there is continued")
        add("--output", action=Renamed, const="--json")
        add("--figure", action=Gone, const="collab bench table shows the ratios of a record")
    table = commands.add_parser("table", help="ratios from records", description="The ratios of records, in Markdown.")
    table.set_defaults(run=_table, parser=table)
    table.add_argument("records", nargs="+", metavar="RECORD", help="of collab bench")
    _add_rows(table)
    add_page(table)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    text = "only rows whose id matches, such as 'layer/encoder/*/dk128/*'; repeatable"
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help=text)


def _measure(args: argparse.Namespace) -> int:
    if args.list:
        refuse(args, ("json",), "is of a measurement, and --list measures nothing")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler tells of its starts and stops
    # fairseq gives torch a boolean and an additive mask at once, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    args.device = choose_device(args).partition(":")[0]
    from collab_fairseq.bench import runner
    from collab_fairseq.bench.cases import Options

    args.dtype = args.dtype or ("float16" if args.device == "cuda" else "float32")
    least = min(args.rounds, _WHAT[args.what][2])
    options = Options(least=least, **{f.name: getattr(args, f.name) for f in fields(Options) if hasattr(args, f.name)})
    if args.list:
        sys.stdout.write("".join(f"{case.id}\n" for case in runner.cases(args.what, options, args.rows)))
        return 0
    record = runner.run(args.what, options, args.rows, args.json, command())
    sys.stdout.write(runner.full_table(record))
    return 0


def _table(args: argparse.Namespace) -> int:
    folder = check_page(args)
    from collab_fairseq.bench.runner import ratio_table
    from collab_fairseq.records import record

    records = [record.load(path, "bench") for path in args.records]
    publish(args, ratio_table(records, args.records, folder, args.rows))
    return 0

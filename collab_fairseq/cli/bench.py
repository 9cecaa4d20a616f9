"""Measure speed and memory on this machine, compared with standard heads and the authors' formulation.

    collab bench layer                                    one attention layer: training, peak memory
    collab bench decode                                   steps of beam search, and whole translation
    collab bench train                                    training steps of whole models
    collab bench layer --rows 'layer/encoder/*/dk128/*' --json layer.json
    collab bench table layer.json decode.json train.json [--rows ...] [--output README.md --marker speed] [--check]

Measured are fairseq's multi-head attention, standard heads through torch's fused attention (SDPA), collaborative
heads as the paper's authors compute them (einsum), and ours. All run in one process, in interleaved rounds; layers that
should compute the same are compared first. The table shows ratios, the record and the messages have seconds and bytes
too. --quick runs everything in miniature, in seconds: it shows that it runs, and measures nothing.

Rows, at width 512 and 8 heads if not said otherwise; N sentences, T target and S source positions, key dim D:

    layer/encoder/NxT/dkD/train      forward and backward of a layer; memory: peak of both
    decode/cross/NxBEAM/SS/dkD       step of one layer in beam search; decode/self/NxBEAM/TT/dkD: with reordered cache
    decode/translate/SIZE/N/dkD      beam search over N sentences; .../bf16: ours in bfloat16
    train/SIZE/NxT/dkD               forward, label-smoothed loss, backward and Adam
    train/SIZE/NxT/dkD/fast          ours with the chunked loss, fused_adam and fast dropout; fast-bf16: under --amp;
                                     fast-memory: peak
"""

import argparse
import os
import sys
import warnings
from dataclasses import fields

from .options import add_machine, add_page, check_page, choose_device, command, positive, publish

HELP = "measure speed and memory, compared with baselines"

#: of each thing that is measured: what it is, seconds per row; rows of whole models take longer
_WHAT = {
    "layer": ("one attention layer", 20.0),
    "decode": ("decoding steps and whole translation", 60.0),
    "train": ("training steps of whole models", 120.0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, (about, seconds) in _WHAT.items():
        measure = commands.add_parser(what, help=about, description=about)
        measure.set_defaults(run=_measure, parser=measure)
        add = measure.add_argument
        add_machine(measure, threads=1)
        text = "default: float32 on a CPU, bfloat16 on a GPU (autocast in `train`)"
        add("--dtype", choices=("float32", "bfloat16"), help=text)
        _add_rows(measure)
        add("--rounds", type=positive, default=200, metavar="N", help="at most N per row (default: 200)")
        text = "no new round of a row after S seconds, once it has 3 (default: %(default)g)"
        add("--seconds", type=float, default=seconds, metavar="S", help=text)
        text = (
            "wall time, or CPU time of this process, which other programs on the machine disturb less "
            "(one thread, no GPU; default: wall)"
        )
        add("--clock", choices=("wall", "processor"), default="wall", help=text)
        add("--quick", action="store_true", help="miniatures, to see that everything runs")
        add("--json", metavar="FILE", help="where the record goes; one that is there is continued")
    table = commands.add_parser("table", help="ratios from records", description="The ratios of records, in Markdown.")
    table.set_defaults(run=_table, parser=table)
    table.add_argument("records", nargs="+", metavar="RECORD", help="of collab bench")
    _add_rows(table)
    add_page(table)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    text = "only rows whose id matches, such as 'layer/encoder/*/dk128/*'; repeatable"
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help=text)


def _measure(args: argparse.Namespace) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler reports its starts and stops
    # fairseq gives torch a boolean and an additive mask at once, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    args.device = choose_device(args).partition(":")[0]
    from collab_fairseq.bench.measure import Options
    from collab_fairseq.bench.runner import run
    from collab_fairseq.bench.table import table

    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    options = Options(**{f.name: getattr(args, f.name) for f in fields(Options) if hasattr(args, f.name)})
    sys.stdout.write(table([run(args.what, options, args.rows, args.json, command())]))
    return 0


def _table(args: argparse.Namespace) -> int:
    folder = check_page(args)
    from collab_fairseq.bench.table import table
    from collab_fairseq.records import record

    records = [record.load(path, "bench") for path in args.records]
    publish(args, table(records, args.rows, args.records, folder))
    return 0

"""Measure speed and memory on this machine, compared with standard heads and the paper's code.

    collab bench layer                                    one attention layer: training, peak memory
    collab bench decode                                   decoding steps of one layer, and translation
    collab bench train                                    training steps of translation models
    collab bench layer --rows 'layer/encoder/*/dk128/*' --json layer.json
    collab bench table layer.json decode.json train.json [--rows ...]

The implementations are fairseq's multi-head attention, standard heads with torch's fused attention (SDPA),
collaborative heads as in the paper's code (einsum), and ours; layers also with ours in the kernel bmm. All run in one
process, in interleaved rounds; layers that compute the same function are compared first. The table shows ratios; the
record and the log also have seconds and bytes. --quick runs tiny models for a few seconds, to test that everything
runs; its numbers are meaningless.

Rows (width 512, 8 heads; tiny: 128, 4; N sentences, T target positions, S source positions, key dimension D):

    layer/encoder/NxT/dkD/train      forward and backward pass of a layer; .../memory: peak memory
    decode/cross/NxBEAM/SS/dkD       decoding step of cross-attention
    decode/self/NxBEAM/TT/dkD        decoding step of self-attention, with reordering of the cache
    decode/translate/SIZE/N/dkD      beam search over N sentences; .../bf16: ours in bfloat16
    train/SIZE/NxT/dkD               training step: forward, label-smoothed loss, backward and Adam
    train/SIZE/NxT/dkD/fast          ours with the chunked loss, fused_adam and fast dropout; .../fast-bf16: with --amp;
                                     .../fast-memory: peak memory

Rows .../bf16 and .../fast-bf16 compare bfloat16 with float32 and exist only with --dtype float32. On a GPU,
layer and train have additional rows with eight times as many tokens.
"""

import argparse
import os
import sys
import warnings
from dataclasses import fields
from typing import Sequence

from .options import add_command, add_machine, choose_device, command, positive

HELP = "measure speed and memory, compared with baselines"

#: subcommand → help, default of --seconds
_SUBCOMMANDS = {
    "layer": ("speed and peak memory of training one attention layer", 20.0),
    "decode": ("speed of decoding steps of one layer, and of translation", 60.0),
    "train": ("speed of training steps of translation models", 120.0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, (text, seconds) in _SUBCOMMANDS.items():
        measure = add_command(commands, what, f"Measure {text}.", _measure, text)
        add = measure.add_argument
        add_machine(measure, threads=1)
        text = "data type (default: float32 on a CPU, bfloat16 on a GPU; autocast in `train`)"
        add("--dtype", choices=("float32", "bfloat16"), help=text)
        _add_rows(measure)
        add("--rounds", type=positive, default=200, metavar="N", help="maximum number of rounds per row (default: 200)")
        text = "start no new round of a row after S seconds, but run at least 3 (default: %(default)g)"
        add("--seconds", type=float, default=seconds, metavar="S", help=text)
        text = "wall time, or processor: CPU time of this process (less noisy; one thread, no GPU; default: wall)"
        add("--clock", choices=("wall", "processor"), default="wall", help=text)
        add("--quick", action="store_true", help="tiny models, to test that everything runs")
        add("--json", metavar="FILE", help="write the record to FILE; an existing record is resumed")
    text = "print the ratios of records as a table"
    table = add_command(commands, "table", f"{text.capitalize()}.", _table, text)
    _add_records(table)


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORD", help="record of collab bench")
    _add_rows(parser)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    text = "only rows whose ids match, such as 'layer/encoder/*/dk128/*'; repeatable (ids: collab bench --help)"
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help=text)


def _measure(args: argparse.Namespace) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences start and stop messages of torch's profiler
    # fairseq passes a boolean and an additive mask together, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    args.device = choose_device(args).partition(":")[0]
    from collab_fairseq.bench.measure import Options
    from collab_fairseq.bench.runner import run
    from collab_fairseq.bench.table import table

    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    sys.stdout.write(table([run(args.what, options, args.rows, args.json, command())]))
    return 0


def _table(args: argparse.Namespace) -> int:
    sys.stdout.write(_ratios(args, os.getcwd()))
    return 0


def markdown(arguments: Sequence[str], folder: str) -> str:
    """The table that `collab bench table` prints with these arguments, with links relative to a folder."""
    parser = argparse.ArgumentParser(prog="collab bench table")
    _add_records(parser)
    return _ratios(parser.parse_args(arguments), folder)


def _ratios(args: argparse.Namespace, folder: str) -> str:
    from collab_fairseq.bench.table import table
    from collab_fairseq.records import record

    records = [record.load(path, "bench") for path in args.records]
    return table(records, args.rows, args.records, folder)

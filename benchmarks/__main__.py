"""Measure speed and memory on this machine, compared with standard heads and the paper's code.

    python -m benchmarks layer                                    one attention layer: training, peak memory
    python -m benchmarks decode                                   decoding steps of one layer, and translation
    python -m benchmarks train                                    training steps of translation models
    python -m benchmarks layer --rows 'layer/encoder/*/dk128/*' --json layer.json
    python -m benchmarks.table layer.json decode.json train.json [--rows ...]

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
import logging
import sys
import warnings
from dataclasses import fields

from benchmarks.measure import Options
from benchmarks.runner import run
from benchmarks.table import add_rows, table
from collab_fairseq.cli.main import guarded
from collab_fairseq.cli.options import add_command, add_machine, choose_device, command, positive

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
        add_rows(measure)
        add("--rounds", type=positive, default=200, metavar="N", help="maximum number of rounds per row (default: 200)")
        text = "start no new round of a row after S seconds, but run at least 3 (default: %(default)g)"
        add("--seconds", type=float, default=seconds, metavar="S", help=text)
        text = "wall time, or processor: CPU time of this process (less noisy; one thread, no GPU; default: wall)"
        add("--clock", choices=("wall", "processor"), default="wall", help=text)
        add("--quick", action="store_true", help="tiny models, to test that everything runs")
        add("--json", metavar="FILE", help="write the record to FILE; an existing record is resumed")


def _measure(args: argparse.Namespace) -> int:
    # fairseq passes a boolean and an additive mask together, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    args.device = choose_device(args).partition(":")[0]
    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    sys.stdout.write(table([run(args.what, options, args.rows, args.json, command("python -m benchmarks"))]))
    return 0


def main() -> int:
    """Run a subcommand and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return guarded(args.parser.prog, lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())

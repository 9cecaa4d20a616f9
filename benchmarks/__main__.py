"""Measure speed and memory on this machine, compared with standard heads and the paper's code.

    python -m benchmarks layer                                    one attention layer: training, peak memory
    python -m benchmarks decode                                   decoding steps of one layer, and translation
    python -m benchmarks train                                    training steps of translation models
    python -m benchmarks layer --rows 'layer/encoder/*/dk128/*' --json layer.json
    python -m benchmarks.table layer.json decode.json train.json [--rows ...]

The implementations are fairseq's multi-head attention, standard heads with torch's fused attention (SDPA),
collaborative heads as in the paper's code (einsum), and ours; layers also with ours in the kernel bmm. All run in one
process, in interleaved rounds; layers that compute the same function are compared first. The table shows ratios; the
record and the log also have seconds and bytes.

Rows (d_model 512, 8 heads; tiny: 128, 4; N sentences, T target positions, S source positions, key dimension D):

    layer/encoder/NxT/dkD/train      forward and backward pass of a layer; .../memory: peak memory
    decode/cross/NxBEAM/SS/dkD       decoding step of cross-attention
    decode/self/NxBEAM/TT/dkD        decoding step of self-attention, with reordering of the cache
    decode/translate/SIZE/N/dkD      beam search over N sentences; .../bf16: ours in bfloat16
    train/SIZE/NxT/dkD               training step: forward, label-smoothed loss, backward and Adam
    train/SIZE/NxT/dkD/fast          ours with the chunked loss, fused_adam and fast dropout; .../fast-bf16: with --amp;
                                     .../fast-memory: peak memory

Rows .../bf16 and .../fast-bf16 compare bfloat16 with float32; without --rows, they are measured only with --dtype
float32. On a GPU, layer and train have additional rows with eight times as many tokens. --rows may also name rows of
other sizes: `--rows train/tiny/3x6/dk32 --rounds 3` tests in seconds that everything runs.
"""

import argparse
import logging
import sys
import warnings
from dataclasses import asdict, fields
from functools import partial

import torch

from benchmarks.measure import Options, measured
from benchmarks.rows import rows
from benchmarks.table import add_rows, choose, table
from collab_fairseq.cli.main import guarded
from collab_fairseq.cli.options import add_machine, choose_device, command, positive
from collab_fairseq.records.record import Record

logger = logging.getLogger(__name__)

#: what to measure → default of --seconds
SECONDS = {"layer": 20.0, "decode": 60.0, "train": 120.0}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", metavar="WHAT", choices=SECONDS, help=f"one of {', '.join(SECONDS)}")
    add_machine(parser, threads=1)
    text = "data type (default: float32 on a CPU, bfloat16 on a GPU; autocast in `train`)"
    add("--dtype", choices=("float32", "bfloat16"), help=text)
    add_rows(parser)
    add("--rounds", type=positive, default=200, metavar="N", help="maximum number of rounds per row (default: 200)")
    limits = ", ".join(f"{seconds:g} for {what}" for what, seconds in SECONDS.items())
    text = f"start no new round of a row after S seconds, but run at least 3 (default: {limits})"
    add("--seconds", type=float, metavar="S", help=text)
    text = "wall time, or processor: CPU time of this process (less noisy; one thread, no GPU; default: wall)"
    add("--clock", choices=("wall", "processor"), default="wall", help=text)
    add("--json", metavar="FILE", help="write the record to FILE; an existing record is resumed")
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Measure the rows that the record does not have yet, and print their table.

    Each row is a part of the record, named by its id and saved as soon as it is measured. A failed row is missing.
    """
    # fairseq passes a boolean and an additive mask together, which torch deprecates
    warnings.filterwarnings("ignore", message="Support for mismatched")
    args.device = choose_device(args).partition(":")[0]
    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    args.seconds = SECONDS[args.what] if args.seconds is None else args.seconds
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    all_rows = rows(args.what, options, args.rows)
    chosen = choose(all_rows, args.rows)
    torch.set_num_threads(options.threads)
    record = Record(
        "bench",
        args.what,
        command("python -m benchmarks"),
        asdict(options),
        args.json,
        device=options.device,
        fixed=("commit", "hardware", "versions"),
    )
    for number, name in enumerate(chosen, start=1):
        logger.info("%d of %d: %s", number, len(chosen), name)
        if "missing" in record.parts.get(name, {}):
            del record.parts[name]  # it failed; now it may succeed
        part = record.part(name, partial(measured, all_rows[name], options, name.endswith("memory")))
        if "missing" in part:
            logger.warning("%s is missing: %s", name, part["missing"])
        else:
            median = part["values"]["ours"]["median"]
            ours = f"{1e3 * median:.3f} ms" if part["unit"] == "s" else f"{median / 2**20:.1f} MiB"
            shown = ", ".join(f"{to} {other['median']:.3f}" for to, other in part["ratios"].items())
            logger.info("%s: ours %s, ratio of ours to %s", name, ours, shown)
    sys.stdout.write(table([record.content]))


def main() -> int:
    """Return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    return guarded("python -m benchmarks", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())

"""Average the parameters of several checkpoints of a run into one for translation.

    collab average --inputs checkpoints --num-update-checkpoints 5 --output averaged.pt
    collab average --inputs checkpoints --num-epoch-checkpoints 10 --checkpoint-upper-bound 50 --output averaged.pt
    collab average --inputs a.pt b.pt c.pt --output averaged.pt

The inputs must be of one training run: with the same seed, data folder and settings, except those of the machine and of
the end of training. Other flags than --different-runs are those of fairseq's scripts/average_checkpoints.py. Sums are
accumulated in float64, shared embeddings stay shared, and the result lists its inputs (extra_state.averaged_from). The
output is written atomically.
"""

import argparse
import sys

from fairseq_modern.errors import UserError

from .options import check_new, positive, reject_flags

HELP = "average checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--inputs", required=True, nargs="+", metavar="PATH", help="checkpoints, or their folder")
    add("--output", required=True, metavar="FILE", help="the averaged checkpoint, a new file")
    add = parser.add_mutually_exclusive_group().add_argument
    text = "average the newest N of {} in the folder --inputs"
    add("--num-epoch-checkpoints", type=positive, metavar="N", help=text.format("checkpointE.pt"))
    add("--num-update-checkpoints", type=positive, metavar="N", help=text.format("checkpoint_E_U.pt"))
    text = "ignore epochs (with --num-epoch-checkpoints) or updates (with --num-update-checkpoints) beyond N"
    parser.add_argument("--checkpoint-upper-bound", type=int, metavar="N", help=text)
    text = "average checkpoints of several runs, such as models that were fine-tuned from the same checkpoint"
    parser.add_argument("--different-runs", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    number = args.num_epoch_checkpoints or args.num_update_checkpoints
    if not number:
        reject_flags(args, ("checkpoint_upper_bound",), "needs --num-epoch-checkpoints or --num-update-checkpoints")
    if number and len(args.inputs) != 1:
        raise UserError(
            "--inputs must be a single folder with --num-epoch-checkpoints or --num-update-checkpoints; "
            f"got {len(args.inputs)} paths"
        )
    check_new(args.output)
    from collab_fairseq import checkpoints

    paths = args.inputs
    if number:
        kind = "epoch" if args.num_epoch_checkpoints else "update"
        paths = checkpoints.select_checkpoints(args.inputs[0], kind, number, args.checkpoint_upper_bound)
    state, report = checkpoints.average(paths, args.different_runs)
    checkpoints.save(state, args.output)
    for entry in report:
        updates = "unknown" if entry["num_updates"] is None else entry["num_updates"]
        sys.stdout.write(f"{entry['file']}\tupdates {updates}\tsha256 {entry['sha256']}\n")
    sys.stdout.write(f"averaged {len(report)} checkpoints into {args.output}\n")
    return 0

"""Heads that stochastic gates have closed, and the model without them (Voita et al. 2019).

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab … --finetune-from-model averaged.pt \\
        --head-gates encoder_cross_decoder --criterion label_smoothed_cross_entropy_with_gates --gate-penalty 0.02
    collab heads gates checkpoint_last.pt                                    # log alpha and P(open) of every head
    collab heads gates checkpoint_last.pt --output pruned.pt                 # without gates and closed heads

A gate is open where log alpha > 0. The finalised model computes exactly what the gated one does in evaluation, and is
trained on as one of `collab heads prune --remove` is.
"""

import argparse
import sys

from . import heads_options as shared
from . import options

HELP = "show what gates have closed, and remove it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="trained with --head-gates")
    shared.add_output(parser, "draw P(open) as heat maps", "where the checkpoint without gates and closed heads goes")


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    if not args.output:
        options.refuse(args, ("empty_layers",), "needs --output")
    import importlib

    importlib.import_module("collab_fairseq.models")  # so that fairseq knows the presets' names
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import removal

    state = checkpoints.load_with_model(args.checkpoint)
    gates = removal.read_gates(state)
    if args.json:
        record = shared.make_record(args, "gates", {})
        record.part("gates", lambda: {head: gate._asdict() for head, gate in gates.items()})
    rows = [[head, f"{gate.log_alpha:.3f}", f"{gate.open_probability:.3f}", "open" if gate.is_open else "closed"]
            for head, gate in gates.items()]  # fmt: skip
    shared.show_table([["head", "log alpha", "P(open)", ""], *rows])
    sites = {letter: [gate.is_open for head, gate in gates.items() if head.startswith(letter)] for letter in "EAD"}
    counts = [f"{site} {sum(own)} of {len(own)}" if own else f"{site} has no gates" for site, own in sites.items()]
    sys.stdout.write(f"\nopen: {', '.join(counts)}\n")
    shared.draw_heads(args, {head: gate.open_probability for head, gate in gates.items()}, "P(open)")
    if args.output:
        result = removal.finalise(state, empty_layers=args.empty_layers)
        checkpoints.save(result.state, args.output)
        sys.stdout.write(f"{result.report()}{args.output}\n")
    return 0

"""What heads share: captured energy of W_Q, W_K and W_Q W_K', per head and layer (Cordonnier et al. 2020, Figure 1).

    collab heads redundancy averaged.pt --figure redundancy.svg --json redundancy.json

Printed: how many principal components hold 90, 95 and 99 % of the energy, in the layer as a whole and in the mean head.
The record also has the cosines of collaborative heads' mixing vectors, and how many dimensions each head uses.
A folder instead of a checkpoint is a Hugging Face model, of the kinds that `collab_fairseq.huggingface` knows.
"""

import argparse
import os

from . import heads_options as shared

HELP = "what heads share"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="of fairseq, or a Hugging Face model's folder")
    shared.add_output(parser, "draw the captured energy")


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import huggingface, redundancy

    if os.path.isdir(args.checkpoint):
        weights = huggingface.read_weights(args.checkpoint)
    else:
        weights = redundancy.read_weights(checkpoints.load_with_model(args.checkpoint))
    record = shared.make_record(args, "redundancy", {})
    layers = {name: record.part(name, lambda w=w: redundancy.redundancy(w)) for name, w in weights.items()}
    shared.show_table(redundancy.table(layers))
    if args.figure:
        redundancy.draw(layers, args.figure)
    return 0

"""What heads share: captured energy of W_Q, W_K and W_Q W_K', per head and layer (Cordonnier et al. 2020, Figure 1).

    collab heads redundancy averaged.pt --figure redundancy.svg --output redundancy.json
    collab heads redundancy averaged.pt --overlap overlap.svg       # collaborative heads: cosines of mixing vectors

Printed: how many principal components hold 90, 95 and 99 % of the energy, in the layer as a whole and in the mean head.
A folder instead of a checkpoint is a Hugging Face model, of the kinds that `collab_fairseq.huggingface` knows.
"""

import argparse
import importlib
import os
from typing import Any, Dict

from collab_fairseq.cli.heads_huggingface import load_model
from collab_fairseq.cli.options import add_output, check_figure, make_record, show_table
from collab_fairseq.records.files import check_targets

HELP = "what heads share"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and where its picture goes."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="of fairseq, or a Hugging Face model's folder")
    add_output(parser, "draw the captured energy")
    parser.add_argument("--overlap", metavar="FILE", help="draw how far mixing vectors overlap: FILE.svg or FILE.png")


def run(args: argparse.Namespace) -> int:
    """Decompose, print, draw."""
    check_targets(args.output)
    check_figure(args.figure)
    check_figure(args.overlap)
    from collab_fairseq.heads import redundancy

    weights = (_hugging_face if os.path.isdir(args.checkpoint) else _fairseq)(args.checkpoint)
    record = make_record(args, "redundancy", {})
    layers = {name: record.part(name, lambda w=w: redundancy.redundancy(w)) for name, w in weights.items()}
    show_table(redundancy.table(layers))
    if args.figure:
        redundancy.draw(layers, args.figure)
    if args.overlap:
        redundancy.draw_overlap(layers, args.overlap)
    return 0


def _fairseq(path: str) -> Dict[str, Any]:
    importlib.import_module("collab_fairseq.models")  # so that fairseq knows the presets' names
    from collab_fairseq import checkpoints
    from collab_fairseq.heads.redundancy import read_weights

    return read_weights(checkpoints.load_with_model(path))


def _hugging_face(path: str) -> Dict[str, Any]:
    import torch

    from collab_fairseq.heads.redundancy import HeadWeights

    model, known = load_model(path)
    found = {}
    for place, (_, scores) in zip(known.head_places(model), known.score_weights(model), strict=True):
        query, key, mixing = scores.heads.to(torch.float64)
        found[place] = HeadWeights(query, key, mixing, bool((mixing.count_nonzero(0) > 1).any()))
    return found

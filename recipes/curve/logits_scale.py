"""Write a checkpoint that sets a different scale of the attention logits, for fairseq-train --attention-from FILE.

The default scale is (embed_dim / heads)^-0.5 at any key dimension, as in the paper's runs. The checkpoint has no
weights and sets the scale of every layer of the study's model to (key_dim / heads)^-0.5, or with --factor F to F times
the default.
"""

import argparse
from pathlib import Path

from collab_fairseq import checkpoints
from collab_fairseq.attention.attention_types import SITES
from collab_fairseq.cli.options import check_new, positive

LAYERS, EMBED_DIM, HEADS = 2, 256, 8


def positive_factor(text: str) -> float:
    """A positive number, for argparse."""
    factor = float(text)
    if not 0 < factor < float("inf"):
        raise argparse.ArgumentTypeError(f"must be positive and finite; got {text}")
    return factor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key_dim", type=positive, metavar="KEY_DIM", help="summed over heads")
    parser.add_argument("file", type=Path, metavar="FILE", help="the checkpoint to write")
    parser.add_argument("--factor", type=positive_factor, metavar="F", help="multiply the default scale by F")
    args = parser.parse_args()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    check_new(str(args.file))
    head_dim = (EMBED_DIM if args.factor else args.key_dim) / HEADS
    scale = (args.factor or 1.0) * head_dim**-0.5
    model = {
        "_name": "transformer_collab",
        "collaborative_heads": "none",
        "key_dim": args.key_dim,
        "attention_shapes": {f"{site}.{layer}": {"scale": scale} for site in SITES for layer in range(LAYERS)},
    }
    checkpoints.save({"cfg": {"model": model}, "model": {}}, args.file)

#!/usr/bin/env python3
"""Print the standard deviation of the initial attention logits, for rows of the key-dimension studies.

Queries and keys are projections of independent Gaussian inputs. Logits are computed in float64 from each layer's query
and key maps and scale; the standard deviation is over all heads, several layers and positions.
"""

import argparse
import sys
from typing import Sequence

import torch

from collab_fairseq.attention import AttentionLayer, CollaborativeAttention, StandardAttention
from collab_fairseq.cli.main import guarded
from collab_fairseq.cli.options import positive
from collab_fairseq.records import pages

EMBED_DIM, HEADS = 256, 8
KEY_DIMS = {"standard": (256, 64, 32, 16), "collaborative": (64, 32)}


def build(heads: str, key_dim: int) -> AttentionLayer:
    """An initialised layer as in the studies."""
    if heads == "standard":
        return StandardAttention(EMBED_DIM, HEADS, key_dim)
    return CollaborativeAttention(EMBED_DIM, HEADS, key_dim, mixing="blocks", mixing_lr_multiplier=8)


def logits(layer: AttentionLayer, positions: int) -> torch.Tensor:
    """Logits (H, T, T) of H heads at T query and T key positions."""
    maps = layer.head_maps()
    ones = torch.ones(positions, 1, dtype=torch.float64)
    # the last input is 1, for the biases
    queries, keys = (torch.cat([torch.randn(positions, EMBED_DIM, dtype=torch.float64), ones], dim=1) for _ in range(2))
    return layer.scale * torch.einsum("te,hwe,hwf,sf->hts", queries, maps.query, maps.key, keys)


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=positive, default=50, metavar="N", help="layers (default: %(default)s)")
    parser.add_argument("--positions", type=positive, default=100, metavar="T", help="positions (default: %(default)s)")
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="random seed (default: %(default)s)")
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    table = [["heads", "key dimension", "standard deviation of the logits"]]
    with torch.no_grad():
        for heads, key_dims in KEY_DIMS.items():
            for key_dim in key_dims:
                values = torch.stack([logits(build(heads, key_dim), args.positions) for _ in range(args.layers)])
                table.append([heads, str(key_dim), f"{float(values.std()):.2f}"])
    return pages.table(table, numbers=True) + "\n"


if __name__ == "__main__":
    sys.exit(guarded("logits.py", lambda: sys.stdout.write(markdown(sys.argv[1:])) and 0))

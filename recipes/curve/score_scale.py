#!/usr/bin/env python3
"""Standard heads that divide their scores by the root of their own key dims: score_scale.py KEY_DIM FILE

By default standard heads of any width divide by the root of the dims that they have at full width, as in the paper's
runs. The file is a checkpoint without weights for `fairseq-train --attention-from FILE`, of the curve's model.
"""

import sys
from pathlib import Path

from collab_fairseq import checkpoints
from collab_fairseq.attention.kinds import SITES

LAYERS, HEADS = 2, 8


def main() -> None:
    key_dim, file = int(sys.argv[1]), Path(sys.argv[2])
    shapes = {f"{site}.{layer}": {"scale": (key_dim / HEADS) ** -0.5} for site in SITES for layer in range(LAYERS)}
    model = {
        "_name": "transformer_collab", "collaborative_heads": "none", "key_dim": key_dim, "attention_shapes": shapes,
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.save({"cfg": {"model": model}, "model": {}}, file)


if __name__ == "__main__":
    main()

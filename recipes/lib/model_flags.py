#!/usr/bin/env python3
"""fairseq-train's flags for a model of the sizes of a checkpoint, one per line: model_flags.py CHECKPOINT"""

import logging
import sys
from typing import Any, List, Mapping

from collab_fairseq import checkpoints
from collab_fairseq.modules.stock import as_transformer_collab, model_config

SWITCHES = (
    "share_all_embeddings", "share_decoder_input_output_embed", "encoder_normalize_before", "decoder_normalize_before",
    "encoder_learned_pos", "decoder_learned_pos", "layernorm_embedding",
)  # fmt: skip


def flags(path: str) -> List[str]:
    """fairseq-train's flags for a model of the sizes of a checkpoint."""
    config: Mapping[str, Any] = model_config(as_transformer_collab(checkpoints.load(path)))
    found = ["--arch", "transformer_collab"]
    for side in ("encoder", "decoder"):
        for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
            found += [f"--{side}-{name.replace('_', '-')}", str(config[f"{side}_{name}"])]
    for name in ("dropout", "attention_dropout", "activation_dropout", "activation_fn"):
        found += [f"--{name.replace('_', '-')}", str(config.get(name) or ("relu" if name == "activation_fn" else 0))]
    for name in SWITCHES:
        if config.get(name):
            found.append(f"--{name.replace('_', '-')}")
    return found


if __name__ == "__main__":
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    sys.stdout.write("\n".join(flags(sys.argv[1])) + "\n")

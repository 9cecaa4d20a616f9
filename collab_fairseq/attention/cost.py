"""Parameters and cache of an attention layer, counted on the layer itself; :func:`.kinds.sized` makes such layers."""

import torch

from .layer import AttentionLayer


def parameters(layer: AttentionLayer) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in layer.parameters())


@torch.no_grad()
def kv_cache_per_token(layer: AttentionLayer) -> int:
    """KV cache per token: the numbers that decoding keeps for each position of a row."""
    weight = layer.q_proj.weight
    key = weight.new_empty(1, 1, layer.kdim)
    entry = layer.project(key, key if layer.vdim == layer.kdim else weight.new_empty(1, 1, layer.vdim))
    return sum(kept.numel() for kept in entry if kept is not None)

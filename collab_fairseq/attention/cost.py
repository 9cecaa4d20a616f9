"""Parameters, multiply–adds and cache of an attention layer, counted on the layer itself.

:func:`.kinds.sized` makes layers to count on. Equations and Table 1 of
Cordonnier, Loukas, Jaggi (2020), section 3: with T queries, S keys, width E, H heads and key dim Dk the scores take

    standard       T·E·Dk + S·E·Dk + T·S·Dk
    collaborative  T·E·Dk + S·E·Dk + T·H·Dk + T·S·H·Dk

The collaborative layer mixes queries only (T·H·Dk); the paper counts mixing for queries and keys (2·T·H·Dk).
"""

import torch

from .layer import AttentionLayer


def parameters(layer: AttentionLayer) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in layer.parameters())


@torch.no_grad()
def cache_numbers(layer: AttentionLayer) -> int:
    """Numbers that decoding keeps for each position of a row."""
    weight = layer.q_proj.weight
    key = weight.new_empty(1, 1, layer.kdim)
    entry = layer.project(key, key if layer.vdim == layer.kdim else weight.new_empty(1, 1, layer.vdim))
    return sum(kept.numel() for kept in entry if kept is not None)


def multiply_adds(layer: AttentionLayer, query_len: int, key_len: int) -> int:
    """Multiply–adds of one sentence, ``query_len`` (T) queries over ``key_len`` (S) keys; no biases, no softmax.

    The layer must compute attention by the kernel ``bmm``.
    """
    from torch.utils.flop_counter import FlopCounterMode  # late, since it takes a while

    weight = layer.q_proj.weight
    query, key = weight.new_empty(1, query_len, layer.embed_dim), weight.new_empty(1, key_len, layer.kdim)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(query, key, key)
    mixing = getattr(layer, "mixing", None)  # torch counts products of matrices, not of their elements
    return int(counter.get_total_flops()) // 2 + (0 if mixing is None else query_len * mixing.numel())

"""Kernel ``bmm``: batched matrix products. It supports all inputs, devices and derivatives.

    logits_h = Q_h Kᵀ + c_h        P_h = softmax(logits_h + mask)        O_h = dropout(P_h) V_h

The queries of heads that share a key are stacked, (N, H·T, d), and multiplied with it in one product, so the key is
never copied per head. The B beams of a sentence are more rows of the same product. For the backward pass, autograd
saves the queries and the attention weights of all heads.
"""

from typing import Optional

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..cache import Attended, KeyValue


def mix(query: Tensor, mixing: Tensor, scale: float) -> Tensor:
    """Q ⊙ m_h · scale for every head, (N, H, T, D̃k), from shared queries (N, T, D̃k) and the mixing matrix (H, D̃k)."""
    # under autocast the mixing matrix has a wider dtype than the queries, which must keep theirs
    return query.unsqueeze(1) * (mixing * scale).to(query.dtype).unsqueeze(1)


def attend(query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool) -> Attended:
    """Head outputs and attention weights.

    Args:
        query: (N, H, T, d), scaled, for N sentences, H heads and T queries; beams are folded into T.
        entry: key (N, G, S, d) for G groups of heads and S key positions; value (N, G', S, dv) for G' groups; content
            (N, H, S), scaled, or None.
        mask: additive, broadcasts to (N, H, T, S), without rows that are all −inf; or None.
        dropout: probability of dropping an attention weight.
        need_weights: also return the attention weights.

    Returns:
        outputs (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    weights = attention_weights(query, entry.key, entry.content, mask)
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    outputs = _stack_groups(dropped, entry.value.size(1)).matmul(entry.value)
    return _split_groups(outputs, *weights.shape[1:3]), weights if need_weights else None


def attention_weights(query: Tensor, key: Tensor, content: Optional[Tensor], mask: Optional[Tensor]) -> Tensor:
    """Attention weights (N, H, T, S) before dropout; for the arguments see :func:`attend`.

    The softmax is computed in float32, or in float64 for float64 logits.
    """
    logits = _stack_groups(query, key.size(1)).matmul(key.transpose(-2, -1))
    logits = _split_groups(logits, *query.shape[1:3])
    if content is not None:
        logits = logits + content.unsqueeze(2)
    dtype = logits.dtype
    if mask is not None:
        logits = logits + mask
    softmax_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.softmax(logits, dim=-1, dtype=softmax_dtype).to(dtype)


# torch.export cannot merge two dimensions of unknown length: it goes through one dimension


def _stack_groups(heads: Tensor, groups: int) -> Tensor:
    """(N, H, T, d) → (N, G, H/G·T, d): stack the heads of each group."""
    rows, num_heads, length, width = heads.shape
    if groups == num_heads:
        return heads
    heads = heads.flatten() if is_compiling() else heads
    return heads.reshape(rows, groups, num_heads // groups * length, width)


def _split_groups(stacked: Tensor, num_heads: int, length: int) -> Tensor:
    """(N, G, H/G·T, d) → (N, H, T, d): the inverse of :func:`_stack_groups`."""
    rows, groups, _, width = stacked.shape
    if groups == num_heads:
        return stacked
    stacked = stacked.flatten() if is_compiling() else stacked
    return stacked.view(rows, num_heads, length, width)

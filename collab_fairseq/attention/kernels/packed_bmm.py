"""Heads as one batched matrix product per sentence and key: the plain way, right everywhere.

    scores_h = Q_h Kᵀ + c_h        P_h = softmax(scores_h + mask)        O_h = dropout(P_h) V_h

The queries of heads that share a key are laid one below the other, (N, H·T, d), and meet it in a single product; the
key is never copied per head. B beams of a sentence are rows of the same product. Autograd keeps the queries and the
weights of all heads for the backward pass.
"""

from typing import Optional

import torch
from torch import Tensor

from ..cache import Attended, KeyValue


def mix(query: Tensor, mixing: Tensor, scale: float) -> Tensor:
    """Q ⊙ m_h · scale of every head, (N, H, T, D̃k), of shared queries (N, T, D̃k) and a mixing matrix (H, D̃k)."""
    # under autocast the mixing matrix is wider than the queries, which are not to be widened
    return query.unsqueeze(1) * (mixing * scale).to(query.dtype).unsqueeze(1)


def attend(query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool) -> Attended:
    """Head outputs and attention weights.

    Args:
        query: (N, H, T, d), scaled (beams, if any, folded into T). N: sentences, H: heads, T: queries.
        entry: key (N, G, S, d) and value (N, G', S, dv) of G and G' groups of heads, S: keys; content (N, H, S),
            scaled, or None.
        mask: additive, broadcasts to (N, H, T, S), no row wholly −inf; or None.
        dropout: probability with which an attention weight is dropped.
        need_weights: return the weights too.

    Returns:
        outputs (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    weights = weigh(query, entry.key, entry.content, mask)
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    outputs = _grouped(dropped, entry.value.size(1)).matmul(entry.value)
    return outputs.view(*weights.shape[:3], entry.value.size(3)), weights if need_weights else None


def weigh(query: Tensor, key: Tensor, content: Optional[Tensor], mask: Optional[Tensor]) -> Tensor:
    """The attention weights (N, H, T, S); arguments as in :func:`attend`.

    The softmax is computed in float32 or wider.
    """
    scores = _grouped(query, key.size(1)).matmul(key.transpose(-2, -1))
    scores = scores.view(*query.shape[:3], key.size(2))
    if content is not None:
        scores = scores + content.unsqueeze(2)
    dtype = scores.dtype
    if mask is not None:
        scores = scores + mask
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.softmax(scores, dim=-1, dtype=wide).to(dtype)


def _grouped(heads: Tensor, groups: int) -> Tensor:
    """(N, H, T, d) → (N, G, H/G·T, d): heads of a group below one another."""
    rows, number, length, width = heads.shape
    return heads if groups == number else heads.reshape(rows, groups, number // groups * length, width)

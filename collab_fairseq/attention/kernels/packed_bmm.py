"""Heads as one batched matrix product per sentence and key: the plain way, right everywhere.

    scores_h = (Q_h Kᵀ + c_h) · scale        P_h = softmax(scores_h + mask)        context_h = dropout(P_h) V_h

Q_h is Q ⊙ m_h for collaborative heads. The queries of heads that share a key are laid one below the other,
(N, H·T, D̃k), and meet it in a single product; the key is never copied per head. B beams of a sentence are rows of the
same product. Autograd keeps the mixed queries and the weights of all heads for the backward pass.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..cache import KeyValue


def mix(query: Tensor, mixing: Tensor, scale: float) -> Tensor:
    """Q ⊙ m_h · scale of every head, (N, H, T, D̃k); arguments as in :func:`attend`."""
    # under autocast the mixing matrix is wider than the queries, which are not to be widened
    return query.unsqueeze(1) * (mixing * scale).to(query.dtype).unsqueeze(1)


def attend(
    query: Tensor,
    mixing: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Head contexts and attention weights of collaborative heads.

    Args:
        query: (N, T, D̃k), shared queries, not mixed, not scaled (beams, if any, folded into T).
        mixing: (H, D̃k).
        entry: key (N, S, D̃k), value (N, G, S, dv) of G groups of heads, content (N, H, S) or None.
        mask: additive, broadcasts to (N, H, T, S), no row wholly −inf; or None.
        scale: factor on the scores.
        dropout: probability with which an attention weight is dropped.
        need_weights: return the weights too.

    Returns:
        context (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    content = entry.content
    scaled = None if content is None else content * scale
    weights = weigh(mix(query, mixing, scale), entry.key.unsqueeze(1), scaled, mask)
    return _read(weights, entry.value, dropout), weights if need_weights else None


def obstacle(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why these arguments of :func:`attend` cannot be computed in this way, or None: nothing ever is in its way."""
    return None


def attend_standard(
    query: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float, dropout: float, need_weights: bool
) -> Tuple[Tensor, Optional[Tensor]]:
    """Head contexts and attention weights of standard heads.

    Args:
        query: (N, H, T, dk), not scaled (beams, if any, folded into T).
        entry: key (N, G, S, dk), value (N, G, S, dv) of G groups of heads.
        mask, scale, dropout, need_weights: as in :func:`attend`.

    Returns:
        context (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    weights = weigh(query * scale, entry.key, None, mask)
    return _read(weights, entry.value, dropout), weights if need_weights else None


def _grouped(heads: Tensor, groups: int) -> Tensor:
    """(N, H, T, d) → (N, G, H/G·T, d): heads of a group below one another."""
    rows, number, length, width = heads.shape
    return heads if groups == number else heads.reshape(rows, groups, number // groups * length, width)


def weigh(query: Tensor, key: Tensor, content: Optional[Tensor], mask: Optional[Tensor]) -> Tensor:
    """Weights (N, H, T, S) of scaled queries (N, H, T, d), keys (N, G, S, d) of groups of heads, content (N, H, S).

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


def _read(weights: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Contexts (N, H, T, dv) from weights (N, H, T, S) and values (N, G, S, dv) of groups of heads."""
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    context = _grouped(dropped, value.size(1)).matmul(value)
    return context.view(*weights.shape[:3], value.size(3))

"""Collaborative heads as one batched matrix product per sentence: the plain way, right everywhere.

    scores_h = [(Q ⊙ m_h) Kᵀ + c_h] · scale        P_h = softmax(scores_h + mask)        context_h = dropout(P_h) V_h

The mixed queries of all heads are laid one below the other, (N, H·T, D̃k), and meet the shared key (N, S, D̃k) in a
single product; the key is never copied per head. B beams of a sentence are rows of the same product. Autograd keeps the
mixed queries and the weights of all heads for the backward pass.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..cache import KeyValue
from .softmax import softmax_in_float


def weigh(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float) -> Tensor:
    """Attention weights P, (N, H, T, S); arguments as in :func:`attend`."""
    rows, query_len, key_dim = query.shape
    heads = mixing.size(0)
    mixed = query.unsqueeze(1) * (mixing * scale).unsqueeze(1)  # (N, H, T, D̃k)
    scores = mixed.reshape(rows, heads * query_len, key_dim).bmm(entry.key.transpose(1, 2))
    scores = scores.view(rows, heads, query_len, entry.key.size(1))
    content = entry.content
    if content is not None:
        scores = scores + (content * scale).unsqueeze(2)
    return softmax_in_float(scores, mask)


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
        entry: key (N, S, D̃k), value (N, H, S, dv), content (N, H, S) or None.
        mask: additive, broadcasts to (N, H, T, S), float32 or wider, no row wholly −inf; or None.
        scale: factor on the scores.
        dropout: probability with which an attention weight is dropped.
        need_weights: return the weights too.

    Returns:
        context (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    weights = weigh(query, mixing, entry, mask, scale)
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    return dropped.matmul(entry.value), weights if need_weights else None


def obstacle(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why these arguments of :func:`attend` cannot be computed in this way, or None: nothing ever is in its way."""
    return None

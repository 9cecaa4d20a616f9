"""Standard heads as one batched matrix product over sentences and heads: the plain way.

    scores_h = Q_h K_hᵀ · scale        P_h = softmax(scores_h + mask)        context_h = dropout(P_h) V_h

B beams of a sentence are rows of the same product.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..cache import KeyValue
from .softmax import softmax_in_float


def weigh(query: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float) -> Tensor:
    """Attention weights P, (N, H, T, S); arguments as in :func:`attend`."""
    return softmax_in_float((query * scale).matmul(entry.key.transpose(-2, -1)), mask)


def attend(
    query: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Head contexts and attention weights of standard heads.

    Args:
        query: (N, H, T, dk), not scaled (beams, if any, folded into T).
        entry: key (N, H, S, dk), value (N, H, S, dv).
        mask, scale, dropout, need_weights: as in :mod:`.packed_bmm`.

    Returns:
        context (N, H, T, dv); weights (N, H, T, S) before dropout, or None.
    """
    weights = weigh(query, entry, mask, scale)
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    return dropped.matmul(entry.value), weights if need_weights else None

"""Standard heads as one batched matrix product over sentences and heads: what the baseline runs on.

    scores_h = Q_h K_hᵀ · scale        P_h = softmax(scores_h + mask)        context_h = dropout(P_h) V_h

B beams of a sentence are rows of the same product.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..cache import KeyValue
from .softmax import softmax_in_float


def attend(
    query: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float, dropout: float
) -> Tuple[Tensor, Tensor]:
    """Head contexts and attention weights of standard heads.

    Args:
        query: (N, H, T, dk), not scaled (beams, if any, folded into T).
        entry: key (N, H, S, dk), value (N, H, S, dv).
        mask, scale, dropout: as in :mod:`.packed_bmm`.

    Returns:
        context (N, H, T, dv); weights (N, H, T, S) before dropout.
    """
    scores = (query * scale).matmul(entry.key.transpose(-2, -1))
    weights = softmax_in_float(scores, mask)
    dropped = torch.nn.functional.dropout(weights, p=dropout) if dropout > 0.0 else weights
    return dropped.matmul(entry.value), weights

"""The softmax that the plain ways share."""

from typing import Optional

import torch
from torch import Tensor


def softmax_in_float(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    """softmax(scores + mask) over the last dimension, computed in float32 or wider, returned in the type of the scores.

    Args:
        scores: (N, H, T, S).
        mask: additive, broadcasts to the scores, float32 or wider; None where every key is visible.
    """
    dtype = scores.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=wide).to(dtype)

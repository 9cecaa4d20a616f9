"""Which hypotheses of a beam search belong to one sentence; letters as in :mod:`.cache`."""

from typing import Optional, Tuple

import torch
from torch import Tensor

Moved = Optional[Tuple[Tensor, int]]


def moved(order: Tensor, beams: int, sentences: int) -> Moved:
    """Which rows of the source the hypotheses read in a new order. A GPU is waited for.

    Args:
        order: hypotheses (R', ), of ``sentences`` · B. beams: B, hypotheses that have read each row so far.

    Returns:
        Rows (R' / B, ) and B where every B neighbours read one row; rows (R', ) and 1 where they do not; None where
        they do, all sentences are still there, and they are in the same order.
    """
    rows = torch.div(order, beams, rounding_mode="floor")
    if order.size(0) % beams != 0:
        return rows, 1
    sources = rows.view(-1, beams)
    together = (sources == sources[:, :1]).all()
    found = together.int()
    if sources.size(0) == sentences:
        own = torch.arange(sentences, device=order.device)
        found = found + (together & (sources[:, 0] == own).all()).int()
    number = int(found.item())  # both answers at once
    if number > 1:
        return None
    return (sources[:, 0], beams) if number > 0 else (rows, 1)

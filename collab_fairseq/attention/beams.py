"""Reorder the source rows of a beam search; shapes as in :mod:`.cache`."""

from typing import Optional, Tuple

import torch
from torch import Tensor

Moved = Optional[Tuple[Tensor, int]]


def moved(order: Tensor, beams: int, sentences: int) -> Moved:
    """Find the source rows that the hypotheses read after reordering. Synchronizes with a GPU once.

    Args:
        order: (R', ), indices of the ``sentences`` · B former hypotheses.
        beams: B, consecutive hypotheses that read the same source row so far.
        sentences: number of source rows so far.

    Returns:
        Rows to select, (R' / B, ), and B, if groups of B consecutive hypotheses still read the same row; otherwise
        rows (R', ), one per hypothesis, and 1. None if nothing changes: every group reads the same row as before.
    """
    rows = torch.div(order, beams, rounding_mode="floor")
    if order.size(0) % beams != 0:
        return rows, 1
    groups = rows.view(-1, beams)
    together = (groups == groups[:, :1]).all()
    state = together.int()
    if groups.size(0) == sentences:
        same_rows = torch.arange(sentences, device=order.device)
        unchanged = together & (groups[:, 0] == same_rows).all()
        state = state + unchanged.int()
    answer = int(state.item())  # 0: separate, 1: together, 2: unchanged; one synchronization for both questions
    if answer == 2:
        return None
    return (groups[:, 0], beams) if answer == 1 else (rows, 1)

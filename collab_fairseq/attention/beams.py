"""Which hypotheses of a beam search belong to one sentence; letters as in :mod:`.cache`."""

import threading
import weakref
from typing import Optional, Tuple

import torch
from torch import Tensor

from .masks import found_once
from .transforms import is_tracing

#: the last order that was looked at in this thread, and what was seen
_last = threading.local()


def stay_together(order: Tensor, beams: int, sentences: int) -> Tuple[bool, bool]:
    """Whether every B neighbours of a new order come from one sentence; whether also no sentence changes its place.

    Every cross-attention and the encoder are asked the same at every step of a search. A GPU has to be waited for the
    first time only, as long as the order is not written to (which a replayed CUDA graph does unseen).

    Args:
        order: hypotheses (R', ), of ``sentences`` · B. beams: B.
    """
    if order.size(0) % beams != 0:
        return False, False
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _stay_together(order, beams, sentences)
    if is_tracing() or order.is_inference():  # nobody counts what is written to an inference tensor
        return _stay_together(order, beams, sentences)
    asked = order._version, beams, sentences
    last = getattr(_last, "seen", None)
    if last is None or last[0]() is not order or last[1] != asked:
        last = _last.seen = weakref.ref(order), asked, _stay_together(order, beams, sentences)
    seen: Tuple[bool, bool] = last[2]
    return seen


def _stay_together(order: Tensor, beams: int, sentences: int) -> Tuple[bool, bool]:
    sources = torch.div(order, beams, rounding_mode="floor").view(-1, beams)
    together = (sources == sources[:, :1]).all()
    found = together.int()
    if sources.size(0) == sentences:
        own = torch.arange(sentences, device=order.device)
        found = found + (together & (sources[:, 0] == own).all()).int()
    number = int(found.item())  # both answers at once
    return number > 0, number > 1


def one_row_per_sentence(inputs: Tensor, padding: Optional[Tensor], beams: int) -> bool:
    """Whether (R, S, kdim) is every sentence repeated ``beams`` times, so that one row per sentence says it all.

    The beam size set for a search outlives it; a later batch that happens to have as many rows must not be taken for
    beams.
    """
    if beams < 2 or inputs.size(0) % beams != 0:
        return False
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _equal_within_beams(inputs, padding, beams)
    return bool(found_once(_equal_within_beams, inputs, padding, beams))  # every layer asks


def _equal_within_beams(inputs: Tensor, padding: Optional[Tensor], beams: int) -> bool:
    grouped = inputs.reshape(-1, beams, inputs.size(1), inputs.size(2))
    same = torch.equal(grouped[:, 1:], grouped[:, :1].expand_as(grouped[:, 1:]))
    if same and padding is not None:
        masks = padding.reshape(-1, beams, padding.size(1))
        same = torch.equal(masks[:, 1:], masks[:, :1].expand_as(masks[:, 1:]))
    return same

"""What decoding keeps for a layer, a dict of optional tensors under fairseq's incremental state:

``prev_key``               (N, C, D̃k) shared, or (N, H, C, dk) of standard heads
``prev_value``             (N, H, C, dv)
``prev_content``           (N, H, C) or None
``prev_length``            S as a scalar: so many of the C ≥ S positions are in use
``prev_written``           scalar that copies of the state share, see ``GrowingCache`` of ``attention/cache.py``
``prev_key_padding_mask``  (N, S) boolean or None
``spare_key``, …           memory for the next reordering
``prev_beams``             cross-attention only: B as a scalar; rows are sentences where B > 1, hypotheses where B = 1

A copy of an incremental state (``copy.copy``) goes on by itself; one that waits while another is reordered twice is
refused. ``copy.deepcopy`` shares nothing.
"""

from typing import Dict, Optional

import torch
from torch import Tensor

from collab_fairseq.attention import KeyValue
from collab_fairseq.attention.cache import GrowingCache, lost


def one_row_per_sentence(inputs: Tensor, padding: Optional[Tensor], beams: int) -> bool:
    """Whether (R, S, kdim) is every sentence repeated ``beams`` times, so that one row per sentence says it all.

    The beam size set for a search outlives it; a later batch that happens to have as many rows must not be taken for
    beams.
    """
    if beams < 2 or inputs.size(0) % beams != 0:
        return False
    grouped = inputs.reshape(-1, beams, inputs.size(1), inputs.size(2))
    same = torch.equal(grouped[:, 1:], grouped[:, :1].expand_as(grouped[:, 1:]))
    if same and padding is not None:
        masks = padding.reshape(-1, beams, padding.size(1))
        same = torch.equal(masks[:, 1:], masks[:, :1].expand_as(masks[:, 1:]))
    return same


def extend_padding(
    past: Optional[Tensor], new: Optional[Tensor], rows: int, past_len: int, new_len: int, device: torch.device
) -> Optional[Tensor]:
    """Key padding mask (N, past + new) of a grown cache; what had no mask has no padding."""
    if past is None and new is None:
        return None
    if past is None:
        past = torch.zeros(rows, past_len, dtype=torch.bool, device=device)
    if new is None:
        new = torch.zeros(rows, new_len, dtype=torch.bool, device=device)
    return torch.cat([past.to(torch.bool), new.to(torch.bool)], dim=1)


def load(state: Dict[str, Optional[Tensor]]) -> Optional[GrowingCache]:
    """The cache that :func:`store` put there, or None at the first step.

    Raises:
        ValueError: another copy of the state has overwritten it.
    """
    key, value, length = state.get("prev_key"), state.get("prev_value"), state.get("prev_length")
    written = state.get("prev_written")
    if key is None or value is None or length is None or written is None:
        return None
    spare: Optional[KeyValue] = None
    spare_key, spare_value = state.get("spare_key"), state.get("spare_value")
    if spare_key is not None and spare_value is not None:
        spare = KeyValue(spare_key, spare_value, state.get("spare_content"))
    held = KeyValue(key, value, state.get("prev_content"))
    cache = GrowingCache(held, int(length.item()), written, spare, state.get("spare_written"))
    if lost(cache):
        raise ValueError(
            "expected an incremental state that is still its own, but another copy of it was reordered twice and has "
            "overwritten it: copy it with copy.deepcopy"
        )
    return cache


def store(cache: GrowingCache, padding: Optional[Tensor]) -> Dict[str, Optional[Tensor]]:
    """What decoding keeps of a layer: see the top of this file."""
    kept = torch.jit.annotate(Dict[str, Optional[Tensor]], {})
    kept["prev_key"] = cache.held.key
    kept["prev_value"] = cache.held.value
    kept["prev_content"] = cache.held.content
    kept["prev_length"] = torch.tensor(cache.length)
    kept["prev_written"] = cache.written
    kept["prev_key_padding_mask"] = padding
    spare = cache.spare
    if spare is not None:
        kept["spare_key"] = spare.key
        kept["spare_value"] = spare.value
        kept["spare_content"] = spare.content
        kept["spare_written"] = cache.spare_written
    return kept

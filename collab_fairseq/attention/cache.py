"""Keys and values that attention has projected once and will read again.

Shapes, here and in the whole package:

====  =============================================================================
N     sentences of the batch (rows of the cache)
R     query rows; R = N · B where B beams read the keys of one sentence
T     query positions
S     key positions
H     heads
D̃k    shared key dim (``key_dim``)
dk    key dim of one standard head, ``key_dim / H``
dv    value dim of one head, ``embed_dim / H``
====  =============================================================================
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor


class KeyValue(NamedTuple):
    """Projected keys and values of some positions: what :meth:`project` returns and :meth:`attend` reads.

    Attributes:
        key: (N, S, D̃k) for collaborative heads, which share it; (N, H, S, dk) for standard heads.
        value: (N, H, S, dv).
        content: (N, H, S), the content score ``Y v_i`` of every key position for every head (eq. 13), before the
            scale; None without content bias.
    """

    key: Tensor
    value: Tensor
    content: Optional[Tensor] = None


def extend(past: KeyValue, new: KeyValue) -> KeyValue:
    """Append the key positions of ``new`` to those of ``past`` (same rows, same heads)."""
    content = past.content
    new_content = new.content
    if content is not None and new_content is not None:
        content = torch.cat([content, new_content], dim=-1)
    return KeyValue(
        torch.cat([past.key, new.key], dim=-2),
        torch.cat([past.value, new.value], dim=-2),
        content,
    )


def select(entry: KeyValue, rows: Tensor) -> KeyValue:
    """Pick rows (N', ) of a cache entry, as beam search does when it reorders its hypotheses."""
    content = entry.content
    if content is not None:
        content = content.index_select(0, rows)
    return KeyValue(entry.key.index_select(0, rows), entry.value.index_select(0, rows), content)

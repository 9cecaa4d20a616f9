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


#: positions of spare room that a cache is given whenever it must grow
SPARE_POSITIONS = 8


class GrowingCache(NamedTuple):
    """Keys and values of a decoder's past, which every step extends and beam search reorders.

    Without gradients both happen in memory that is used again and again: fresh memory for some megabytes at every step
    costs more than the arithmetic of the step.

    Attributes:
        held: as :class:`KeyValue`, with C ≥ S key positions, of which the first ``length`` are in use.
        length: S.
        spare: where the next reordering writes to; None before the first.
    """

    held: KeyValue
    length: int
    spare: Optional[KeyValue] = None


def visible(cache: GrowingCache) -> KeyValue:
    """The positions in use."""
    content = cache.held.content
    if content is not None:
        content = content.narrow(-1, 0, cache.length)
    return KeyValue(
        cache.held.key.narrow(-2, 0, cache.length), cache.held.value.narrow(-2, 0, cache.length), content
    )


def _room(past: Tensor, new: Tensor, dim: int, spare_positions: int = SPARE_POSITIONS) -> Tensor:
    """Memory for ``past``, then ``new``, then spare positions; ``past`` is there already."""
    shape = list(past.shape)
    shape[dim] = past.size(dim) + new.size(dim) + spare_positions
    room = past.new_empty(shape)
    room.narrow(dim, 0, past.size(dim)).copy_(past)
    return room


def append(cache: GrowingCache, new: KeyValue) -> GrowingCache:
    """The cache with the key positions of ``new`` after its own."""
    count = new.value.size(-2)
    length = cache.length + count
    if torch.is_grad_enabled():
        return GrowingCache(extend(visible(cache), new), length)
    held, spare = cache.held, cache.spare
    if length > held.value.size(-2):
        past, spare = visible(cache), None
        content, new_content = past.content, new.content
        if content is not None and new_content is not None:
            content = _room(content, new_content, -1)
        held = KeyValue(_room(past.key, new.key, -2), _room(past.value, new.value, -2), content)
    held.key.narrow(-2, cache.length, count).copy_(new.key)
    held.value.narrow(-2, cache.length, count).copy_(new.value)
    content, new_content = held.content, new.content
    if content is not None and new_content is not None:
        content.narrow(-1, cache.length, count).copy_(new_content)
    return GrowingCache(held, length, spare)


def _gather(held: Tensor, rows: Tensor, spare: Optional[Tensor]) -> Tensor:
    """Rows of ``held``, written to ``spare`` where that fits."""
    if spare is None or spare.size(0) < rows.size(0):
        return held.index_select(0, rows)
    return torch.index_select(held, 0, rows, out=spare[: rows.size(0)])


def reorder(cache: GrowingCache, rows: Tensor) -> GrowingCache:
    """The cache with rows (N', ) of its own, as beam search picks them."""
    if torch.is_grad_enabled():
        return GrowingCache(select(visible(cache), rows), cache.length)
    held, spare = cache.held, cache.spare
    content, spare_content = held.content, spare.content if spare is not None else None
    if content is not None:
        content = _gather(content, rows, spare_content)
    key = _gather(held.key, rows, spare.key if spare is not None else None)
    value = _gather(held.value, rows, spare.value if spare is not None else None)
    return GrowingCache(KeyValue(key, value, content), cache.length, held)

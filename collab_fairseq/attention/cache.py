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
    costs more than the arithmetic of the step. A cache may be copied by reference and each copy go on by itself: the
    first to go on keeps the memory, the others copy what they need of it. That is too late (:func:`lost`) for a copy
    that has waited while another was reordered twice.

    Attributes:
        held: as :class:`KeyValue`, with C ≥ S key positions, of which the first ``length`` are in use.
        length: S.
        written: scalar, shared by all caches in the memory of ``held``: how many positions are written there; −1 once a
            reordering has left it, −2 once a later one has overwritten it.
        spare: where the next reordering writes to, if the memory of ``held`` is still this cache's; None before the
            first. spare_written: the same of it as ``written`` of ``held``.
    """

    held: KeyValue
    length: int
    written: Tensor
    spare: Optional[KeyValue] = None
    spare_written: Optional[Tensor] = None


def start(entry: KeyValue) -> GrowingCache:
    """A cache of all positions of an entry."""
    length = entry.value.size(-2)
    return GrowingCache(entry, length, torch.tensor(length))


def lost(cache: GrowingCache) -> bool:
    """Whether what was held has been overwritten by another copy of the cache."""
    return int(cache.written.item()) == -2


def _owns(cache: GrowingCache) -> bool:
    """Whether no copy of the cache has gone on since."""
    return int(cache.written.item()) == cache.length


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
    if torch.is_grad_enabled():
        return start(extend(visible(cache), new))
    count = new.value.size(-2)
    length = cache.length + count
    held, written, spare, spare_written = cache.held, cache.written, cache.spare, cache.spare_written
    if length > held.value.size(-2) or not _owns(cache):
        past, written, spare, spare_written = visible(cache), torch.tensor(length), None, None
        content, new_content = past.content, new.content
        if content is not None and new_content is not None:
            content = _room(content, new_content, -1)
        held = KeyValue(_room(past.key, new.key, -2), _room(past.value, new.value, -2), content)
    held.key.narrow(-2, cache.length, count).copy_(new.key)
    held.value.narrow(-2, cache.length, count).copy_(new.value)
    content, new_content = held.content, new.content
    if content is not None and new_content is not None:
        content.narrow(-1, cache.length, count).copy_(new_content)
    written.fill_(length)
    return GrowingCache(held, length, written, spare, spare_written)


def _gather(held: Tensor, rows: Tensor, spare: Optional[Tensor]) -> Tensor:
    """Rows of ``held``, written to ``spare`` where there is one."""
    if spare is None:
        return held.index_select(0, rows)
    return torch.index_select(held, 0, rows, out=spare[: rows.size(0)])


def reorder(cache: GrowingCache, rows: Tensor) -> GrowingCache:
    """The cache with rows (N', ) of its own, as beam search picks them."""
    if torch.is_grad_enabled():
        return start(select(visible(cache), rows))
    held, spare, spare_written, owns = cache.held, cache.spare, cache.spare_written, _owns(cache)
    if spare is not None and (not owns or spare.value.size(0) < rows.size(0)):
        spare = None
    if spare is not None and spare_written is not None:
        spare_written.fill_(-2)
    content, spare_content = held.content, spare.content if spare is not None else None
    if content is not None:
        content = _gather(content, rows, spare_content)
    key = _gather(held.key, rows, spare.key if spare is not None else None)
    value = _gather(held.value, rows, spare.value if spare is not None else None)
    picked, written = KeyValue(key, value, content), torch.tensor(cache.length)
    if not owns:
        return GrowingCache(picked, cache.length, written)
    cache.written.fill_(-1)
    return GrowingCache(picked, cache.length, written, held, cache.written)

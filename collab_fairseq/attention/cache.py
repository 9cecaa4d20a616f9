"""What decoding keeps of an attention layer: how it grows, is reordered and copied, and is stored.

Shapes, here and in the whole package:

====  =============================================================================
N     sentences of the batch (rows of the cache)
R     query rows; R = N · B where B beams read the keys of one sentence
T     query positions
S     key positions
H     heads
G     groups of H / G heads that share values, or keys and values
L     width of latents
D̃k    shared key dim (``key_dim``)
dk    key dim of one standard head, ``key_dim / H``
dv    value dim of one head, ``embed_dim / H``
====  =============================================================================

Between the steps of decoding a :class:`Cache` lies in fairseq's incremental state as a dict of optional tensors
(:func:`store`, :func:`load`):

``prev_key``               (N, C, D̃k) shared, or (N, G, C, dk) of standard heads, with C ≥ S
``prev_value``             (N, G, C, dv)
``prev_content``           (N, H, C) or None
``prev_length``            S as a scalar
``prev_written``           scalar that copies of the state share
``prev_key_padding_mask``  (N, S) boolean or None
``spare_key``, …           memory for the next reordering
``prev_beams``             keys of a source only: B as a scalar
"""

from typing import Dict, List, NamedTuple, Optional

import torch
from torch import Tensor

from .beams import stay_together


class KeyValue(NamedTuple):
    """Projected keys and values of some positions: what :meth:`project` returns and :meth:`attend` reads.

    Attributes:
        key: (N, S, D̃k) for collaborative heads, which share it; (N, G, S, dk) for standard heads; (N, S, 0) where
            keys and values are made from latents.
        value: (N, G, S, dv), where G is H if no head shares them; latents (N, 1, S, L).
        content: (N, H, S), the content score ``Y v_i`` of every key position for every head (eq. 13), before the
            scale; None without content bias.
    """

    key: Tensor
    value: Tensor
    content: Optional[Tensor] = None


def _parts(entry: KeyValue) -> List[Tensor]:
    """The tensors of an entry, each with rows first and positions last but one (TorchScript zips them not strictly)."""
    content = entry.content
    return [entry.key, entry.value] if content is None else [entry.key, entry.value, content.unsqueeze(-1)]


def _whole(parts: List[Tensor]) -> KeyValue:
    return KeyValue(parts[0], parts[1], parts[2].squeeze(-1) if len(parts) > 2 else None)


def of_each_head(shared: Tensor, heads: int) -> Tensor:
    """(N, G, S, d) of groups of heads as (N, H, S, d); a view where G is 1 or H."""
    share = heads // shared.size(1)
    return shared if share == 1 else shared.unsqueeze(2).expand(-1, -1, share, -1, -1).flatten(1, 2)


def extend(past: KeyValue, new: KeyValue) -> KeyValue:
    """Append the key positions of ``new`` to those of ``past`` (same rows, same heads)."""
    return _whole([torch.cat([before, after], dim=-2) for before, after in zip(_parts(past), _parts(new))])  # noqa: B905


def select(entry: KeyValue, rows: Tensor, out: Optional[KeyValue] = None) -> KeyValue:
    """Pick rows (N', ) of a cache entry, as beam search does when it reorders its hypotheses.

    Args:
        out: memory to write to, like ``entry`` with at least N' rows; None: new memory.
    """
    if out is None:
        return _whole([part.index_select(0, rows) for part in _parts(entry)])
    count = rows.size(0)
    pairs = zip(_parts(entry), _parts(out))  # noqa: B905
    return _whole([torch.index_select(part, 0, rows, out=memory[:count]) for part, memory in pairs])


#: positions of spare room that a cache is given whenever it must grow
SPARE_POSITIONS = 8


class Cache(NamedTuple):
    """Keys and values that decoding reads again at every step: a decoder's past, or the source.

    A past grows at every step and is reordered with the hypotheses of beam search. Without gradients both happen in
    memory that is used again and again: fresh memory for some megabytes at every step costs more than the arithmetic of
    the step. A cache may be copied by reference (``copy.copy`` of an incremental state) and each copy go on by itself:
    the first to go on keeps the memory, the others copy what they need of it. That is too late (:func:`lost`) for a
    copy that has waited while another was reordered twice. ``copy.deepcopy`` shares nothing.

    Attributes:
        held: as :class:`KeyValue`, with C ≥ S key positions, of which the first ``length`` are in use.
        length: S.
        written: scalar, shared by all caches in the memory of ``held``: how many positions are written there; −1 once a
            reordering has left it, −2 once a later one has overwritten it.
        spare: where the next reordering writes to, if the memory of ``held`` is still this cache's; None before the
            first. spare_written: the same of it as ``written`` of ``held``.
        padding: (N, S), True for positions that nobody sees; None: there are none.
        beams: 0 for a past. B for a source: that many hypotheses, side by side, read one row of it.
    """

    held: KeyValue
    length: int
    written: Tensor
    spare: Optional[KeyValue] = None
    spare_written: Optional[Tensor] = None
    padding: Optional[Tensor] = None
    beams: int = 0


def start(entry: KeyValue, padding: Optional[Tensor] = None, beams: int = 0) -> Cache:
    """A cache of all positions of an entry; for the others see :class:`Cache`."""
    if beams > 0:  # read at every step from now on
        entry = KeyValue(entry.key.contiguous(), entry.value.contiguous(), entry.content)
    length = entry.value.size(-2)
    return Cache(entry, length, torch.tensor(length), None, None, padding, beams)


def lost(cache: Cache) -> bool:
    """Whether what was held has been overwritten by another copy of the cache."""
    return int(cache.written.item()) == -2


def _owns(cache: Cache) -> bool:
    """Whether no copy of the cache has gone on since."""
    return int(cache.written.item()) == cache.length


def visible(cache: Cache) -> KeyValue:
    """The positions in use."""
    if cache.length == cache.held.value.size(-2):
        return cache.held
    return _whole([part.narrow(-2, 0, cache.length) for part in _parts(cache.held)])


def _with_room(past: Tensor, count: int, spare_positions: int = SPARE_POSITIONS) -> Tensor:
    """``past`` in memory of its own, with room for ``count`` more positions and spare ones behind it."""
    shape = list(past.shape)
    shape[-2] += count + spare_positions
    room = past.new_empty(shape)
    room.narrow(-2, 0, past.size(-2)).copy_(past)
    return room


def _extended_padding(cache: Cache, new: Optional[Tensor], count: int) -> Optional[Tensor]:
    """(N, S + count); what has no mask has no padding."""
    past = cache.padding
    if past is None and new is None:
        return None
    rows, device = cache.held.value.size(0), cache.held.value.device
    if past is None:
        past = torch.zeros(rows, cache.length, dtype=torch.bool, device=device)
    if new is None:
        new = torch.zeros(rows, count, dtype=torch.bool, device=device)
    return torch.cat([past.to(torch.bool), new.to(torch.bool)], dim=1)


def append(cache: Cache, new: KeyValue, padding: Optional[Tensor] = None) -> Cache:
    """The cache with the key positions of ``new``, and their padding (N, new) or None, after its own."""
    count = new.value.size(-2)
    length, padding = cache.length + count, _extended_padding(cache, padding, count)
    if torch.is_grad_enabled():
        return start(extend(visible(cache), new), padding, cache.beams)
    held, written, spare, spare_written = cache.held, cache.written, cache.spare, cache.spare_written
    if length > held.value.size(-2) or not _owns(cache):
        held = _whole([_with_room(part, count) for part in _parts(visible(cache))])
        written, spare, spare_written = torch.tensor(length), None, None
    for part, more in zip(_parts(held), _parts(new)):  # noqa: B905
        part.narrow(-2, cache.length, count).copy_(more)
    written.fill_(length)
    return Cache(held, length, written, spare, spare_written, padding, cache.beams)


def reorder(cache: Cache, rows: Tensor) -> Cache:
    """The cache with rows (N', ) of its own, as beam search picks them.

    Args:
        rows: of hypotheses, (R', ). A source is touched only where sentences leave the batch or change places. It has
            a row for each hypothesis from then on where neighbours come from several sentences.
    """
    beams = cache.beams
    if beams > 0:
        together, unmoved = stay_together(rows, beams, cache.held.value.size(0))
        if unmoved:
            return cache
        if together:
            rows = rows.view(-1, beams)[:, 0]
        rows, beams = torch.div(rows, beams, rounding_mode="floor"), beams if together else 1
    padding = cache.padding
    if padding is not None:
        padding = padding.index_select(0, rows)
    if torch.is_grad_enabled():
        return start(select(visible(cache), rows), padding, beams)
    spare, spare_written, owns = cache.spare, cache.spare_written, _owns(cache)
    if spare is not None and (not owns or spare.value.size(0) < rows.size(0)):
        spare = None
    if spare is not None and spare_written is not None:
        spare_written.fill_(-2)
    picked, written = select(cache.held, rows, spare), torch.tensor(cache.length)
    if not owns:
        return Cache(picked, cache.length, written, None, None, padding, beams)
    cache.written.fill_(-1)
    return Cache(picked, cache.length, written, cache.held, cache.written, padding, beams)


def load(state: Dict[str, Optional[Tensor]]) -> Optional[Cache]:
    """The cache that :func:`store` put there, or None at the first step.

    Raises:
        ValueError: another copy of the state has overwritten it.
    """
    key, value, length = state.get("prev_key"), state.get("prev_value"), state.get("prev_length")
    written, beams = state.get("prev_written"), state.get("prev_beams")
    if key is None or value is None or length is None or written is None:
        return None
    spare: Optional[KeyValue] = None
    spare_key, spare_value = state.get("spare_key"), state.get("spare_value")
    if spare_key is not None and spare_value is not None:
        spare = KeyValue(spare_key, spare_value, state.get("spare_content"))
    held = KeyValue(key, value, state.get("prev_content"))
    rows_share = int(beams.item()) if beams is not None else 0
    padding, spare_written = state.get("prev_key_padding_mask"), state.get("spare_written")
    cache = Cache(held, int(length.item()), written, spare, spare_written, padding, rows_share)
    if lost(cache):
        raise ValueError(
            "expected an incremental state that is still its own, but another copy of it was reordered twice and has "
            "overwritten it: copy it with copy.deepcopy"
        )
    return cache


def store(cache: Cache) -> Dict[str, Optional[Tensor]]:
    """The cache as fairseq keeps it: see the top of this file."""
    kept: Dict[str, Optional[Tensor]] = {
        "prev_key": cache.held.key,
        "prev_value": cache.held.value,
        "prev_content": cache.held.content,
        "prev_length": torch.tensor(cache.length),
        "prev_written": cache.written,
        "prev_key_padding_mask": cache.padding,
    }
    spare = cache.spare
    if spare is not None:
        kept["spare_key"] = spare.key
        kept["spare_value"] = spare.value
        kept["spare_content"] = spare.content
        kept["spare_written"] = cache.spare_written
    if cache.beams > 0:
        kept["prev_beams"] = torch.tensor(cache.beams)
    return kept

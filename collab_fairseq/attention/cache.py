"""What decoding keeps of an attention layer: how it grows and is reordered.

Shapes, here and in the whole package:

====  =============================================================================
N     sentences of the batch (rows of the cache)
R     query rows; R = N · B where B beams read the keys of one sentence
T     query positions
S     key positions
E     width of queries and of the output (``embed_dim``)
H     heads
G     groups of H / G heads that share values, or keys and values
D̃k    shared key dim (``key_dim``)
dk    key dim of one standard head, ``key_dim / H``
dv    value dim of one head (``head_dim``), E / H unless something else is given
====  =============================================================================
"""

from typing import Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class KeyValue(NamedTuple):
    """Projected keys and values of some positions: what :meth:`project` returns and :meth:`attend` reads.

    Attributes:
        key: (N, S, D̃k) for collaborative heads, which share it; (N, G, S, dk) for standard heads; (N, S, 0) where the
            value is what both are made from.
        value: (N, G, S, dv), where G is H if no head shares them; (N, 1, S, ·) where it is what both are made from.
        content: (N, H, S), the content score ``Y v_i`` of every key position for every head (eq. 13), before the
            scale; None without content bias.
    """

    key: Tensor
    value: Tensor
    content: Optional[Tensor] = None


#: outputs of heads, (N, H, T, dv), and their attention weights, (N, H, T, S) or None
Attended = Tuple[Tensor, Optional[Tensor]]


def _each(change: Callable[..., Tensor], *entries: KeyValue) -> KeyValue:
    """The entry that a function makes: it gets keys, then values, then content scores (N, H, S, 1), of all entries."""
    content = [entry.content.unsqueeze(-1) for entry in entries if entry.content is not None]
    return KeyValue(
        change(*(entry.key for entry in entries)),
        change(*(entry.value for entry in entries)),
        change(*content).squeeze(-1) if content else None,
    )


def repeat_kv(shared: Tensor, heads: int) -> Tensor:
    """(N, G, S, d) of groups of heads as (N, H, S, d); a view where G is 1 or H."""
    share = heads // shared.size(1)
    return shared if share == 1 else shared.unsqueeze(2).expand(-1, -1, share, -1, -1).flatten(1, 2)


class Cache(NamedTuple):
    """Keys and values that decoding reads again at every step: a decoder's past, or the source.

    It is never written to, so copies of a search's state may diverge.

    Attributes:
        entry: of N rows.
        padding: (N, S), True for positions that no query sees; None: there are none.
        beams: B of a source: that many hypotheses, side by side, read one row of it. 1 for a past.
    """

    entry: KeyValue
    padding: Optional[Tensor] = None
    beams: int = 1

    def append(self, new: KeyValue, padding: Optional[Tensor] = None) -> "Cache":
        """With the key positions of ``new``, and their padding (N, new) or None, behind its own."""
        if self.padding is not None or padding is not None:
            sizes, like = [entry.value.size(-2) for entry in (self.entry, new)], new.value
            masks = [
                like.new_zeros(like.size(0), size, dtype=torch.bool) if mask is None else mask.to(torch.bool)
                for mask, size in zip((self.padding, padding), sizes, strict=True)
            ]
            padding = torch.cat(masks, dim=1)
        return Cache(_each(lambda *parts: torch.cat(parts, dim=-2), self.entry, new), padding, self.beams)

    def select(self, rows: Tensor, beams: int = 1) -> "Cache":
        """Rows (N', ), each of them read by ``beams`` hypotheses."""
        padding = self.padding.index_select(0, rows) if self.padding is not None else None
        return Cache(_each(lambda part: part.index_select(0, rows), self.entry), padding, beams)

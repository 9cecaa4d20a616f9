"""The key-value cache of one attention layer: appending positions, selecting rows, reordering beams.

Shapes, here and in the whole package:

====  =============================================================================
N     sentences of the batch (rows of the cache)
R     query rows; R = N · B if B beams read the keys of one sentence
T     query positions
S     key positions
E     width of queries and of the output (``embed_dim``)
H     heads
G     groups of H / G heads that share values, or keys and values
D̃k    shared key dimension (``key_dim``)
dk    key dimension of one standard head, ``key_dim / H``
dv    value dimension of one head (``head_dim``), E / H by default
====  =============================================================================
"""

from typing import Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .masks import AttentionMask


class KeyValue(NamedTuple):
    """Projected keys and values: returned by :meth:`.AttentionLayer.project`, read by :meth:`.AttentionLayer.attend`.

    Attributes:
        key: (N, S, D̃k) for collaborative heads, (N, G, S, dk) for standard heads, (N, S, 0) for latent attention.
        value: (N, G, S, dv), with G = H unless heads share values; the latents, (N, 1, S, L), for latent attention.
        content: (N, H, S), the content logit ``Y v_i`` of every key position and head (eq. 13), not scaled; None
            without content bias.
    """

    key: Tensor
    value: Tensor
    content: Optional[Tensor] = None


#: outputs of heads, (N, H, T, dv), and their attention weights, (N, H, T, S) or None
Attended = Tuple[Tensor, Optional[Tensor]]


def repeat_kv(shared: Tensor, heads: int) -> Tensor:
    """Repeat the keys or values of groups, (N, G, S, d), for every head, (N, H, S, d). A view if G is 1 or H."""
    share = heads // shared.size(1)
    if share == 1:
        return shared
    return shared.unsqueeze(2).expand(-1, -1, share, -1, -1).flatten(1, 2)


def _apply(function: Callable[..., Tensor], *entries: KeyValue) -> KeyValue:
    """Apply a function of one tensor per entry to the keys, values and content logits (N, H, S, 1) of the entries."""
    content = [entry.content.unsqueeze(-1) for entry in entries if entry.content is not None]
    return KeyValue(
        function(*(entry.key for entry in entries)),
        function(*(entry.value for entry in entries)),
        function(*content).squeeze(-1) if content else None,
    )


def _boolean(padding: Optional[Tensor], entry: KeyValue) -> Tensor:
    """A padding mask (N, S) for an entry; None: no padding."""
    if padding is not None:
        return padding.to(torch.bool)
    rows, key_len = entry.value.size(0), entry.value.size(-2)
    return entry.value.new_zeros(rows, key_len, dtype=torch.bool)


class Cache(NamedTuple):
    """Keys and values that decoding reads at every step: of the target prefix or of the source.

    Caches are immutable, so that copies of a search state may diverge.

    Attributes:
        entry: N rows of keys and values.
        padding: (N, S), True for padding; None without padding.
        beams: B consecutive hypotheses read the same row of a source; 1 for a target prefix.
        mask: the padding of a source as :func:`.masks.combine` returns it, so that steps need not repeat that; None
            for a target prefix. ``padding`` is then None.
    """

    entry: KeyValue
    padding: Optional[Tensor] = None
    beams: int = 1
    mask: Optional[AttentionMask] = None

    def append(self, new: KeyValue, padding: Optional[Tensor] = None) -> "Cache":
        """Append the key positions of ``new``, with their padding (N, new positions) or None."""
        if self.padding is not None or padding is not None:
            padding = torch.cat([_boolean(self.padding, self.entry), _boolean(padding, new)], dim=1)
        entry = _apply(lambda *parts: torch.cat(parts, dim=-2), self.entry, new)
        return Cache(entry, padding, self.beams)

    def select(self, rows: Tensor, beams: int = 1) -> "Cache":
        """Select rows (N', ), each read by ``beams`` hypotheses."""
        padding = self.padding.index_select(0, rows) if self.padding is not None else None
        mask = self.mask.select(rows) if self.mask is not None else None
        return Cache(_apply(lambda part: part.index_select(0, rows), self.entry), padding, beams, mask)


#: rows to select and beams per row, or None if nothing changes
SourceRows = Optional[Tuple[Tensor, int]]


def source_rows(order: Tensor, beams: int, sentences: int) -> SourceRows:
    """Find the source rows that the hypotheses read after reordering. Synchronises with a GPU once.

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
    answer = int(state.item())  # 0: separate, 1: together, 2: unchanged; one synchronisation for both questions
    if answer == 2:
        return None
    return (groups[:, 0], beams) if answer == 1 else (rows, 1)

"""Attention kernels, and the choice between them.

All kernels compute the same function; tests compare each of them with the equations in float64
(``tests/attention/reference.py``). :mod:`.packed_bmm` and :mod:`.sdpa` take one query per head, (N, H, T, d): standard
heads, or collaborative heads after their queries have been mixed. :mod:`.head_loop` takes the shared query of
collaborative heads and mixes it for one head at a time.
"""

from typing import Callable, Dict, Optional

import torch
from torch import Tensor

from ..cache import Attended, KeyValue
from ..errors import AttentionError
from ..transforms import is_tracing, is_transforming
from . import head_loop, packed_bmm, sdpa

Kernel = Callable[..., Attended]

#: kernels for standard heads
STANDARD: Dict[str, Kernel] = {"bmm": packed_bmm.attend, "sdpa": sdpa.attend}
#: kernels for collaborative heads
COLLABORATIVE: Dict[str, Kernel] = {"bmm": packed_bmm.attend, "head_loop": head_loop.attend, "sdpa": sdpa.attend}

#: with fewer queries per row, as in decoding, one product for all heads is faster than a loop over heads
FEW_QUERIES = 8
#: with at least this many queries per row, torch's fused attention is faster for standard heads, even on a CPU
MANY_QUERIES = 64


def attend_collaborative(
    name: str,
    query: Tensor,
    mixing: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Attended:
    """Head outputs and attention weights of collaborative heads.

    Args:
        name: ``auto`` or a name in :data:`COLLABORATIVE`.
        query: (N, T, D̃k), shared by all heads, neither mixed nor scaled; beams are folded into T.
        mixing: (H, D̃k).
        entry: shared key (N, S, D̃k); value (N, G, S, dv) for G groups of heads; content (N, H, S), not scaled, or None.
        scale: factor on the logits.
        mask, dropout, need_weights, and the results: see :func:`.packed_bmm.attend`.
    """
    kernel = choose(name, query, mixing, entry, mask, need_weights)
    if kernel is head_loop.attend:
        return kernel(query, mixing, entry, mask, scale, dropout, need_weights)
    content = None if entry.content is None else entry.content * scale
    shared = KeyValue(entry.key.unsqueeze(1), entry.value, content)
    return kernel(packed_bmm.mix(query, mixing, scale), shared, mask, dropout, need_weights)


def choose(
    name: str, query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], need_weights: bool
) -> Kernel:
    """Choose the kernel for collaborative heads; for the arguments see :func:`attend_collaborative`.

    ``bmm`` replaces a named kernel that torch cannot trace or that does not support the dtypes chosen by autocast.

    Raises:
        AttentionError: the named kernel cannot compute these tensors.
    """
    if name == "auto":
        return _fastest(query, mixing, entry, mask, need_weights)
    reason: Optional[str] = None
    if name == "head_loop":
        if is_tracing():
            return packed_bmm.attend
        reason = head_loop.unsupported_reason(query, mixing, entry, mask)
    elif name == "sdpa":
        reason = sdpa.unsupported_reason(query, entry)
    if reason is None:
        return COLLABORATIVE[name]
    if torch.is_autocast_enabled(query.device.type):  # autocast chose the dtypes, not the caller
        return packed_bmm.attend
    raise AttentionError(reason)


def _fastest(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], need_weights: bool) -> Kernel:
    """The fastest kernel for collaborative heads that supports these tensors."""
    if query.device.type == "cuda":
        # the memory-efficient backend is tuned for head dimensions up to 128; its generic kernel is slow
        fused = query.size(2) <= 128 and not need_weights and not is_transforming()
        if fused and sdpa.unsupported_reason(query, entry) is None:
            return sdpa.attend
        return packed_bmm.attend
    if is_tracing() or query.size(1) < FEW_QUERIES:
        return packed_bmm.attend
    if head_loop.unsupported_reason(query, mixing, entry, mask) is not None:
        return packed_bmm.attend
    return head_loop.attend


def choose_standard(name: str, query: Tensor, entry: KeyValue, dropout: float, need_weights: bool) -> Kernel:
    """Choose the kernel for standard heads.

    Args:
        name: ``auto`` or a name in :data:`STANDARD`.
        query: (N, H, T, dk).
        entry, dropout, need_weights: see :func:`.packed_bmm.attend`.
    """
    if name != "auto":
        return STANDARD[name]
    if need_weights:
        return packed_bmm.attend
    if query.device.type == "cuda":
        fused = not is_transforming() and sdpa.misaligned(query, entry.value) is None
    else:
        # on a CPU, torch's fused attention needs equal widths and no dropout, and only pays off for long sentences
        fused = dropout == 0.0 and query.size(-1) == entry.value.size(-1)
        # a compiled or exported program must not depend on the length of the example
        fused = fused and (torch.compiler.is_compiling() or query.size(-2) >= MANY_QUERIES)
    return sdpa.attend if fused else packed_bmm.attend

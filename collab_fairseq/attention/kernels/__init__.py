"""The ways to compute attention, one file each, all held to :mod:`..reference`, and the one place that chooses.

Heads with queries of their own, (N, H, T, d), are computed by :mod:`.packed_bmm` or :mod:`.sdpa`. Collaborative heads
are such heads once their queries are mixed; :mod:`.head_loop` mixes them one head at a time.
"""

from typing import Any, Callable, Dict, Iterable, Optional

import torch
from torch import Tensor

from ..cache import Attended, KeyValue
from ..transforms import is_tracing, is_transforming
from . import head_loop, packed_bmm, sdpa

Kernel = Callable[..., Attended]

#: ways to compute standard heads
STANDARD: Dict[str, Kernel] = {"bmm": packed_bmm.attend, "sdpa": sdpa.attend}
#: ways to compute collaborative heads
COLLABORATIVE: Dict[str, Kernel] = {"bmm": packed_bmm.attend, "head_loop": head_loop.attend, "sdpa": sdpa.attend}

#: with fewer queries a row, as in decoding, one product of all heads is faster than a loop over them
FEW_QUERIES = 8
#: from so many queries a row on, standard heads are faster through torch's fused attention, on a CPU too
MANY_QUERIES = 64


class KernelError(ValueError):
    """A kernel that does not exist, or cannot compute what it was insisted on for; the message says why."""

    user_error = True  # as of fairseq_modern.errors.UserError


def check_name(name: str, known: Iterable[str]) -> None:
    """Refuse a kernel that is neither ``auto`` nor in ``known``."""
    if name != "auto" and name not in known:
        raise KernelError(f"kernel must be auto or one of {', '.join(known)}, but is {name!r}")


def attend_standard(
    name: str, query: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float, dropout: float, need_weights: bool
) -> Attended:
    """Head outputs and attention weights of standard heads.

    Args:
        name: ``auto``, or a name of :data:`STANDARD`. query: (N, H, T, dk), not scaled. scale: factor on the scores.
        entry, mask, dropout, need_weights, and what is returned: see :func:`.packed_bmm.attend`.
    """
    kernel = choose_standard(name, query, entry, dropout, need_weights)
    return kernel(query * scale, entry, mask, dropout, need_weights)


def attend_collaborative(
    name: str, query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float, *rest: Any
) -> Attended:
    """Head outputs and attention weights of collaborative heads.

    Args:
        name: ``auto``, or a name of :data:`COLLABORATIVE`. query: (N, T, D̃k), shared, not mixed, not scaled (beams, if
            any, folded into T). mixing: (H, D̃k). scale: factor on the scores.
        entry: shared key (N, S, D̃k), value (N, G, S, dv) of G groups of heads, content (N, H, S) or None, not scaled.
        mask, rest (dropout, need_weights), and what is returned: see :func:`.packed_bmm.attend`.
    """
    kernel = choose(name, query, mixing, entry, mask, rest[-1])
    if kernel is head_loop.attend:
        return kernel(query, mixing, entry, mask, scale, *rest)
    content = None if entry.content is None else entry.content * scale
    shared = KeyValue(entry.key.unsqueeze(1), entry.value, content)
    return kernel(packed_bmm.mix(query, mixing, scale), shared, mask, *rest)


def choose(
    name: str, query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], need_weights: bool
) -> Kernel:
    """The kernel that computes collaborative heads; for the arguments see :func:`attend_collaborative`.

    A kernel that is insisted on but cannot compute what autocast made of the arguments is replaced by ``bmm``.

    Raises:
        KernelError: the kernel insisted on cannot compute these arguments.
    """
    if name == "head_loop" and is_tracing():
        return packed_bmm.attend
    if name != "auto":
        check_name(name, COLLABORATIVE)
        reason = None
        if name == "head_loop":
            reason = head_loop.unsupported_reason(query, mixing, entry, mask)
        elif name == "sdpa":
            reason = sdpa.unsupported_reason(query, entry)
        if reason is None:
            return COLLABORATIVE[name]
        if torch.is_autocast_enabled(query.device.type):  # autocast chose the types, not the caller
            return packed_bmm.attend
        raise KernelError(reason)
    if query.device.type == "cuda":
        # the memory-efficient backend is made for widths up to 128; above, its generic form is slow
        fused = query.size(2) <= 128 and not need_weights and not is_transforming()
        return sdpa.attend if fused and sdpa.unsupported_reason(query, entry) is None else packed_bmm.attend
    loop = not is_tracing() and query.size(1) >= FEW_QUERIES
    if loop and head_loop.unsupported_reason(query, mixing, entry, mask) is None:
        return head_loop.attend
    return packed_bmm.attend


def choose_standard(name: str, query: Tensor, entry: KeyValue, dropout: float, need_weights: bool) -> Kernel:
    """The kernel that computes standard heads; for the arguments see :func:`attend_standard`."""
    if name != "auto":
        check_name(name, STANDARD)
        return STANDARD[name]
    if need_weights:
        return packed_bmm.attend
    if query.device.type == "cuda":
        fused = not is_transforming() and sdpa.misaligned(query, entry.value) is None
    else:  # torch's fused attention is for equal widths without dropout here; short sentences gain nothing from it
        fused = dropout == 0.0 and query.size(-1) == entry.value.size(-1) and query.size(-2) >= MANY_QUERIES
    return sdpa.attend if fused else packed_bmm.attend

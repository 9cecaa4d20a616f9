"""The ways to compute attention, one file each, all held to :mod:`..reference`, and the one place that chooses.

A new way of collaborative heads is one file with an ``attend`` and an ``obstacle`` of the signatures in
:mod:`.packed_bmm`, one line in :data:`COLLABORATIVE`, and where it is the fastest a line in :func:`choose`.
"""

from typing import Callable, Dict, Iterable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..cache import KeyValue
from ..transforms import is_tracing, is_transforming
from . import head_loop, packed_bmm, sdpa

Attended = Tuple[Tensor, Optional[Tensor]]
CollaborativeKernel = Callable[[Tensor, Tensor, KeyValue, Optional[Tensor], float, float, bool], Attended]
StandardKernel = Callable[[Tensor, KeyValue, Optional[Tensor], float, float, bool], Attended]
Obstacle = Callable[[Tensor, Tensor, KeyValue, Optional[Tensor]], Optional[str]]


class Kernel(NamedTuple):
    """A way to compute collaborative heads, and the function that says why it cannot compute given arguments."""

    attend: CollaborativeKernel
    obstacle: Obstacle


#: ways to compute collaborative heads
COLLABORATIVE: Dict[str, Kernel] = {
    "bmm": Kernel(packed_bmm.attend, packed_bmm.obstacle),
    "head_loop": Kernel(head_loop.attend, head_loop.obstacle),
    "sdpa": Kernel(sdpa.attend, sdpa.obstacle),
}

#: ways to compute standard heads
STANDARD: Dict[str, StandardKernel] = {"bmm": packed_bmm.attend_standard, "sdpa": sdpa.attend_standard}


#: with fewer queries a row, as in decoding, one product of all heads is faster than a loop over them
FEW_QUERIES = 8
#: from so many queries a row on, standard heads are faster through torch's fused attention, on a CPU too
MANY_QUERIES = 64


class KernelError(ValueError):
    """A kernel that does not exist, or cannot compute what it was insisted on for; the message says why."""

    user_error = True


def check_name(name: str, known: Iterable[str]) -> None:
    """Refuse a kernel that is neither ``auto`` nor in ``known``."""
    if name != "auto" and name not in known:
        raise KernelError(f"kernel must be auto or one of {', '.join(known)}, but is {name!r}")


def choose(
    name: str, query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], need_weights: bool
) -> CollaborativeKernel:
    """The kernel that computes a collaborative layer.

    Args:
        name: ``auto``, or a name of :data:`COLLABORATIVE` to insist on it (under autocast: where that can).
        query, mixing, entry, mask, need_weights: of the call, see :func:`.packed_bmm.attend`.

    Raises:
        KernelError: the kernel insisted on cannot compute these arguments.
    """
    if name == "head_loop" and is_tracing():
        return packed_bmm.attend
    if name != "auto":
        check_name(name, COLLABORATIVE)
        attend, obstacle = COLLABORATIVE[name]
        reason = obstacle(query, mixing, entry, mask)
        if reason is None:
            return attend
        if torch.is_autocast_enabled(query.device.type):  # torch chose the types, not who insisted
            return packed_bmm.attend
        raise KernelError(reason)
    if query.device.type == "cuda":
        # the memory-efficient backend is made for widths up to 128; above, its generic form is slow
        fused = query.size(2) <= 128 and not need_weights and not is_transforming()
        return sdpa.attend if fused and sdpa.obstacle(query, mixing, entry, mask) is None else packed_bmm.attend
    if not is_tracing() and query.size(1) >= FEW_QUERIES and head_loop.obstacle(query, mixing, entry, mask) is None:
        return head_loop.attend
    return packed_bmm.attend


def choose_standard(name: str, query: Tensor, entry: KeyValue, dropout: float, need_weights: bool) -> StandardKernel:
    """The kernel that computes a layer of standard heads; arguments are those of :func:`choose`, and the dropout."""
    if name != "auto":
        check_name(name, STANDARD)
        return STANDARD[name]
    if need_weights:
        return packed_bmm.attend_standard
    if query.device.type == "cuda":
        fused = not is_transforming() and sdpa.misaligned(query, entry.value) is None
        return sdpa.attend_standard if fused else packed_bmm.attend_standard
    # torch's fused attention for CPUs is for equal widths without dropout; short sentences gain nothing from it
    fused = dropout == 0.0 and query.size(-1) == entry.value.size(-1) and query.size(-2) >= MANY_QUERIES
    return sdpa.attend_standard if fused else packed_bmm.attend_standard

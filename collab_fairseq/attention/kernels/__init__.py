"""The ways to compute attention, one file each, all held to :mod:`..reference`.

A new way is one file with an ``attend`` of the signature of :func:`.packed_bmm.attend`, one line in
:data:`COLLABORATIVE`, and its name in :func:`choose`.
"""

from typing import Callable, Dict, Optional, Tuple

from torch import Tensor

from ..cache import KeyValue
from . import heads_bmm, packed_bmm

CollaborativeKernel = Callable[[Tensor, Tensor, KeyValue, Optional[Tensor], float, float], Tuple[Tensor, Tensor]]

COLLABORATIVE: Dict[str, CollaborativeKernel] = {"bmm": packed_bmm.attend}


def choose(name: str) -> CollaborativeKernel:
    """The kernel that computes a collaborative layer.

    Args:
        name: ``auto``, or a name of :data:`COLLABORATIVE` to insist on it.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        return packed_bmm.attend
    if name not in COLLABORATIVE:
        raise ValueError(f"kernel must be auto or one of {', '.join(COLLABORATIVE)}, but is {name!r}")
    return COLLABORATIVE[name]


__all__ = ["COLLABORATIVE", "CollaborativeKernel", "choose", "heads_bmm", "packed_bmm"]

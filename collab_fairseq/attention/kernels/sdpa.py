"""Attention through torch's fused ``scaled_dot_product_attention``, for collaborative and for standard heads.

    scores_h = Q_h Kᵀ + (c_h + mask)        O_h = dropout(softmax(scores_h)) V_h

The weights never lie in memory as a whole. A shared key goes in as a view with a head axis of stride 0. Of torch's
backends only two accept queries and keys of another width than the values, a dropout and a bias with a gradient: the
memory-efficient one (CUDA) and the plain formula. Standard heads, our baseline, are offered the same ones. cuDNN's is
not among them: it builds a plan for every new shape of a batch, and translation has thousands of shapes. The fused
backends have no second derivative: torch raises an error that says so.
"""

import math
from typing import Optional

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..cache import Attended, KeyValue, repeat_kv
from . import packed_bmm

#: of torch's backends those that may compute attention; torch takes the first that can
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def mask_in_type(mask: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """The mask in the type of the scores, as torch wants it; finite fills too large for it stay finite."""
    if mask is None or mask.dtype == dtype:
        return mask
    hides = mask == -math.inf
    return mask.clamp(min=torch.finfo(dtype).min).to(dtype).masked_fill(hides, -math.inf)


def attend(query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool) -> Attended:
    """As :func:`.packed_bmm.attend`. Weights, where they are asked for, are computed a second time, the plain way."""
    bias, key, value = mask_in_type(mask, query.dtype), entry.key, entry.value
    if entry.content is not None:
        content = entry.content.unsqueeze(2)
        bias = content if bias is None else bias + content
    # a CPU's fused attention lets heads share keys and values; of CUDA's, few do that, and those take no mask
    grouped = query.device.type == "cpu" and key.size(1) == value.size(1) < query.size(1)
    if not grouped:
        key, value = (repeat_kv(shared, query.size(1)) for shared in (key, value))
    with sdpa_kernel(BACKENDS):
        outputs = scaled_dot_product_attention(query, key, value, bias, dropout, scale=1.0, enable_gqa=grouped)
    return outputs, packed_bmm.weigh(query, entry.key, entry.content, mask) if need_weights else None


def unsupported_reason(query: Tensor, entry: KeyValue) -> Optional[str]:
    """Why :func:`attend` cannot compute queries (…, d), or None."""
    if not query.dtype == entry.key.dtype == entry.value.dtype:
        return f"sdpa needs one type for all, but got {query.dtype}, {entry.key.dtype} and {entry.value.dtype}"
    return misaligned(query, entry.value)


def misaligned(query: Tensor, value: Tensor) -> Optional[str]:
    """Why a GPU would compute these widths in torch's plain and slow way, or None.

    Args:
        query: (…, D̃k) or (…, dk). value: (…, dv).
    """
    widths, multiple = (query.size(-1), value.size(-1)), 16 // query.element_size()  # rows are read 16 bytes at a time
    if query.device.type != "cuda" or not any(width % multiple for width in widths):
        return None
    return (
        f"sdpa on a GPU in {query.dtype} is fast only where key and head dims are multiples of {multiple}, "
        f"but these are {widths[0]} and {widths[1]}"
    )

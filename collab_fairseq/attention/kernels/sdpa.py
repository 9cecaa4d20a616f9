"""Attention through torch's fused ``scaled_dot_product_attention``, for collaborative and for standard heads.

    scores_h = (Q ⊙ m_h · scale) Kᵀ + (c_h · scale + mask)        context_h = dropout(softmax(scores_h)) V_h

The weights never lie in memory as a whole. The shared key goes in as a view with a head axis of stride 0. Of torch's
backends only two accept queries and keys of another width than the values, a dropout and a bias with a gradient: the
memory-efficient one (CUDA) and the plain formula. cuDNN's (CUDA, half types) accepts such widths as well, but has no
gradient for a bias; the choice is left to those that can. Standard heads, whose widths agree, may take any. The fused
backends have no second derivative: torch raises an error that says so. Who wants one insists on ``bmm``.

``sdpa_one_key`` passes the shared key as one head, which cuDNN reads for all: no gradient of an expanded key is made.
"""

import math
from functools import partial
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..cache import KeyValue, of_each_head
from . import packed_bmm

UNEQUAL_WIDTHS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
HALF_TYPES = (torch.float16, torch.bfloat16)


def mask_in_type(mask: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """The mask in the type of the scores, as torch wants it; finite fills too large for it stay finite."""
    if mask is None or mask.dtype == dtype:
        return mask
    hides = mask == -math.inf
    return mask.clamp(min=torch.finfo(dtype).min).to(dtype).masked_fill(hides, -math.inf)


def attend(
    query: Tensor,
    mixing: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
    one_key: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """As :func:`.packed_bmm.attend`. Weights, where they are asked for, are computed a second time, the plain way.

    Args:
        one_key: one key head for all where the backend has that; on a GPU that is cuDNN's alone.
    """
    mixed, key = packed_bmm.mix(query, mixing, scale), entry.key.unsqueeze(1)  # (N, H, T, D̃k), (N, 1, S, D̃k)
    bias, content = mask_in_type(mask, query.dtype), None
    if entry.content is not None:
        content = entry.content * scale  # (N, H, S)
        bias = content.unsqueeze(2) if bias is None else bias + content.unsqueeze(2)
    backends, by_cudnn = UNEQUAL_WIDTHS, cudnn_can(query, entry.value, bias, dropout)
    one_key = one_key and (by_cudnn or query.device.type != "cuda")
    if one_key and by_cudnn:  # the memory-efficient backend wants as many keys as values
        backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
    elif by_cudnn:
        backends = [SDPBackend.CUDNN_ATTENTION, *UNEQUAL_WIDTHS]
    shared = key if one_key else key.expand(-1, mixing.size(0), -1, -1)
    with sdpa_kernel(backends):
        context = scaled_dot_product_attention(mixed, shared, entry.value, bias, dropout, scale=1.0, enable_gqa=one_key)
    return context, packed_bmm.weigh(mixed, key, content, mask) if need_weights else None


attend_one_key = partial(attend, one_key=True)


def attend_standard(
    query: Tensor, entry: KeyValue, mask: Optional[Tensor], scale: float, dropout: float, need_weights: bool
) -> Tuple[Tensor, Optional[Tensor]]:
    """As :func:`.packed_bmm.attend_standard`; weights as in :func:`attend`."""
    bias, key, value = mask_in_type(mask, query.dtype), entry.key, entry.value
    # a CPU's fused attention lets heads share keys and values; of CUDA's, few do that, and those take no mask
    grouped = query.device.type == "cpu" and key.size(1) == value.size(1) < query.size(1)
    if not grouped:
        key, value = (of_each_head(shared, query.size(1)) for shared in (key, value))
    scaled = query * scale
    context = scaled_dot_product_attention(scaled, key, value, bias, dropout, scale=1.0, enable_gqa=grouped)
    return context, packed_bmm.weigh(scaled, entry.key, None, mask) if need_weights else None


def obstacle(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why these arguments of :func:`attend` cannot be computed in this way, or None."""
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


def cudnn_can(query: Tensor, value: Tensor, bias: Optional[Tensor], dropout: float) -> bool:
    """Whether cuDNN's attention may be offered query (N, T, D̃k), value (N, H, S, dv) and an additive bias.

    It has no gradient for the bias and rounds a dropout to sixteenths. With a bias and S % 128 == 64 its gradient can
    be NaN (https://github.com/pytorch/pytorch/issues/196678). What depends on card and version torch asks for itself.
    """
    fits = all(width <= 128 and width % 8 == 0 for width in (query.size(-1), value.size(-1)))
    if query.device.type != "cuda" or query.dtype not in HALF_TYPES or dropout > 0.0 or not fits:
        return False
    return bias is None or not (bias.requires_grad or value.size(-2) % 128 == 64)

"""Attention through torch's fused ``scaled_dot_product_attention``, for collaborative and for standard heads.

    scores_h = (Q ⊙ m_h · scale) Kᵀ + (c_h · scale + mask)        context_h = dropout(softmax(scores_h)) V_h

The weights never lie in memory as a whole. The shared key goes in as a view with a head axis of stride 0. Of torch's
backends only two accept queries and keys of another width than the values, a dropout and a bias with a gradient: the
memory-efficient one (CUDA) and the plain formula; the choice is left to these two. Standard heads, whose widths agree,
may take any. The fused backends have no second derivative: torch raises an error that says so. Who wants one insists on
``bmm``.
"""

import math
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..cache import KeyValue, of_each_head
from . import packed_bmm

UNEQUAL_WIDTHS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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
) -> Tuple[Tensor, Optional[Tensor]]:
    """As :func:`.packed_bmm.attend`. Weights, where they are asked for, are computed a second time, the plain way."""
    mixed = query.unsqueeze(1) * (mixing * scale).to(query.dtype).unsqueeze(1)  # (N, H, T, D̃k)
    key = entry.key.unsqueeze(1).expand(-1, mixing.size(0), -1, -1)
    bias = mask_in_type(mask, query.dtype)
    if entry.content is not None:
        content = (entry.content * scale).unsqueeze(2)  # (N, H, 1, S)
        bias = content if bias is None else bias + content
    with sdpa_kernel(UNEQUAL_WIDTHS):
        context = scaled_dot_product_attention(mixed, key, entry.value, bias, dropout, scale=1.0)
    return context, packed_bmm.weigh(query, mixing, entry, mask, scale) if need_weights else None


def attend_standard(
    query: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """As :func:`.packed_bmm.attend_standard`; weights as in :func:`attend`."""
    bias, key, value = mask_in_type(mask, query.dtype), entry.key, entry.value
    # a CPU's fused attention lets heads share keys and values; of CUDA's, few do that, and those take no mask
    grouped = query.device.type == "cpu" and key.size(1) == value.size(1) < query.size(1)
    if not grouped:
        key, value = (of_each_head(shared, query.size(1)) for shared in (key, value))
    context = scaled_dot_product_attention(query * scale, key, value, bias, dropout, scale=1.0, enable_gqa=grouped)
    return context, packed_bmm.weigh_standard(query, entry, mask, scale) if need_weights else None


def obstacle(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why these arguments of :func:`attend` cannot be computed in this way, or None."""
    if not query.dtype == entry.key.dtype == entry.value.dtype:
        return f"sdpa needs one type for all, but got {query.dtype}, {entry.key.dtype} and {entry.value.dtype}"
    return None

"""Attention through torch's fused ``scaled_dot_product_attention``, for collaborative and for standard heads.

    scores_h = (Q ⊙ m_h · scale) Kᵀ + (c_h · scale + mask)        context_h = dropout(softmax(scores_h)) V_h

The weights never lie in memory as a whole. The shared key goes in as a view with a head axis of stride 0. Of torch's
backends only two accept queries and keys of another width than the values, a dropout and a bias with a gradient: the
memory-efficient one (CUDA) and the plain formula; the choice is left to these two. Standard heads, whose widths agree,
may take any. The fused backends have no second derivative: without dropout the plain formula gives it.
"""

import math
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..cache import KeyValue
from ..transforms import watched
from . import heads_bmm, packed_bmm

UNEQUAL_WIDTHS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def mask_in_type(mask: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """The mask in the type of the scores, as torch wants it; finite fills too large for it stay finite."""
    if mask is None or mask.dtype == dtype:
        return mask
    hides = mask == -math.inf
    return mask.clamp(min=torch.finfo(dtype).min).to(dtype).masked_fill(hides, -math.inf)


def plain_formula(query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Context (N, H, T, dv) of scaled queries (N, H, T, ·), without dropout."""
    return heads_bmm.attend(query, KeyValue(key, value), bias, 1.0, 0.0, False)[0]


class FusedOnce(torch.autograd.Function):
    """A fused function with its fused gradient, whose further derivatives are those of :func:`plain_formula`.

    Args of ``apply``: fused: equals the plain formula but for rounding; the tensors that both take.
    """

    @staticmethod
    def forward(ctx: Any, fused: Callable[..., Tensor], *tensors: Optional[Tensor]) -> Tensor:
        with torch.enable_grad():
            inner = [None if x is None else x.detach().requires_grad_(x.requires_grad) for x in tensors]
            output = fused(*inner)
        ctx.once = (inner, output)
        ctx.save_for_backward(*tensors)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        twice = torch.is_grad_enabled()
        if ctx.once is not None and not twice:
            (inner, output), ctx.once = ctx.once, None  # freed with this gradient; another one takes the plain way
        else:
            with torch.enable_grad():
                inner = [None if x is None else x.view_as(x) for x in ctx.saved_tensors]
                output = plain_formula(*inner)
        wanted = [x for x in inner if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=twice))
        return None, *(next(found) if x is not None and x.requires_grad else None for x in inner)


def differentiable(fused: Callable[..., Tensor], dropout: float, *tensors: Optional[Tensor]) -> Tensor:
    """``fused`` of the tensors, differentiable as often as the plain formula where that can be had."""
    if dropout > 0.0 or watched() or not torch.is_grad_enabled():
        return fused(*tensors)
    if not any(x is not None and x.requires_grad for x in tensors):
        return fused(*tensors)
    output: Tensor = FusedOnce.apply(fused, *tensors)  # type: ignore[no-untyped-call]
    return output


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

    def fused(mixed: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor]) -> Tensor:
        with sdpa_kernel(UNEQUAL_WIDTHS):
            return scaled_dot_product_attention(mixed, key, value, bias, dropout, scale=1.0)

    context = differentiable(fused, dropout, mixed, key, entry.value, bias)
    return context, packed_bmm.weigh(query, mixing, entry, mask, scale) if need_weights else None


def attend_standard(
    query: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """As :func:`.heads_bmm.attend`. Weights, where they are asked for, are computed a second time, the plain way."""
    bias = mask_in_type(mask, query.dtype)

    def fused(scaled: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor]) -> Tensor:
        return scaled_dot_product_attention(scaled, key, value, bias, dropout, scale=1.0)

    context = differentiable(fused, dropout, query * scale, entry.key, entry.value, bias)
    return context, heads_bmm.weigh(query, entry, mask, scale) if need_weights else None


def obstacle(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why these arguments of :func:`attend` cannot be computed in this way, or None."""
    if not query.dtype == entry.key.dtype == entry.value.dtype:
        return f"sdpa needs one type for all, but got {query.dtype}, {entry.key.dtype} and {entry.value.dtype}"
    return None

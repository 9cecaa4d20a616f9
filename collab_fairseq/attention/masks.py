"""The mask conventions of ``torch.nn.MultiheadAttention``, turned into one additive mask; and masks of heads."""

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .transforms import is_tracing


class AttentionMask(NamedTuple):
    """What hides keys from queries.

    Attributes:
        additive: broadcasts to (N, H, T, S); 0 or a finite number where a key is seen, −inf where it is not. Queries
            that see no key at all have zeros here, so that no softmax ever meets a row of −inf.
        hidden: broadcasts to (N, H, T, 1), boolean; True for those queries. Their context is zero. None where there is
            known to be no such query.
    """

    additive: Tensor
    hidden: Optional[Tensor]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Boolean masks (True: not visible) become 0 and −inf; floating-point masks are added as they are."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(f"masks must be boolean or floating-point, but got {mask.dtype}")
    return mask.to(dtype)


def _expected(name: str, shapes: str, got: Tensor) -> str:
    return f"{name} must have shape {shapes}, but is {list(got.shape)}"


def combine(
    key_padding_mask: Optional[Tensor],
    attn_mask: Optional[Tensor],
    is_causal: bool,
    rows: int,
    num_heads: int,
    query_len: int,
    key_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Optional[AttentionMask]:
    """One mask for all that hides keys from queries, or None where every key is visible.

    Args:
        key_padding_mask: (N, S), boolean (True: padding) or additive.
        attn_mask: (T, S) or (N·H, T, S) or (N, H, T, S), boolean (True: not visible) or additive.
        is_causal: without ``attn_mask``: position t sees keys up to t. With ``attn_mask``: only a hint, as in torch.
        rows, num_heads, query_len, key_len: N, H, T, S.
        dtype: of the additive mask; at least float32, so that finite fills such as −1e8 survive.

    Raises:
        ValueError: a mask of another shape or of an integer type; ``is_causal`` where T ≠ S.
    """
    mask: Optional[Tensor] = None
    if attn_mask is not None:
        if attn_mask.dim() == 2:
            if attn_mask.size(0) != query_len or attn_mask.size(1) != key_len:
                raise ValueError(_expected("attn_mask", f"({query_len}, {key_len})", attn_mask))
            mask = _additive(attn_mask, dtype)[None, None]
        elif attn_mask.dim() == 3:
            if list(attn_mask.shape) != [rows * num_heads, query_len, key_len]:
                raise ValueError(_expected("attn_mask", f"({rows * num_heads}, {query_len}, {key_len})", attn_mask))
            mask = _additive(attn_mask, dtype).view(rows, num_heads, query_len, key_len)
        else:
            if list(attn_mask.shape) != [rows, num_heads, query_len, key_len]:
                raise ValueError(_expected("attn_mask", "(T, S), (N·H, T, S) or (N, H, T, S)", attn_mask))
            mask = _additive(attn_mask, dtype)
    elif is_causal:
        if query_len != key_len:
            raise ValueError(
                f"is_causal needs as many queries as keys, but there are {query_len} and {key_len}; pass an attn_mask"
            )
        future = torch.ones(query_len, key_len, dtype=torch.bool, device=device).triu(1)
        mask = _additive(future, dtype)[None, None]

    if key_padding_mask is not None:
        if list(key_padding_mask.shape) != [rows, key_len]:
            raise ValueError(_expected("key_padding_mask", f"({rows}, {key_len})", key_padding_mask))
        padding = _additive(key_padding_mask, dtype)[:, None, None, :]
        mask = padding if mask is None else mask + padding
    if mask is None:
        return None
    hidden = (mask == -math.inf).all(dim=-1, keepdim=True)
    # looking at a value is cheap on a CPU, and saves a copy of every context; a GPU would have to be waited for
    if device.type == "cpu" and not is_tracing() and not bool(hidden.any()):
        return AttentionMask(mask, None)
    return AttentionMask(mask.masked_fill(hidden, 0.0), hidden)


def multiply_heads(context: Tensor, multiplier: Tensor) -> Tensor:
    """The context of heads (R, T, H, dv) times a factor of each head, (H), (R, H) or (R, T, H).

    Raises:
        ValueError: a multiplier of another shape.
    """
    rows, query_len, heads = context.size(0), context.size(1), context.size(2)
    shape = list(multiplier.shape)
    if shape != [heads] and shape != [rows, heads] and shape != [rows, query_len, heads]:
        raise ValueError(
            f"head_multiplier must have shape ({heads}), ({rows}, {heads}) or ({rows}, {query_len}, {heads}), "
            f"but is {shape}"
        )
    factor = multiplier.unsqueeze(1) if len(shape) == 2 else multiplier
    return context * factor.unsqueeze(-1).to(context.dtype)

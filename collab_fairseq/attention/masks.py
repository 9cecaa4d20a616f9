"""The mask conventions of ``torch.nn.MultiheadAttention``, turned into one additive mask; and masks of heads."""

import math
from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .transforms import is_tracing


class AttentionMask(NamedTuple):
    """What hides keys from queries.

    Attributes:
        additive: broadcasts to (N, H, T, S); 0 or a finite number where a key is seen, −inf where it is not. Queries
            that see no key at all have zeros here, so that no softmax ever meets a row of −inf.
        hidden: broadcasts to (N, H, T, 1), boolean; True for those queries, for which the outputs of heads are zero.
            None where there is known to be no such query.
    """

    additive: Tensor
    hidden: Optional[Tensor]


def combine(
    key_padding_mask: Optional[Tensor],
    attn_mask: Optional[Tensor],
    is_causal: bool,
    shape: Tuple[int, int, int, int],
    like: Tensor,
) -> Optional[AttentionMask]:
    """One mask for all that hides keys from queries, or None where every key is visible.

    Args:
        key_padding_mask: (N, S), boolean (True: padding) or additive.
        attn_mask: (T, S) or (N·H, T, S) or (N, H, T, S), boolean (True: not visible) or additive.
        is_causal: without ``attn_mask``: position t sees keys up to t. With ``attn_mask``: only a hint, as in torch.
        shape: (N, H, T, S).
        like: queries, whose type the mask gets if all are boolean; a mask of numbers is float32 or wider, so that
            finite fills such as −1e8 survive.

    Raises:
        ValueError: a mask of another shape or of an integer type; ``is_causal`` where T ≠ S.
    """
    rows, heads, query_len, key_len = shape
    of_all = (1, 1, query_len, key_len)
    # name, mask, the shape that it must have, and the one in which it broadcasts to (N, H, T, S)
    given: List[Tuple[str, Tensor, Tuple[int, ...], Tuple[int, ...]]] = []
    if attn_mask is not None:
        expected = {2: (query_len, key_len), 3: (rows * heads, query_len, key_len)}.get(attn_mask.dim(), shape)
        given.append(("attn_mask", attn_mask, expected, of_all if attn_mask.dim() == 2 else shape))
    elif is_causal:
        if query_len != key_len:
            raise ValueError(
                f"is_causal needs as many queries as keys, but there are {query_len} and {key_len}; pass an attn_mask"
            )
        future = torch.ones(query_len, key_len, dtype=torch.bool, device=like.device).triu(1)
        given.append(("is_causal", future, (query_len, key_len), of_all))
    if key_padding_mask is not None:
        given.append(("key_padding_mask", key_padding_mask, (rows, key_len), (rows, 1, 1, key_len)))
    if not given:
        return None

    dtype = like.dtype
    if not all(mask.dtype == torch.bool for _, mask, _, _ in given):
        dtype = torch.promote_types(dtype, torch.float32)
    additive: List[Tensor] = []
    for name, mask, expected, view in given:
        if mask.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, but is {list(mask.shape)}")
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
        elif not mask.is_floating_point():
            raise ValueError(f"masks must be boolean or floating-point, but got {mask.dtype}")
        additive.append(mask.to(dtype).view(view))
    combined = additive[0] if len(additive) == 1 else additive[0] + additive[1]
    hidden = (combined == -math.inf).all(dim=-1, keepdim=True)
    # looking at a value is cheap on a CPU, and saves a copy of all head outputs; a GPU would have to be waited for
    if like.device.type == "cpu" and not is_tracing() and not bool(hidden.any()):
        return AttentionMask(combined, None)
    return AttentionMask(combined.masked_fill(hidden, 0.0), hidden)


def multiply_heads(outputs: Tensor, multiplier: Tensor) -> Tensor:
    """The outputs of heads (R, T, H, dv) times a factor of each head, (H), (R, H) or (R, T, H).

    Raises:
        ValueError: a multiplier of another shape.
    """
    rows, query_len, heads, _ = outputs.shape
    shape = list(multiplier.shape)
    if shape not in ([heads], [rows, heads], [rows, query_len, heads]):
        raise ValueError(
            f"head_multiplier must have shape ({heads}), ({rows}, {heads}) or ({rows}, {query_len}, {heads}), "
            f"but is {shape}"
        )
    factor = multiplier.unsqueeze(1) if len(shape) == 2 else multiplier
    return outputs * factor.unsqueeze(-1).to(outputs.dtype)

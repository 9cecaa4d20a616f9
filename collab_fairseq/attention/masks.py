"""Attention masks as in ``torch.nn.MultiheadAttention``, combined into one additive mask; multipliers on heads."""

import math
from typing import List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from .transforms import is_tracing


class AttentionMask(NamedTuple):
    """The combination of all masks.

    Attributes:
        additive: broadcasts to (N, H, T, S); finite if the key is visible, −inf if it is hidden. Rows of queries that
            see no key are zero, so that no softmax meets a row of −inf.
        hidden: boolean, broadcasts to (N, H, T, 1), True for the queries that see no key; the outputs of their heads
            must be zero. None if it is known that there are none.
    """

    additive: Tensor
    hidden: Optional[Tensor]

    def select(self, rows: Tensor) -> "AttentionMask":
        """The mask of some of the N rows, (N', )."""
        hidden = self.hidden.index_select(0, rows) if self.hidden is not None else None
        return AttentionMask(self.additive.index_select(0, rows), hidden)


def combine(
    key_padding_mask: Union[Tensor, AttentionMask, None],
    attn_mask: Optional[Tensor],
    is_causal: bool,
    shape: Tuple[int, int, int, int],
    like: Tensor,
) -> Optional[AttentionMask]:
    """Combine all masks into one. Returns None if there is no mask.

    Args:
        key_padding_mask: (N, S), boolean (True: padding) or additive; or an earlier result for it, if there is
            no other mask.
        attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: hidden) or additive.
        is_causal: position t sees keys up to t; only a hint if ``attn_mask`` is given, as in torch.
        shape: (N, H, T, S).
        like: queries. The mask has their dtype if all masks are boolean, otherwise at least float32, so that finite
            fill values such as −1e8 are preserved.

    Raises:
        ValueError: a mask has an invalid shape or an integer dtype, ``is_causal`` is used with T ≠ S, or there is
            another mask besides an earlier result.
    """
    if isinstance(key_padding_mask, AttentionMask):
        if attn_mask is not None or is_causal:
            raise ValueError("a combined key_padding_mask must be the only mask; got attn_mask or is_causal as well")
        return key_padding_mask
    rows, heads, query_len, key_len = shape
    masks: List[Tensor] = []
    if attn_mask is not None:
        expected = {2: (query_len, key_len), 3: (rows * heads, query_len, key_len)}.get(attn_mask.dim(), shape)
        _check("attn_mask", attn_mask, expected)
        masks.append(attn_mask.view((1, 1, query_len, key_len) if attn_mask.dim() == 2 else shape))
    elif is_causal:
        if query_len != key_len:
            raise ValueError(
                f"is_causal needs as many queries as keys; got {query_len} and {key_len} (pass an attn_mask instead)"
            )
        future = torch.ones(query_len, key_len, dtype=torch.bool, device=like.device).triu(1)
        masks.append(future.view(1, 1, query_len, key_len))
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, (rows, key_len))
        masks.append(key_padding_mask.view(rows, 1, 1, key_len))
    if not masks:
        return None

    dtype = like.dtype
    if any(mask.dtype != torch.bool for mask in masks):
        dtype = torch.promote_types(dtype, torch.float32)
    additive = [_additive(mask, dtype) for mask in masks]
    combined = additive[0] if len(additive) == 1 else additive[0] + additive[1]
    hidden = (combined == -math.inf).all(dim=-1, keepdim=True)
    # on a CPU, reading the result is cheap and saves a copy of all head outputs; a GPU would have to synchronise
    readable = like.device.type == "cpu" and type(hidden) is Tensor and not is_tracing()
    if readable and not bool(hidden.any()):
        return AttentionMask(combined, None)
    return AttentionMask(combined.masked_fill(hidden, 0.0), hidden)


def _check(name: str, mask: Tensor, expected: Tuple[int, ...]) -> None:
    if mask.shape != expected:
        raise ValueError(f"{name} must have shape {expected}; got {list(mask.shape)}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean or floating-point; got {mask.dtype}")


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
    return mask.to(dtype)


def multiply_heads(outputs: Tensor, multiplier: Tensor) -> Tensor:
    """Multiply the outputs of heads (R, T, H, dv) by a factor per head, (H), (R, H) or (R, T, H).

    Raises:
        ValueError: the multiplier has a wrong shape.
    """
    rows, query_len, heads, _ = outputs.shape
    shape = list(multiplier.shape)
    if shape not in ([heads], [rows, heads], [rows, query_len, heads]):
        allowed = f"({heads}), ({rows}, {heads}) or ({rows}, {query_len}, {heads})"
        raise ValueError(f"head_multiplier must have shape {allowed}; got {shape}")
    factor = multiplier.unsqueeze(1) if len(shape) == 2 else multiplier
    return outputs * factor.unsqueeze(-1).to(outputs.dtype)

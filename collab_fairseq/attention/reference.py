"""Attention as the equations say it: one head of one sentence at a time, in float64.

Nothing here is fast, nothing is shared with the layers; the tests of :mod:`collab_fairseq.attention` compare with it.
"""

import math
from typing import Mapping, NamedTuple, Optional

import torch
from torch import Tensor


class ReferenceOutput(NamedTuple):
    """output (N, T, E) and weights (N, H, T, S), float64."""

    output: Tensor
    weights: Tensor


def _affine(inputs: Tensor, parameters: Mapping[str, Tensor], name: str) -> Tensor:
    output = inputs @ parameters[f"{name}.weight"].T
    bias = parameters.get(f"{name}.bias")
    return output if bias is None else output + bias


def _hide(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Apply a mask to scores (T, S) that it broadcasts to; boolean True hides the key."""
    if mask is None:
        return scores
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()


def _softmax(scores: Tensor) -> Tensor:
    """softmax over the last dimension, zero where no key is visible."""
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    seen = scores.masked_fill(blind, 0.0)
    exponentials = torch.exp(seen - seen.amax(-1, keepdim=True).detach())
    return (exponentials / exponentials.sum(-1, keepdim=True)).masked_fill(blind, 0.0)


def reference_attention(
    parameters: Mapping[str, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    num_heads: int,
    scale: float,
    value_heads: Optional[int] = None,
    key_heads: Optional[int] = None,
    key_padding_mask: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    causal: bool = False,
    head_multiplier: Optional[Tensor] = None,
) -> ReferenceOutput:
    """Collaborative heads where ``parameters`` has a ``mixing`` matrix, standard heads where it has none.

    With a ``latent_proj`` keys and values are projections of latents, which are projections of ``key`` alone.

    Args:
        parameters: ``state_dict`` (or named parameters, to differentiate) of a layer; used in float64.
        query, key, value: (N, T, E), (N, S, kdim), (N, S, vdim).
        num_heads: H.
        scale: factor on the scores.
        value_heads: groups of neighbouring heads that share values; default H. key_heads: the same of standard heads'
            keys.
        key_padding_mask: (N, S); attn_mask: (T, S), (N·H, T, S) or (N, H, T, S); boolean (True: hidden) or additive.
        causal: hide keys after the query's position.
        head_multiplier: (H), (N, H) or (N, T, H).
    """
    parameters = {name: tensor.double() for name, tensor in parameters.items()}
    query, key, value = query.double(), key.double(), value.double()
    rows, query_len, key_len = query.size(0), query.size(1), key.size(1)
    if "latent_proj.weight" in parameters:
        key = value = _affine(key, parameters, "latent_proj")
    q, k, v = (_affine(inputs, parameters, f"{name}_proj") for name, inputs in (("q", query), ("k", key), ("v", value)))
    mixing = parameters.get("mixing")
    content_bias = parameters.get("content_bias")
    value_heads, key_heads = value_heads or num_heads, key_heads or num_heads

    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(rows, num_heads, query_len, key_len)
        attn_mask = attn_mask.expand(rows, num_heads, query_len, key_len)

    future = torch.ones(query_len, key_len, dtype=torch.bool).triu(1) if causal else None
    outputs, all_weights = [], []
    for n in range(rows):
        of_heads, weights = [], []
        for h in range(num_heads):
            if mixing is not None:
                q_head, k_head = q[n] * mixing[h], k[n]
            else:
                q_head = q[n].chunk(num_heads, -1)[h]
                k_head = k[n].chunk(key_heads, -1)[h * key_heads // num_heads]
            scores = q_head @ k_head.T  # (T, S)
            if content_bias is not None:
                scores = scores + key[n] @ content_bias[h]
            scores = scores * scale
            scores = _hide(scores, None if attn_mask is None else attn_mask[n, h])
            scores = _hide(scores, None if key_padding_mask is None else key_padding_mask[n])
            weights.append(_softmax(_hide(scores, future)))
            of_head = weights[-1] @ v[n].chunk(value_heads, -1)[h * value_heads // num_heads]
            if head_multiplier is not None:
                factor = head_multiplier if head_multiplier.dim() == 1 else head_multiplier[n]
                of_head = of_head * factor[..., h, None].double()
            of_heads.append(of_head)
        outputs.append(_affine(torch.cat(of_heads, dim=-1), parameters, "out_proj"))
        all_weights.append(torch.stack(weights))
    return ReferenceOutput(torch.stack(outputs), torch.stack(all_weights))

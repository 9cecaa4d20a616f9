"""Attention as the equations say it: one head, one sentence, one query at a time, in float64.

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


def _visible_score(score: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Apply one entry of a mask to one score; boolean True hides the key."""
    if mask is None:
        return score
    if mask.dtype == torch.bool:
        return torch.full_like(score, -math.inf) if bool(mask) else score
    return score + mask.double()


def _slice(number: int, width: int) -> slice:
    return slice(number * width, (number + 1) * width)


def _softmax(scores: Tensor) -> Tensor:
    """softmax of (S,), zero where no key is visible."""
    if bool((scores == -math.inf).all()):
        return torch.zeros_like(scores)
    exponentials = torch.exp(scores - scores.max().detach())
    return exponentials / exponentials.sum()


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
    head_key, head_value = q.size(-1) // num_heads, v.size(-1) // value_heads

    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(rows, num_heads, query_len, key_len)
        attn_mask = attn_mask.expand(rows, num_heads, query_len, key_len)

    outputs, all_weights = [], []
    for n in range(rows):
        contexts, sentence_weights = [], []
        for h in range(num_heads):
            if mixing is not None:
                q_head, k_head = q[n] * mixing[h], k[n]
            else:
                q_head, k_head = q[n, :, _slice(h, head_key)], k[n, :, _slice(h * key_heads // num_heads, head_key)]
            v_head = v[n, :, _slice(h * value_heads // num_heads, head_value)]
            head_weights = []
            for t in range(query_len):
                scores = []
                for s in range(key_len):
                    score = torch.dot(q_head[t], k_head[s])
                    if content_bias is not None:
                        score = score + torch.dot(key[n, s], content_bias[h])
                    score = score * scale
                    if attn_mask is not None:
                        score = _visible_score(score, attn_mask[n, h, t, s])
                    if key_padding_mask is not None:
                        score = _visible_score(score, key_padding_mask[n, s])
                    if causal and s > t:
                        score = torch.full_like(score, -math.inf)
                    scores.append(score)
                head_weights.append(_softmax(torch.stack(scores)))
            weights = torch.stack(head_weights)
            context = weights @ v_head
            if head_multiplier is not None:
                factor = head_multiplier if head_multiplier.dim() == 1 else head_multiplier[n]
                context = context * factor[..., h, None].double()
            contexts.append(context)
            sentence_weights.append(weights)
        outputs.append(_affine(torch.cat(contexts, dim=-1), parameters, "out_proj"))
        all_weights.append(torch.stack(sentence_weights))
    return ReferenceOutput(torch.stack(outputs), torch.stack(all_weights))

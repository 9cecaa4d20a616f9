"""Reference implementation: the equations, for one head of one sentence at a time, in float64.

It is slow and shares no code with the layers, which are compared with it.
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


def _hide(logits: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Apply a mask, boolean (True: hidden) or additive, that broadcasts to the logits (T, S)."""
    if mask is None:
        return logits
    return logits.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else logits + mask.double()


def _softmax(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; zero if no key is visible."""
    hidden = (logits == -math.inf).all(dim=-1, keepdim=True)
    visible = logits.masked_fill(hidden, 0.0)
    exponentials = torch.exp(visible - visible.amax(-1, keepdim=True).detach())
    return (exponentials / exponentials.sum(-1, keepdim=True)).masked_fill(hidden, 0.0)


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
    """Collaborative heads if ``parameters`` contains a ``mixing`` matrix, otherwise standard heads.

    With ``latent_proj``, keys and values are projections of latents, which are projections of ``key`` alone.

    Args:
        parameters: ``state_dict`` (or, for gradients, named parameters) of a layer; converted to float64.
        query, key, value: (N, T, E), (N, S, kdim), (N, S, vdim).
        num_heads: H.
        scale: factor on the logits.
        value_heads: groups of neighbouring heads that share values; default H.
        key_heads: groups of neighbouring standard heads that share keys; default H.
        key_padding_mask: (N, S), boolean (True: hidden) or additive.
        attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: hidden) or additive.
        causal: hide keys after the position of the query.
        head_multiplier: (H), (N, H) or (N, T, H).
    """
    parameters = {name: tensor.double() for name, tensor in parameters.items()}
    query, key, value = query.double(), key.double(), value.double()
    rows, query_len, key_len = query.size(0), query.size(1), key.size(1)
    if "latent_proj.weight" in parameters:
        key = value = _affine(key, parameters, "latent_proj")
    q = _affine(query, parameters, "q_proj")
    k = _affine(key, parameters, "k_proj")
    v = _affine(value, parameters, "v_proj")
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
        head_outputs, weights = [], []
        for h in range(num_heads):
            if mixing is not None:
                q_head, k_head = q[n] * mixing[h], k[n]
            else:
                q_head = q[n].chunk(num_heads, -1)[h]
                k_head = k[n].chunk(key_heads, -1)[h * key_heads // num_heads]
            logits = q_head @ k_head.T  # (T, S)
            if content_bias is not None:
                logits = logits + key[n] @ content_bias[h]
            logits = logits * scale
            logits = _hide(logits, None if attn_mask is None else attn_mask[n, h])
            logits = _hide(logits, None if key_padding_mask is None else key_padding_mask[n])
            weights.append(_softmax(_hide(logits, future)))
            head_output = weights[-1] @ v[n].chunk(value_heads, -1)[h * value_heads // num_heads]
            if head_multiplier is not None:
                factor = head_multiplier if head_multiplier.dim() == 1 else head_multiplier[n]
                head_output = head_output * factor[..., h, None].double()
            head_outputs.append(head_output)
        outputs.append(_affine(torch.cat(head_outputs, dim=-1), parameters, "out_proj"))
        all_weights.append(torch.stack(weights))
    return ReferenceOutput(torch.stack(outputs), torch.stack(all_weights))

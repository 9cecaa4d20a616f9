"""What :mod:`.head_loop` does in bfloat16, on CPUs that have units for it.

The formulas are its own. Products cost so little here that what lies between them decides. So all heads of a sentence
share a product wherever they share an operand, and buffers are shared by groups of sentences, small enough to stay in
the processor's cache:

    S = [Q ⊙ m_1; …; Q ⊙ m_H] Kᵀ · scale          ∂K = [∂S_1; …; ∂S_H]ᵀ [Q ⊙ m_1; …; Q ⊙ m_H] · scale
    W = [∂S_1; …; ∂S_H] K · scale                 ∂Q = Σ_h W_h ⊙ m_h                   ∂m_h = Σ_nt W_h ⊙ Q

Products, S and P are in bfloat16, as they would be in the plain way; the softmax, the sums ∂Q and ∂m in float32.
"""

from typing import TYPE_CHECKING, Iterator, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .head_loop import Gradients, Inputs, Setting

#: bytes of buffers of one group of sentences for each thread; the products of smaller groups are slower
GROUP_BYTES = 1 << 22


class Group(NamedTuple):
    """n sentences that are computed together, and buffers that all groups share."""

    rows: slice
    mixed: Tensor  # (n, H, T, D̃k)
    scores: Tensor  # (n, H, T, S)
    context: Tensor  # (n, H, T, dv)
    wide: Tensor  # (n, H, T, S) in float32


def groups(inputs: "Inputs") -> Iterator[Group]:
    """All sentences, in groups whose buffers fit into the cache."""
    query, heads = inputs.query, inputs.mixing.size(0)
    rows, query_len, key_dim = query.shape
    key_len, value_dim = inputs.value.size(2), inputs.value.size(3)
    bytes_per_row = heads * query_len * (2 * key_dim + 6 * key_len + 2 * value_dim)
    size = max(1, min(rows, torch.get_num_threads() * GROUP_BYTES // max(1, bytes_per_row)))
    buffers = [query.new_empty(size, heads, query_len, width) for width in (key_dim, key_len, value_dim)]
    buffers.append(torch.empty_like(buffers[1], dtype=torch.float32))
    for first in range(0, rows, size):
        count = min(size, rows - first)
        yield Group(slice(first, first + count), *(buffer[:count] for buffer in buffers))


def forward(inputs: "Inputs", setting: "Setting", context: Tensor, weights: Tensor) -> None:
    """Fill context (N, H, T, dv) and weights (N, H, T, S), or leave weights (0, H, T, S) out."""
    query, mixing, key, value, content, mask, keep = inputs
    scaled = (mixing * setting.scale).to(query.dtype)[:, None]  # (H, 1, D̃k)
    if mask is not None:
        mask = mask.expand(query.size(0), mixing.size(0), -1, -1)
    for n, mixed, scores, contexts, wide in groups(inputs):
        torch.mul(query[n].unsqueeze(1), scaled, out=mixed)
        torch.bmm(mixed.flatten(1, 2), key[n].transpose(1, 2), out=scores.flatten(1, 2))
        p = weights[n] if len(weights) else scores
        if content is None and mask is None:
            torch.softmax(scores, -1, out=p)  # in float32 inside
        else:
            wide.copy_(scores)
            if content is not None:
                wide.add_(content[n].unsqueeze(2), alpha=setting.scale)
            if mask is not None:
                wide.add_(mask[n])
            p.copy_(torch.softmax(wide, -1, out=wide))
        if keep is not None:
            p = torch.mul(p, keep[n], out=scores).div_(1.0 - setting.dropout)
        context[n] = torch.bmm(p.flatten(0, 1), value[n].flatten(0, 1), out=contexts.flatten(0, 1)).view_as(contexts)


def backward(inputs: "Inputs", weights: Tensor, gradients: "Gradients", setting: "Setting") -> "Gradients":
    """As :func:`.head_loop.backward`, but weights are (N, H, T, S)."""
    query, mixing, key, value, content, _, keep = inputs
    context_gradient, weights_gradient = gradients
    wide_scaled = mixing.float() * setting.scale  # (H, D̃k)
    scaled = wide_scaled.to(query.dtype)[:, None]
    d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.zeros_like(value)
    d_mixing = torch.zeros_like(wide_scaled)
    d_content = torch.empty_like(content) if content is not None else None
    for n, mixed, d_scores, g, _ in groups(inputs):
        p = weights[n]
        if context_gradient is None:
            d_scores.zero_()
        else:
            g.copy_(context_gradient[n])
            dropped = p
            if keep is not None:
                dropped = torch.mul(p, keep[n], out=d_scores).div_(1.0 - setting.dropout)
            d_value[n] = dropped.flatten(0, 1).transpose(1, 2).bmm(g.flatten(0, 1)).view_as(value[n])
            torch.bmm(g.flatten(0, 1), value[n].flatten(0, 1).transpose(1, 2), out=d_scores.flatten(0, 1))
            if keep is not None:
                d_scores.mul_(keep[n]).div_(1.0 - setting.dropout)
        if weights_gradient is not None:
            d_scores.add_(weights_gradient[n])
        torch._softmax_backward_data(d_scores, p, -1, p.dtype, grad_input=d_scores)
        if d_content is not None:
            d_content[n] = d_scores.sum(2).mul_(setting.scale)
        torch.mul(query[n].unsqueeze(1), scaled, out=mixed)
        all_heads = d_scores.flatten(1, 2)  # (n, H·T, S)
        d_key[n] = all_heads.transpose(1, 2).bmm(mixed.flatten(1, 2))
        torch.bmm(all_heads, key[n], out=mixed.flatten(1, 2))  # W / scale
        wide_query = query[n].float()
        wide_gradient = torch.zeros_like(wide_query)
        for h in range(mixing.size(0)):
            w = mixed[:, h].float()
            wide_gradient.addcmul_(w, wide_scaled[h])
            d_mixing[h].add_(w.mul_(wide_query).sum((0, 1)), alpha=setting.scale)
        d_query[n] = wide_gradient
    return d_query, d_mixing.to(mixing.dtype), d_key, d_value, d_content

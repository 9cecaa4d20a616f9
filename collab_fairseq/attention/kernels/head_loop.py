"""Collaborative heads one after the other: the fast way on a CPU.

    scores_h = [(Q ⊙ m_h) Kᵀ + c_h] · scale        P_h = softmax(scores_h + mask)        O_h = dropout(P_h) V_h

The mixed queries Q ⊙ m_h of one head at a time lie in one buffer (n, T, D̃k), for so few sentences n that it stays in
the processor's cache; the backward pass mixes them again. Saved for it are Q, M, K, V (which exist already), P
(H, N, T, S) and, with dropout, a boolean of that size. With G = ∂loss/∂O, for each head:

    ∂V_h = dropout(P_h)ᵀ G_h                 ∂P_h = dropout(G_h V_hᵀ)         (the same weights are dropped)
    ∂S_h = P_h ⊙ (∂P_h − rowsum(∂P_h ⊙ P_h))                                  (S_h: scores of head h)
    ∂Q  += (∂S_h K) ⊙ m_h · scale            ∂K += ∂S_hᵀ (Q ⊙ m_h) · scale
    ∂m_h = Σ_nt (∂S_h K) ⊙ Q · scale         ∂c_h = Σ_t ∂S_h · scale

Dropout draws the random numbers that :mod:`.packed_bmm` draws, so one seed gives one mask. There is no second
derivative: asking for one (``create_graph=True``) raises an error. :mod:`.packed_bmm` has it.
"""

from typing import Any, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..cache import Attended, KeyValue, repeat_kv

#: bytes of buffers of one group of sentences for each thread: the size of a core's L2 cache
GROUP_BYTES = 1 << 20


class Inputs(NamedTuple):
    """The tensors of :func:`attend`; ``keep``: (N, H, T, S), True for weights that dropout keeps, or None."""

    query: Tensor
    mixing: Tensor
    key: Tensor
    value: Tensor
    content: Optional[Tensor]
    mask: Optional[Tensor]
    keep: Optional[Tensor]


class Setting(NamedTuple):
    """What is not a tensor."""

    scale: float
    dropout: float
    need_weights: bool


Gradients = Tuple[Optional[Tensor], ...]


def attend(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor], *setting: Any) -> Attended:
    """As :func:`.attend_collaborative`, without the name; ``setting``: scale, dropout, need_weights."""
    how, keep = Setting(*setting), None
    if how.dropout > 0.0:
        shape = (query.size(0), mixing.size(0), query.size(1), entry.key.size(1))
        keep = torch.empty(shape, dtype=torch.bool, device=query.device).bernoulli_(1.0 - how.dropout)
    value = repeat_kv(entry.value, mixing.size(0))
    inputs = Inputs(query, mixing, entry.key, value, entry.content, mask, keep)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        outputs, weights = HeadLoop.apply(*inputs, how)  # type: ignore[no-untyped-call]
        return outputs, weights
    outputs, weights = forward(inputs, how, keep_weights=how.need_weights)
    return outputs, weights.transpose(0, 1) if how.need_weights else None


def unsupported_reason(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why :func:`attend` cannot compute these, or None."""
    types = {x.dtype for x in (query, mixing, entry.key, entry.value)}
    if len(types) > 1 or not types <= {torch.float32, torch.float64}:
        return f"head_loop computes in float32 or float64, but got {', '.join(sorted(map(str, types)))}"
    if mask is not None and mask.requires_grad:
        return "head_loop has no gradient for the mask, but the mask requires one"
    return None


class HeadLoop(torch.autograd.Function):
    """The formulas at the top of this file.

    Raises:
        RuntimeError: in the backward pass, a second derivative is asked for.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Attended:
        inputs, ctx.setting = Inputs(*arguments[:-1]), arguments[-1]
        outputs, weights = forward(inputs, ctx.setting, keep_weights=True)
        ctx.save_for_backward(*inputs, weights)
        ctx.set_materialize_grads(False)
        return outputs, weights.transpose(0, 1) if ctx.setting.need_weights else None

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Gradients:
        # Checked here and not by torch's once_differentiable: where the incoming gradient is a constant, as that of
        # a sum, it lets the second derivative be zero without a word.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph must be False with the kernel head_loop, which has no second derivative; got True: "
                "use kernel='bmm' (--attention-kernel bmm)"
            )
        *saved, weights = ctx.saved_tensors
        input_gradients = backward(Inputs(*saved), weights, gradients, ctx.setting)
        return (*input_gradients, None, None, None)  # mask, keep, setting


class Group(NamedTuple):
    """n sentences that are computed together, and buffers that all groups share."""

    rows: slice
    mixed: Tensor  # (n, T, D̃k)
    gradient: Tensor  # (n, T, D̃k), of the mixed queries
    scores: Tensor  # (n, T, S)
    output: Tensor  # (n, T, dv)


def groups(inputs: Inputs) -> Iterator[Group]:
    """All sentences, in groups whose buffers fit into the cache."""
    query = inputs.query
    rows, query_len, key_dim = query.shape
    key_len, value_dim = inputs.value.size(2), inputs.value.size(3)
    bytes_per_row = query_len * (2 * key_dim + key_len + value_dim) * query.element_size()
    size = max(1, min(rows, torch.get_num_threads() * GROUP_BYTES // max(1, bytes_per_row)))
    widths = (key_dim, key_dim, key_len, value_dim)
    buffers = [query.new_empty(size, query_len, width) for width in widths]
    for first in range(0, rows, size):
        count = min(size, rows - first)
        yield Group(slice(first, first + count), *(buffer[:count] for buffer in buffers))


def forward(inputs: Inputs, setting: Setting, keep_weights: bool) -> Tuple[Tensor, Tensor]:
    """Head outputs (N, H, T, dv), in memory like the query, and weights (H, N, T, S), or (0, N, T, S) if not kept."""
    query, mixing, key, value, content, mask, keep = inputs
    rows, query_len, _ = query.shape
    heads, key_len, value_dim = mixing.size(0), key.size(1), value.size(3)
    weights = query.new_empty(heads if keep_weights else 0, rows, query_len, key_len)
    if query.stride(0) < query.stride(1):  # (T, N, …) in memory, as in fairseq's layers
        output = query.new_empty(query_len, rows, heads, value_dim).permute(1, 2, 0, 3)
    else:
        output = query.new_empty(rows, query_len, heads, value_dim).transpose(1, 2)
    scaled = mixing * setting.scale
    if mask is not None:
        mask = mask.expand(rows, heads, -1, -1)
    for group in groups(inputs):
        n = group.rows
        for h in range(heads):
            torch.mul(query[n], scaled[h], out=group.mixed)
            scores = weights[h, n] if keep_weights else group.scores
            torch.bmm(group.mixed, key[n].transpose(1, 2), out=scores)
            if content is not None:
                scores.add_(content[n, h].unsqueeze(1), alpha=setting.scale)
            if mask is not None:
                scores.add_(mask[n, h])
            torch.softmax(scores, -1, out=scores)
            if keep is not None:
                scores = torch.mul(scores, keep[n, h], out=group.scores).div_(1.0 - setting.dropout)
            output[n, h] = torch.bmm(scores, value[n, h], out=group.output)
    return output, weights


def backward(inputs: Inputs, weights: Tensor, gradients: Gradients, setting: Setting) -> Gradients:
    """Gradients of query, mixing, key, value and content, from those of outputs (N, H, T, dv) and weights (N, H, T, S).

    Args:
        weights: (H, N, T, S), from :func:`forward`.
        gradients: of its two results; either may be None.
    """
    query, mixing, key, value, content, _, keep = inputs
    output_gradient, weights_gradient = gradients
    scaled = mixing * setting.scale
    d_query, d_mixing, d_value = torch.empty_like(query), torch.zeros_like(mixing), torch.zeros_like(value)
    d_key = torch.zeros(key.shape, dtype=key.dtype, device=key.device)
    d_content = torch.empty_like(content) if content is not None else None
    for n, mixed, d_mixed, d_scores, _ in groups(inputs):
        for h in range(mixing.size(0)):
            p = weights[h, n]
            if output_gradient is None:
                d_scores.zero_()
            else:
                g = output_gradient[n, h]
                dropped = p
                if keep is not None:
                    dropped = torch.mul(p, keep[n, h], out=d_scores).div_(1.0 - setting.dropout)
                d_value[n, h] = torch.bmm(dropped.transpose(1, 2), g)
                torch.bmm(g, value[n, h].transpose(1, 2), out=d_scores)
                if keep is not None:
                    d_scores.mul_(keep[n, h]).div_(1.0 - setting.dropout)
            if weights_gradient is not None:
                d_scores.add_(weights_gradient[n, h])
            torch._softmax_backward_data(d_scores, p, -1, p.dtype, grad_input=d_scores)
            torch.mul(query[n], scaled[h], out=mixed)
            d_key[n].baddbmm_(d_scores.transpose(1, 2), mixed)
            torch.bmm(d_scores, key[n], out=d_mixed)
            if h == 0:
                torch.mul(d_mixed, scaled[h], out=d_query[n])
            else:
                d_query[n].addcmul_(d_mixed, scaled[h])
            d_mixing[h].add_(d_mixed.mul_(query[n]).sum((0, 1)), alpha=setting.scale)
            if d_content is not None:
                torch.sum(d_scores, 1, out=d_content[n, h]).mul_(setting.scale)
    return d_query, d_mixing, d_key, d_value, d_content

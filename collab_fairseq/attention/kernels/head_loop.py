"""Kernel ``head_loop``: collaborative heads one after the other, the fastest way on a CPU.

    logits_h = [(Q ⊙ m_h) Kᵀ + c_h] · scale        P_h = softmax(logits_h + mask)        O_h = dropout(P_h) V_h

A buffer (n, T, D̃k) holds the mixed queries Q ⊙ m_h of one head and of n sentences, few enough for the CPU cache. The
backward pass mixes the queries again. Autograd saves Q, M, K and V, which exist anyway, P (H, N, T, S) and, with
dropout, a boolean mask of the same size. With G = ∂loss/∂O, the gradients of head h are

    ∂V_h = dropout(P_h)ᵀ G_h                 ∂P_h = dropout(G_h V_hᵀ)         (the same weights are dropped)
    ∂S_h = P_h ⊙ (∂P_h − rowsum(∂P_h ⊙ P_h))                                  (S_h: logits of head h)
    ∂Q  += (∂S_h K) ⊙ m_h · scale            ∂K += ∂S_hᵀ (Q ⊙ m_h) · scale
    ∂m_h = Σ_nt (∂S_h K) ⊙ Q · scale         ∂c_h = Σ_t ∂S_h · scale

If the weights are returned, their gradient is added to ∂P_h. Dropout draws the same random numbers as in
:mod:`.packed_bmm`, so a seed gives the same dropout mask. There is no second derivative: ``create_graph=True`` raises
an error, and :mod:`.packed_bmm` must be used instead.
"""

from typing import Any, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..cache import Attended, KeyValue, repeat_kv
from ..projections import is_seq_first

#: bytes of buffers per thread: the size of a core's L2 cache
GROUP_BYTES = 1 << 20

Gradients = Tuple[Optional[Tensor], ...]


class Inputs(NamedTuple):
    """The tensors of :func:`attend`, with values (N, H, S, dv) for every head.

    ``keep`` (N, H, T, S) is True for the attention weights that dropout keeps, or None without dropout.
    """

    query: Tensor
    mixing: Tensor
    key: Tensor
    value: Tensor
    content: Optional[Tensor]
    mask: Optional[Tensor]
    keep: Optional[Tensor]


def attend(
    query: Tensor,
    mixing: Tensor,
    entry: KeyValue,
    mask: Optional[Tensor],
    scale: float,
    dropout: float,
    need_weights: bool,
) -> Attended:
    """Head outputs and attention weights; for the arguments see :func:`.attend_collaborative`."""
    keep: Optional[Tensor] = None
    if dropout > 0.0:
        shape = (query.size(0), mixing.size(0), query.size(1), entry.key.size(1))
        keep = torch.empty(shape, dtype=torch.bool, device=query.device).bernoulli_(1.0 - dropout)
    value = repeat_kv(entry.value, mixing.size(0))
    inputs = Inputs(query, mixing, entry.key, value, entry.content, mask, keep)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        outputs, weights = HeadLoop.apply(*inputs, scale, dropout, need_weights)  # type: ignore[no-untyped-call]
        return outputs, weights
    outputs, weights = forward(inputs, scale, dropout, keep_weights=need_weights)
    return outputs, weights.transpose(0, 1) if need_weights else None


def unsupported_reason(query: Tensor, mixing: Tensor, entry: KeyValue, mask: Optional[Tensor]) -> Optional[str]:
    """Why :func:`attend` cannot compute these tensors, or None."""
    dtypes = {x.dtype for x in (query, mixing, entry.key, entry.value)}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(map(str, dtypes)))
        return f"all tensors must be float32 or all float64 with the kernel head_loop; got {names}"
    if mask is not None and mask.requires_grad:
        return "the kernel head_loop does not compute a gradient for the mask, but the mask requires one"
    return None


class HeadLoop(torch.autograd.Function):
    """Autograd function of the formulas at the top of this file. Second derivatives raise RuntimeError."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Attended:
        *tensors, scale, dropout, need_weights = arguments
        inputs = Inputs(*tensors)
        outputs, weights = forward(inputs, scale, dropout, keep_weights=True)
        ctx.scale, ctx.dropout = scale, dropout
        ctx.save_for_backward(*inputs, weights)
        ctx.set_materialize_grads(False)
        return outputs, weights.transpose(0, 1) if need_weights else None

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Gradients:
        # torch's once_differentiable is not enough: if the incoming gradient is a constant, as for a sum, it raises
        # no error and the second derivative is silently zero
        if torch.is_grad_enabled():
            raise RuntimeError("head_loop has no second derivative: use kernel='bmm' (--attention-kernel bmm)")
        *tensors, weights = ctx.saved_tensors
        input_gradients = backward(Inputs(*tensors), weights, gradients, ctx.scale, ctx.dropout)
        return (*input_gradients, None, None, None, None, None)  # mask, keep, scale, dropout, need_weights


class Group(NamedTuple):
    """n sentences that are computed together, and buffers that all groups share."""

    rows: slice
    mixed: Tensor  # (n, T, D̃k), mixed queries
    d_mixed: Tensor  # (n, T, D̃k), their gradient
    logits: Tensor  # (n, T, S), logits, weights or their gradient
    output: Tensor  # (n, T, dv)


def groups(inputs: Inputs) -> Iterator[Group]:
    """Split the sentences into groups whose buffers fit into the cache."""
    query = inputs.query
    rows, query_len, key_dim = query.shape
    key_len, value_dim = inputs.value.size(2), inputs.value.size(3)
    bytes_per_row = query_len * (2 * key_dim + key_len + value_dim) * query.element_size()
    rows_in_cache = torch.get_num_threads() * GROUP_BYTES // max(1, bytes_per_row)
    group_size = max(1, min(rows, rows_in_cache))
    widths = (key_dim, key_dim, key_len, value_dim)
    buffers = [query.new_empty(group_size, query_len, width) for width in widths]
    for first in range(0, rows, group_size):
        count = min(group_size, rows - first)
        yield Group(slice(first, first + count), *(buffer[:count] for buffer in buffers))


def forward(inputs: Inputs, scale: float, dropout: float, keep_weights: bool) -> Tuple[Tensor, Tensor]:
    """Head outputs (N, H, T, dv) and attention weights (H, N, T, S), or (0, N, T, S) without ``keep_weights``.

    The outputs have the memory order of the query.
    """
    query, mixing, key, value, content, mask, keep = inputs
    num_rows, query_len, _ = query.shape
    num_heads, key_len, value_dim = mixing.size(0), key.size(1), value.size(3)
    weights = query.new_empty(num_heads if keep_weights else 0, num_rows, query_len, key_len)
    if is_seq_first(query):
        output = query.new_empty(query_len, num_rows, num_heads, value_dim).permute(1, 2, 0, 3)
    else:
        output = query.new_empty(num_rows, query_len, num_heads, value_dim).transpose(1, 2)
    scaled_mixing = mixing * scale
    if mask is not None:
        mask = mask.expand(num_rows, num_heads, -1, -1)
    for group in groups(inputs):
        rows = group.rows
        for h in range(num_heads):
            torch.mul(query[rows], scaled_mixing[h], out=group.mixed)
            logits = weights[h, rows] if keep_weights else group.logits
            torch.bmm(group.mixed, key[rows].transpose(1, 2), out=logits)
            if content is not None:
                logits.add_(content[rows, h].unsqueeze(1), alpha=scale)
            if mask is not None:
                logits.add_(mask[rows, h])
            p = torch.softmax(logits, -1, out=logits)
            if keep is not None:
                p = torch.mul(p, keep[rows, h], out=group.logits).div_(1.0 - dropout)
            output[rows, h] = torch.bmm(p, value[rows, h], out=group.output)
    return output, weights


def backward(inputs: Inputs, weights: Tensor, gradients: Gradients, scale: float, dropout: float) -> Gradients:
    """Gradients of query, mixing, key, value and content.

    Args:
        weights: (H, N, T, S), from :func:`forward`.
        gradients: gradients of the outputs (N, H, T, dv) and of the returned weights (N, H, T, S), each may be None.
    """
    query, mixing, key, value, content, _, keep = inputs
    output_gradient, weights_gradient = gradients
    scaled_mixing = mixing * scale
    d_query = torch.empty_like(query)
    d_mixing = torch.zeros_like(mixing)
    d_key = torch.zeros(key.shape, dtype=key.dtype, device=key.device)
    d_value = torch.zeros_like(value)
    d_content = torch.empty_like(content) if content is not None else None
    for rows, mixed, d_mixed, d_logits, _ in groups(inputs):
        for h in range(mixing.size(0)):
            p = weights[h, rows]
            # ∂V_h and ∂P_h
            if output_gradient is None:
                d_logits.zero_()
            else:
                g = output_gradient[rows, h]
                dropped = p
                if keep is not None:
                    dropped = torch.mul(p, keep[rows, h], out=d_logits).div_(1.0 - dropout)
                d_value[rows, h] = torch.bmm(dropped.transpose(1, 2), g)
                torch.bmm(g, value[rows, h].transpose(1, 2), out=d_logits)
                if keep is not None:
                    d_logits.mul_(keep[rows, h]).div_(1.0 - dropout)
            if weights_gradient is not None:
                d_logits.add_(weights_gradient[rows, h])
            # ∂S_h, in the same buffer
            torch._softmax_backward_data(d_logits, p, -1, p.dtype, grad_input=d_logits)
            # ∂K, ∂Q, ∂m_h and ∂c_h
            torch.mul(query[rows], scaled_mixing[h], out=mixed)
            d_key[rows].baddbmm_(d_logits.transpose(1, 2), mixed)
            torch.bmm(d_logits, key[rows], out=d_mixed)
            if h == 0:
                torch.mul(d_mixed, scaled_mixing[h], out=d_query[rows])
            else:
                d_query[rows].addcmul_(d_mixed, scaled_mixing[h])
            d_mixing[h].add_(d_mixed.mul_(query[rows]).sum((0, 1)), alpha=scale)
            if d_content is not None:
                torch.sum(d_logits, 1, out=d_content[rows, h]).mul_(scale)
    return d_query, d_mixing, d_key, d_value, d_content

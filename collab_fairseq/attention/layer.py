"""What collaborative and standard heads have in common: values, output, masks, beams, and the two public steps."""

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from .attention_type import AttentionType, check_groups
from .cache import Attended, KeyValue, repeat_kv
from .kernels import check_name
from .masks import combine, multiply_heads
from .projections import is_seq_first, linear
from .torch_encoder import WithoutFastPath

#: see :meth:`AttentionLayer.reset_parameters`
INITS = ("default", "authors")


class AttentionLayer(WithoutFastPath, AttentionType, nn.Module):
    """Base of all attention types, which are listed in :data:`.attention_types.ATTENTION_TYPES`.

    ``forward`` is :meth:`project`, then :meth:`attend`; decoding calls the two. A subclass says what is cached of
    projected keys and values (``_entry``), what its heads make of that (``_head_outputs``), and what
    :class:`.AttentionType` asks.

    Args (attributes too, but for ``source_dim`` and the biases):
        embed_dim: E, width of queries and of the output.
        num_heads: H.
        key_dim: D̃k for collaborative heads, H · dk for standard heads: width of ``q_proj`` and ``k_proj``; default E.
        kdim, vdim: widths of the key and value inputs, as in torch; default E.
        head_dim: dv, value width of one head; default E / H. dropout: probability of dropping a weight in training.
        value_heads: G, heads of the value projection, each read by H / G neighbouring heads; default H.
        key_heads: the same of the key projection, of standard heads; default H.
        source_dim: width of what keys and values are projected from, where that is not the inputs; default None.
        scale: factor on the scores, stored; default dv^-0.5 = (E/H)^-0.5, whatever the key dim.
        init: ``default``, or ``authors``, as in the code of Cordonnier, Loukas, Jaggi (2020): see
            :meth:`reset_parameters`.
        bias: default of the four biases below.
        query_bias, key_bias, value_bias, out_bias: whether that projection has a bias. The key bias never changes the
            output (softmax is shift-invariant) and has zero gradient; the paper's models have one.

    Attributes:
        hook: None, or a function that computes the heads instead, for analyses: ``hook(compute, query, entry, mask,
            dropout, need_weights)``, where ``compute`` is the layer's own function of the rest; it is not saved.

    Raises:
        ValueError: sizes that do not fit.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        key_dim: Optional[int] = None,
        *,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        head_dim: Optional[int] = None,
        value_heads: Optional[int] = None,
        key_heads: Optional[int] = None,
        source_dim: Optional[int] = None,
        dropout: float = 0.0,
        bias: bool = True,
        query_bias: Optional[bool] = None,
        key_bias: Optional[bool] = None,
        value_bias: Optional[bool] = None,
        out_bias: Optional[bool] = None,
        scale: Optional[float] = None,
        init: str = "default",
    ) -> None:
        super().__init__()
        key_dim = embed_dim if key_dim is None else key_dim
        for name, number in (("embed_dim", embed_dim), ("num_heads", num_heads), ("key_dim", key_dim)):
            if number < 1:
                raise ValueError(f"{name} must be positive, but is {number}")
        if head_dim is None:
            if embed_dim % num_heads != 0:
                raise ValueError(f"embed_dim must be divisible by num_heads, but they are {embed_dim} and {num_heads}")
            head_dim = embed_dim // num_heads
        value_heads = num_heads if value_heads is None else value_heads
        key_heads = num_heads if key_heads is None else key_heads
        for name, number in (("value_heads", value_heads), ("key_heads", key_heads)):
            check_groups(name, number, num_heads)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, but is {dropout}")
        self.embed_dim, self.num_heads, self.key_dim, self.head_dim = embed_dim, num_heads, key_dim, head_dim
        self.value_heads, self.key_heads = value_heads, key_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, but is {init!r}")
        self.init = init
        self.scale = float(head_dim**-0.5 if scale is None else scale)
        self.hook: Optional[Callable[..., Attended]] = None

        # this order of creation draws the same random numbers as fairseq's MultiheadAttention
        keys, values = key_dim * key_heads // num_heads, value_heads * head_dim
        self.k_proj = nn.Linear(source_dim or self.kdim, keys, bias=bias if key_bias is None else key_bias)
        self.v_proj = nn.Linear(source_dim or self.vdim, values, bias=bias if value_bias is None else value_bias)
        self.q_proj = nn.Linear(embed_dim, key_dim, bias=bias if query_bias is None else query_bias)
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias if out_bias is None else out_bias)

    def reset_parameters(self) -> None:
        """Xavier weights; query, key and value with gain 1/√2 where all inputs are as wide as the layer.

        ``init="authors"``: and where the key dim is, too; else with gain 1.
        """
        alike = self.kdim == self.vdim == self.embed_dim and (self.init == "default" or self.key_dim == self.embed_dim)
        gain = 1 / math.sqrt(2) if alike else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def _finish(self, kernel: str, device: Optional[torch.device], dtype: Optional[torch.dtype]) -> None:
        """The end of a subclass's ``__init__``: all parameters are there, and may be set and moved."""
        check_name(kernel, self.kernels)
        self.kernel = kernel
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    def split_heads(self, joined: Tensor, heads: Optional[int] = None) -> Tensor:
        """(N, T, H·d) → (N, H, T, d); heads: another number in place of H."""
        number = self.num_heads if heads is None else heads
        return joined.view(joined.size(0), joined.size(1), number, joined.size(2) // number).transpose(1, 2)

    def head_values(self, entry: KeyValue) -> Tensor:
        """The values of every head, (N, H, S, dv), that an entry of :meth:`project` stands for."""
        return repeat_kv(entry.value, self.num_heads)

    def project(self, key: Tensor, value: Tensor) -> KeyValue:
        """Keys and values as attention reads them: the entry that decoding caches.

        Args:
            key, value: (N, S, kdim), (N, S, vdim).
        """
        if value is key:
            keys, values = linear(key, self.k_proj, self.v_proj)
        else:
            (keys,), (values,) = linear(key, self.k_proj), linear(value, self.v_proj)
        return self._entry(key, keys, values)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, KeyValue]:
        """Queries (N, T, key_dim) and :meth:`project`; of the same inputs in one product, where that pays.

        Queries first, as in fairseq: where projections draw random numbers, for quantization noise, these are the same.
        """
        if query is key and value is key:
            queries, keys, values = linear(query, self.q_proj, self.k_proj, self.v_proj)
            return queries, self._entry(key, keys, values)
        (queries,) = linear(query, self.q_proj)
        return queries, self.project(key, value)

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        """The entry of key inputs (N, S, kdim), projected to (N, S, ·), and values projected to (N, S, G·dv)."""
        raise NotImplementedError

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        """Outputs and weights of heads, from projected queries (N, T, key_dim) and an additive mask."""
        raise NotImplementedError

    def attend(
        self,
        query: Tensor,
        entry: KeyValue,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        head_multiplier: Optional[Tensor] = None,
        dropout: Optional[float] = None,
        projected: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attention of queries over keys and values that :meth:`project` has projected.

        Args:
            query: (R, T, E). R is N, or N · B where B consecutive rows (beams) read the same row of the entry.
            entry: N rows of keys and values.
            key_padding_mask: (N, S), boolean (True: padding, not seen) or additive.
            need_weights: also return the attention weights.
            attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: not seen) or additive; not with beams.
            average_attn_weights: average the returned weights over heads.
            is_causal: position t sees keys up to t; with ``attn_mask`` only a hint, as in torch; not with beams.
            head_multiplier: (H), (R, H) or (R, T, H), factor on every head's output.
            dropout: probability for attention weights; None: the layer's in training, 0 otherwise.
            projected: ``query`` is (R, T, key_dim), projected already.

        Returns:
            output (R, T, E); weights, before dropout, (R, T, S) averaged or (R, H, T, S), or None. A query that sees
            no key gets zero weights and a zero head output.

        Raises:
            ValueError: shapes that do not fit together.
        """
        width = self.key_dim if projected else self.embed_dim
        if query.dim() != 3 or query.size(2) != width:
            raise ValueError(f"query must have shape (N, T, {width}), but is {list(query.shape)}")
        queries = query if projected else linear(query, self.q_proj)[0]
        query_rows, query_len, _ = query.shape
        rows, key_len = entry.value.size(0), entry.value.size(2)
        beams = query_rows // rows if rows > 0 else 1
        if beams * rows != query_rows:
            raise ValueError(f"query rows must be a multiple of the {rows} rows of keys, but are {query_rows}")
        mask = combine(key_padding_mask, attn_mask, is_causal, (rows, self.num_heads, query_len, key_len), queries)
        additive, hidden = (None, None) if mask is None else mask
        if beams > 1 and additive is not None and additive.size(2) > 1:
            raise ValueError(
                "several beams per row of keys need one mask for all queries, but there is one for each of "
                f"{additive.size(2)}: give no attn_mask and no is_causal"
            )

        if dropout is None:
            dropout = self.dropout if self.training else 0.0
        # beams of a sentence are more queries of the same row: (N·B, T, ·) → (N, B·T, ·)
        folded = queries.reshape(rows, beams * query_len, self.key_dim)
        if self.hook is None:
            outputs, weights = self._head_outputs(folded, entry, additive, dropout, need_weights)
        else:
            outputs, weights = self.hook(self._head_outputs, folded, entry, additive, dropout, need_weights)
        if hidden is not None:
            outputs = outputs.masked_fill(hidden, 0.0)

        # (N, H, B·T, dv) → (N, B·T, H, dv) → (R, T, H, dv), in the query's memory order
        outputs = outputs.transpose(1, 2).reshape(query_rows, query_len, self.num_heads, self.head_dim)
        if is_seq_first(queries):
            outputs = outputs.transpose(0, 1).contiguous().transpose(0, 1)
        if head_multiplier is not None:
            outputs = multiply_heads(outputs, head_multiplier)
        (output,) = linear(outputs.flatten(2), self.out_proj)
        if not need_weights or weights is None:
            return output, None
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        # (N, H, B·T, S) → (N, B, H, T, S) → (R, H, T, S)
        weights = weights.view(rows, self.num_heads, beams, query_len, key_len).transpose(1, 2).flatten(0, 1)
        return output, weights.mean(dim=1) if average_attn_weights else weights

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        head_multiplier: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The call of ``torch.nn.MultiheadAttention(batch_first=True)``: :meth:`project`, then :meth:`attend`.

        Args:
            query, key, value: (N, T, E), (N, S, kdim), (N, S, vdim). The others: see :meth:`attend`.

        Returns:
            output (N, T, E); weights or None, see :meth:`attend`.
        """
        widths = [query.size(-1), key.size(-1), value.size(-1)]
        fits = query.dim() == 3 and key.dim() == 3 and value.dim() == 3 and query.size(0) == key.size(0)
        if not fits or key.shape[:2] != value.shape[:2] or widths != [self.embed_dim, self.kdim, self.vdim]:
            raise ValueError(
                f"query, key and value must have shapes (N, T, {self.embed_dim}), (N, S, {self.kdim}) and "
                f"(N, S, {self.vdim}), but are {list(query.shape)}, {list(key.shape)}, {list(value.shape)}"
            )
        queries, entry = self._project(query, key, value)
        return self.attend(
            queries,
            entry,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
            head_multiplier,
            projected=True,
        )

    def extra_repr(self) -> str:
        shared = f"value_heads={self.value_heads}, " if self.value_heads < self.num_heads else ""
        return (
            f"heads={self.num_heads}, key_dim={self.key_dim}, head_dim={self.head_dim}, {shared}"
            f"scale={self.scale:.6g}, dropout={self.dropout}"
        )

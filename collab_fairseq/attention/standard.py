"""Standard multi-head attention with a free key dimension: the baseline of every comparison."""

from typing import Optional

from torch import Tensor

from .cache import Attended, KeyValue
from .factors import HeadMaps
from .kernels import STANDARD, choose_standard
from .layer import AttentionLayer


class StandardAttention(AttentionLayer):
    """Standard heads (Vaswani et al. 2017), each with its own query and key dimensions::

        H_i = softmax( (X W_Q^(i)) (Y W_K^(i))ᵀ · scale ) Y W_V^(i)        output = [H_1 … H_H] W_O

    With ``key_dim == embed_dim`` this is the multi-head attention of fairseq and torch, with identical results.

    Args:
        embed_dim, num_heads: E and H.
        key_dim: key dimension summed over heads, H · dk; default E. Must be divisible by the number of heads.
        kernel: ``auto`` or a name in :data:`.kernels.STANDARD`; ``bmm`` for second derivatives, which torch's fused
            attention (``sdpa``, and ``auto`` for long sentences) lacks.
        others: see :class:`.AttentionLayer`. They must be named.

    Parameters: ``q_proj`` (H·dk, E), ``k_proj`` (H·dk, kdim), ``v_proj`` (H·dv, vdim), ``out_proj`` (E, H·dv).
    """

    type_name = "standard"
    kernels = tuple(STANDARD)

    def _build(self) -> None:
        if self.key_dim % self.num_heads != 0:
            raise ValueError(
                f"key_dim must be divisible by num_heads with standard heads; got {self.key_dim} and {self.num_heads}"
            )

    def summary(self) -> str:
        each = self.key_dim // self.num_heads
        text = f"{self.num_heads} standard heads with a key dimension of {self.key_dim}, {each} each{self._in_groups()}"
        factor = f"{self.scale * self.head_dim**0.5:.3g}"
        return text if factor == "1" else f"{text}, attention logits × {factor}"

    def head_maps(self) -> HeadMaps:
        return HeadMaps(
            self._head_map(self.q_proj, self.num_heads),
            self._head_map(self.k_proj, self.key_heads),
            self._head_map(self.v_proj, self.value_heads),
        )

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        """Keys (N, G, S, dk) and values (N, G, S, dv)."""
        return KeyValue(self.split_heads(keys, self.key_heads), self.split_heads(values, self.value_heads))

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        return self._attend_heads(self.split_heads(query), entry, mask, dropout, need_weights)

    def _attend_heads(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        """Like :meth:`_head_outputs`, for queries (N, H, T, dk)."""
        kernel = choose_standard(self.kernel, query, entry, dropout, need_weights)
        return kernel(query * self.scale, entry, mask, dropout, need_weights)

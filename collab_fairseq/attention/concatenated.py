"""Standard multi-head attention with a free key dim: the baseline of every comparison."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .cache import KeyValue
from .kernels import heads_bmm
from .layer import AttentionLayer


class ConcatenatedAttention(AttentionLayer):
    """Standard heads (Vaswani et al. 2017), each with query and key dimensions of its own::

        H_i = softmax( (X W_Q^(i)) (Y W_K^(i))ᵀ · scale ) Y W_V^(i)        output = [H_1 … H_H] W_O

    At ``key_dim == embed_dim`` this is fairseq's and torch's multi-head attention, number for number.

    Args:
        embed_dim, num_heads: E and H.
        key_dim: dimensions of all heads together, H · dk; default E. Must be divisible by the number of heads.
        device, dtype: of the parameters.
        options: as of :class:`.CollaborativeAttention`; see :class:`.AttentionLayer`. The default scale is (E/H)^-0.5
            at every key dim, as in the paper's runs.

    Parameters: ``q_proj`` (H·dk, E), ``k_proj`` (H·dk, kdim), ``v_proj`` (H·dv, vdim), ``out_proj`` (E, H·dv).

    Raises:
        ValueError: sizes that do not fit.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        key_dim: Optional[int] = None,
        *,
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, key_dim, **options)
        if self.key_dim % num_heads != 0:
            raise ValueError(
                "standard heads split the key dim evenly: key_dim must be divisible by num_heads, "
                f"but key_dim is {self.key_dim} and num_heads is {num_heads}"
            )
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    def project(self, key: Tensor, value: Tensor) -> KeyValue:
        """Keys (N, H, S, dk) and values (N, H, S, dv) of inputs (N, S, kdim), (N, S, vdim)."""
        return KeyValue(self._split(self.k_proj(key)), self.project_value(value), None)

    def _split(self, shared: Tensor) -> Tensor:
        """(N, T, H·dk) → (N, H, T, dk)"""
        rows, length, _ = shared.shape
        return shared.view(rows, length, self.num_heads, self.key_dim // self.num_heads).transpose(1, 2)

    def read_heads(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float
    ) -> Tuple[Tensor, Tensor]:
        return heads_bmm.attend(self._split(query), entry, mask, self.scale, dropout)

"""Multi-head latent attention without rotary embeddings: keys and values of all heads are computed from one latent.

DeepSeek-AI (2024), "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 2.1; queries are not compressed.
"""

from typing import Any, ClassVar, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from .cache import Attended, KeyValue
from .errors import AttentionError
from .factors import ScoreWeights, affine
from .projections import are_plain, linear, uninitialised
from .standard import StandardAttention
from .transforms import is_tracing


class LatentAttention(StandardAttention):
    """Standard heads whose keys and values are projections of one latent per position, C::

        C = Y W_C        H_i = softmax( (X W_Q^(i)) (C W_K^(i))ᵀ · scale ) C W_V^(i)        output = [H_1 … H_H] W_O

    Decoding caches the L numbers of a latent and does not expand keys and values: the query absorbs W_K^(i), and the
    head output absorbs W_V^(i), ``softmax( (X W_Q^(i) W_K^(i)ᵀ) Cᵀ · scale ) C W_V^(i)``. In training and with many
    queries, expanding is cheaper.

    Args:
        kv_latent_dim: L.
        kdim, vdim: width of the inputs Y. Keys and values have the same inputs, so the two must be equal.
        others: see :class:`.StandardAttention`.

    Parameters: ``q_proj`` (H·dk, E), ``latent_proj`` (L, kdim) without bias, ``k_proj`` (H·dk, L), ``v_proj``
    (H·dv, L), ``out_proj`` (E, H·dv).
    """

    type_name, chosen_by = "latent", "kv_latent_dim"
    settings: ClassVar[Mapping[str, str]] = {"kv_latent_dim": "kv_latent_dim"}

    def __init__(
        self, embed_dim: int, num_heads: int, key_dim: Optional[int] = None, *, kv_latent_dim: int, **options: Any
    ) -> None:
        if kv_latent_dim < 1:
            raise ValueError(f"kv_latent_dim must be positive; got {kv_latent_dim}")
        # given here, so that options with these names raise a TypeError: latent heads have no groups
        super().__init__(
            embed_dim,
            num_heads,
            key_dim,
            source_dim=kv_latent_dim,
            value_heads=num_heads,
            key_heads=num_heads,
            **options,
        )

    def _build(self) -> None:
        super()._build()
        if self.kdim != self.vdim:
            raise ValueError(f"kdim and vdim must be equal with latent heads; got {self.kdim} and {self.vdim}")
        self.latent_dim = self.k_proj.in_features
        self.latent_proj = uninitialised(self.kdim, self.latent_dim, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.latent_proj.weight)

    def project(self, key: Tensor, value: Tensor) -> KeyValue:
        """Latents of the key inputs (N, S, kdim). ``value`` must be the same tensor."""
        if value is not key:
            raise ValueError("value must be the same tensor as key with latent heads; got two tensors")
        (latent,) = linear(key, self.latent_proj)
        return self._latent_entry(latent)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, KeyValue]:
        if query is key and value is key:
            queries, latent = linear(query, self.q_proj, self.latent_proj)
            return queries, self._latent_entry(latent)
        (queries,) = linear(query, self.q_proj)
        return queries, self.project(key, value)

    def _latent_entry(self, latent: Tensor) -> KeyValue:
        """The cache entry for latents (N, S, L)."""
        return KeyValue(latent[:, :, :0], latent.unsqueeze(1))

    def head_values(self, entry: KeyValue) -> Tensor:
        return self.split_heads(self.v_proj(entry.value.squeeze(1)))

    def shared(self) -> List[str]:
        return ["keys", "values"]

    def summary(self) -> str:
        return f"{super().summary()}, keys and values from latents of {self.latent_dim}"

    def _head_map(self, projection: nn.Linear, groups: int) -> Tensor:
        head_map = super()._head_map(projection, groups)
        if projection is self.q_proj:
            return head_map
        weight, bias = head_map[..., :-1], head_map[..., -1:]
        return torch.cat([weight @ affine(self.latent_proj)[:, :-1], bias], dim=-1)

    def score_weights(self) -> ScoreWeights:
        raise AttentionError(f"{type(self).__name__} cannot be converted: keys and values share latents")

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        latent = entry.value.squeeze(1)
        if not self._absorbs(query.size(1), latent.size(1), dropout):
            keys, values = linear(latent, self.k_proj, self.v_proj)
            expanded = KeyValue(self.split_heads(keys), self.split_heads(values))
            return self._attend_heads(self.split_heads(query), expanded, mask, dropout, need_weights)
        key_weight = self.k_proj.weight.view(self.num_heads, -1, self.latent_dim)
        value_weight = self.v_proj.weight.view(self.num_heads, -1, self.latent_dim)
        # the key bias is left out: it adds a constant to all logits of a query, to which softmax is invariant
        absorbed = torch.einsum("nhtd,hdl->nhtl", self.split_heads(query), key_weight)
        shared = KeyValue(entry.value, entry.value)
        outputs, weights = self._attend_heads(absorbed, shared, mask, dropout, need_weights)
        outputs = torch.einsum("nhtl,hdl->nhtd", outputs, value_weight)
        if self.v_proj.bias is not None:
            outputs = outputs + self.v_proj.bias.view(self.num_heads, 1, self.head_dim)
        return outputs, weights

    def _absorbs(self, query_len: int, key_len: int, dropout: float) -> bool:
        """Whether absorbing is possible and takes fewer multiplications than expanding.

        Weights must sum to 1. Absorbing reads the weights of ``k_proj`` and ``v_proj`` instead of calling them.
        """
        if self.training or dropout > 0.0 or key_len == 0 or is_tracing():
            return False
        if not are_plain(self.k_proj, self.v_proj):
            return False
        width = self.key_dim + self.num_heads * self.head_dim
        expanding = key_len * self.latent_dim * width + query_len * key_len * width
        absorbing = query_len * self.latent_dim * (width + 2 * key_len * self.num_heads)
        return absorbing < expanding

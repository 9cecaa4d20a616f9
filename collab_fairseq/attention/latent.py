"""Multi-head latent attention, without its rotary part: keys and values of all heads come from one latent.

DeepSeek-AI (2024), "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 2.1; queries are not compressed.
"""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn

from .attention_type import Flag
from .cache import Attended, KeyValue
from .factors import ReparamError, ScoreWeights
from .projections import linear
from .standard import StandardAttention
from .transforms import is_tracing


class LatentAttention(StandardAttention):
    """Standard heads whose keys and values are projections of latents C, one for each position::

        C = Y W_C        H_i = softmax( (X W_Q^(i)) (C W_K^(i))ᵀ · scale ) C W_V^(i)        output = [H_1 … H_H] W_O

    Decoding caches the L numbers of a latent and expands no keys or values: W_K^(i) is absorbed by the query and
    W_V^(i) by the head output, ``softmax( (X W_Q^(i) W_K^(i)ᵀ) Cᵀ · scale ) C``. In training, and where there are many
    queries, expanding is cheaper.

    Args:
        kv_latent_dim: L. The others: see :class:`.StandardAttention`.
        kdim, vdim: width of the inputs Y; keys and values have the same inputs, hence one width.

    Parameters: ``q_proj`` (H·dk, E), ``latent_proj`` (L, kdim) without bias, ``k_proj`` (H·dk, L), ``v_proj``
    (H·dv, L), ``out_proj`` (E, H·dv).

    Raises:
        ValueError: sizes that do not fit, an unknown kernel; in a call: a value that is not the key.
    """

    type_name, chosen_by = "latent", "kv_latent_dim"
    flags = (
        Flag(
            "kv_latent_dim",
            "kv_latent_dim",
            "standard heads make keys and values from a latent of this width for each position, which is all that "
            "decoding caches: multi-head latent attention (default: no latents)",
            words="latent {}",
        ),
    )

    def __init__(
        self, embed_dim: int, num_heads: int, key_dim: Optional[int] = None, *, kv_latent_dim: int, **options: Any
    ) -> None:
        if kv_latent_dim < 1:
            raise ValueError(f"kv_latent_dim must be positive, but is {kv_latent_dim}")
        super().__init__(embed_dim, num_heads, key_dim, source_dim=kv_latent_dim, **options)

    def _build(self) -> None:
        if self.kdim != self.vdim:
            raise ValueError(
                f"latent heads make keys and values of one input, but kdim is {self.kdim} and vdim is {self.vdim}"
            )
        self.latent_dim = self.k_proj.in_features
        self.latent_proj = nn.Linear(self.kdim, self.latent_dim, bias=False)

    def reset_parameters(self) -> None:
        """Xavier projections, as standard heads have."""
        super().reset_parameters()
        nn.init.xavier_uniform_(self.latent_proj.weight)

    def project(self, key: Tensor, value: Tensor) -> KeyValue:
        """The latents of the key inputs (N, S, kdim), which must be the value inputs, too: what decoding caches."""
        if value is not key:
            raise ValueError("latent heads make keys and values of one input: value must be key, but is another tensor")
        return self._latents(linear(key, self.latent_proj)[0])

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, KeyValue]:
        if query is key and value is key:
            queries, latent = linear(query, self.q_proj, self.latent_proj)
            return queries, self._latents(latent)
        (queries,) = linear(query, self.q_proj)
        return queries, self.project(key, value)

    def head_values(self, entry: KeyValue) -> Tensor:
        return self.split_heads(self.v_proj(entry.value.squeeze(1)))

    def shared(self) -> List[str]:
        return ["keys", "values"]

    def summary(self) -> str:
        return f"{super().summary()}, keys and values from latents of {self.latent_dim}"

    def _head_map(self, projection: nn.Linear, groups: int) -> Tensor:
        made = super()._head_map(projection, groups)
        if projection is self.q_proj:
            return made
        return torch.cat([made[..., :-1] @ self.latent_proj.weight.double(), made[..., -1:]], dim=-1)

    def score_weights(self) -> ScoreWeights:
        raise ReparamError(f"{type(self).__name__} cannot be converted: latents make its values, too")

    def _latents(self, latent: Tensor) -> KeyValue:
        """The entry of latents (N, S, L)."""
        return KeyValue(latent[:, :, :0], latent.unsqueeze(1), None)

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        latent = entry.value.squeeze(1)
        if not self._absorbs(query.size(1), latent.size(1), dropout):
            keys, values = linear(latent, self.k_proj, self.v_proj)
            expanded = KeyValue(self.split_heads(keys), self.split_heads(values), None)
            return self._attend_heads(self.split_heads(query), expanded, mask, dropout, need_weights)
        up_keys, up_values = (x.weight.view(self.num_heads, -1, self.latent_dim) for x in (self.k_proj, self.v_proj))
        # the key bias adds the same to all scores of a query, which a softmax does not see
        absorbed = torch.einsum("nhtd,hdl->nhtl", self.split_heads(query), up_keys)
        shared = KeyValue(entry.value, entry.value, None)
        outputs, weights = self._attend_heads(absorbed, shared, mask, dropout, need_weights)
        outputs = torch.einsum("nhtl,hdl->nhtd", outputs, up_values)
        if self.v_proj.bias is not None:
            outputs = outputs + self.v_proj.bias.view(self.num_heads, 1, self.head_dim)
        return outputs, weights

    def _absorbs(self, query_len: int, key_len: int, dropout: float) -> bool:
        """Whether absorbing is allowed (weights must add up to 1) and takes fewer multiplications than expanding."""
        if self.training or dropout > 0.0 or key_len == 0 or is_tracing():
            return False
        widths = self.key_dim + self.num_heads * self.head_dim
        expanding = key_len * self.latent_dim * widths + query_len * key_len * widths
        return query_len * self.latent_dim * (widths + 2 * key_len * self.num_heads) < expanding

"""Collaborative multi-head attention: heads share one query projection and one key projection.

Cordonnier, Loukas, Jaggi (2020), "Multi-Head Attention: Collaborate Instead of Concatenate",
https://arxiv.org/abs/2006.16362, equation 6, with the content bias of equation 13. As an extension, groups of heads may
also share values, as in grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).
"""

import math
from typing import Any, ClassVar, Dict, Mapping, Optional, Union

import torch
from torch import Tensor, nn

from .cache import Attended, KeyValue
from .factors import HeadFactors, HeadMaps, ScoreWeights, affine, check_plain
from .kernels import COLLABORATIVE, attend_collaborative
from .layer import AttentionLayer, forwarded
from .mixing import initial_mixing


def _like(parameter: Tensor, values: Tensor) -> Tensor:
    """The values, sharded over processes if the parameter is."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return values
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    assert isinstance(parameter, DTensor)
    return distribute_tensor(values, mesh, parameter.placements)


class CollaborativeAttention(AttentionLayer):
    """Attention whose heads re-weight shared query and key dimensions::

        H_i = softmax( [ (X W_Q ⊙ m_i)(Y W_K)ᵀ + 1 (Y v_i)ᵀ ] · scale ) Y W_V^(i)
        output = [H_1 … H_H] W_O

        X (N, T, E) ── q_proj ─→ (N, T, D̃k) ── ⊙ m_i ─→ (N, H, T, D̃k) ─┐
        Y (N, S, ·) ── k_proj ─→ (N, S, D̃k) ────────────────────────── · ─→ softmax ─┐
        Y (N, S, ·) ── v_proj ─→ (N, H, S, dv) ────────────────────────────────────── · ─→ out_proj ─→ (N, T, E)

    With ``value_heads`` G < H, values are (N, G, S, dv), and head i reads the values of group ⌊i·G/H⌋. Decoding then
    caches D̃k + G·dv numbers per position.

    The layer can replace ``torch.nn.MultiheadAttention(batch_first=True)``: it has the same call and return values, and
    can be the ``self_attn`` and ``multihead_attn`` of torch's encoder and decoder layers. Inputs must be batched,
    ``bias_kv`` and ``add_zero_attn`` do not exist, and parameters have different names. With ``mixing="blocks"`` and
    ``key_dim == embed_dim`` it computes the same function.

    Args:
        embed_dim, num_heads: E and H.
        key_dim: D̃k, width of the shared query and key projections; default E.
        content_bias: add the trainable content logit ``Y v_i`` (eq. 13).
        mixing: ``xavier``, ``blocks``, ``normal`` (:func:`.initial_mixing`), or a matrix (H, D̃k).
        mixing_lr_multiplier: c, learning rate of the mixing matrix and the content bias relative to the other
            parameters. ``mixing`` is stored divided by c, and ``scale`` is multiplied by c: steps of Adam, which do not
            depend on the size of gradients, are then c times larger relative to the stored matrix (equalized learning
            rates: Karras et al. 2018, section 4.1, https://arxiv.org/abs/1710.10196). Adam's ε acts as ε/c, weight
            decay is not multiplied, and the squared gradient norm of ``mixing`` is c² times larger.
        kernel: ``auto`` or a name in :data:`.kernels.COLLABORATIVE`; ``bmm`` for second derivatives, which raise an
            error with ``head_loop`` and with torch's fused attention (``sdpa``).
        others: see :class:`.AttentionLayer`. They must be named.

    Parameters: ``q_proj`` (D̃k, E), ``k_proj`` (D̃k, kdim), ``v_proj`` (G·dv, vdim), ``out_proj`` (E, H·dv), ``mixing``
    (H, D̃k), ``content_bias`` (H, kdim) or None. Loading a state dict of a layer with a different scale or multiplier
    multiplies the last two, so that the function is the same.
    """

    type_name, collaborative = "collaborative", True
    kernels = tuple(COLLABORATIVE)
    settings: ClassVar[Mapping[str, str]] = {
        "value_heads": "value_heads",
        "mixing": "mixing_init",
        "mixing_lr_multiplier": "mixing_lr_multiplier",
        "content_bias": "attention_content_bias",
    }

    _scaled = ("mixing", "content_bias")
    content_bias: Optional[Tensor]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        key_dim: Optional[int] = None,
        *,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        dropout: float = 0.0,
        bias: bool = True,
        content_bias: bool = False,
        mixing: Union[str, Tensor] = "xavier",
        mixing_lr_multiplier: float = 1.0,
        head_dim: Optional[int] = None,
        value_heads: Optional[int] = None,
        query_bias: Optional[bool] = None,
        key_bias: Optional[bool] = None,
        value_bias: Optional[bool] = None,
        out_bias: Optional[bool] = None,
        scale: Optional[float] = None,
        init: str = "default",
        kernel: str = "auto",
        batch_first: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        if not 0 < mixing_lr_multiplier < math.inf:
            raise ValueError(f"mixing_lr_multiplier must be positive; got {mixing_lr_multiplier}")
        # before the other arguments, which are complete when _build is called
        self._initial_mixing = mixing.detach() if isinstance(mixing, Tensor) else mixing
        self._mixing_lr_multiplier, self._has_content_bias = mixing_lr_multiplier, content_bias
        super().__init__(**forwarded(locals(), "content_bias", "mixing", "mixing_lr_multiplier"))

    def _build(self) -> None:
        mixing = self._initial_mixing
        if self.init == "authors" and isinstance(mixing, str) and mixing != "xavier":
            raise ValueError(f"mixing must be xavier with init authors, as in the authors' code; got {mixing}")
        self.scale *= self._mixing_lr_multiplier
        self.mixing = nn.Parameter(torch.empty(self.num_heads, self.key_dim))
        # not registered as a None parameter: fairseq takes those of several layers for one shared parameter
        content_bias = nn.Parameter(torch.empty(self.num_heads, self.kdim)) if self._has_content_bias else None
        self.content_bias = content_bias

    @classmethod
    def arguments(cls, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Dict[str, Any]:
        if "scale" in overrides:  # the scale of a single layer already includes the multiplier
            overrides = {"mixing_lr_multiplier": 1.0, **overrides}
        return super().arguments(settings, overrides)

    def reset_parameters(self) -> None:
        """Xavier projections, the chosen mixing matrix, content bias zero."""
        super().reset_parameters()
        matrix = self._initial_mixing
        if isinstance(matrix, str):
            matrix = initial_mixing(matrix, self.num_heads, self.key_dim)
        if matrix.shape != self.mixing.shape:
            raise ValueError(f"mixing must have shape {tuple(self.mixing.shape)}; got {tuple(matrix.shape)}")
        if not self.mixing.is_meta:
            with torch.no_grad():
                self.mixing.copy_(_like(self.mixing, matrix / self._mixing_lr_multiplier))
        if self.content_bias is not None:
            nn.init.zeros_(self.content_bias)

    def summary(self) -> str:
        content = " and content biases" if self.content_bias is not None else ""
        shared = f"a shared key dimension of {self.key_dim}{content}{self._in_groups()}"
        return f"{self.num_heads} collaborative heads with {shared}"

    def head_maps(self) -> HeadMaps:
        """Queries W_Q diag(m_i) and a copy of the keys per head; a content bias is one more key dimension, query 1."""
        query, key = self.mixing.double()[..., None] * affine(self.q_proj), self._head_map(self.k_proj, 1)
        if self.content_bias is not None:
            one = torch.zeros_like(query[:, :1])
            one[:, :, -1] = 1
            content = nn.functional.pad(self.content_bias.double()[:, None], [0, 1])
            query, key = torch.cat([query, one], dim=1), torch.cat([key, content], dim=1)
        return HeadMaps(query, key, self._head_map(self.v_proj, self.value_heads))

    def score_weights(self) -> ScoreWeights:
        check_plain(self.q_proj, self.k_proj)
        heads = HeadFactors(self.q_proj.weight.detach(), self.k_proj.weight.detach(), self.mixing.detach())
        biases = (None if bias is None else bias.detach() for bias in (self.q_proj.bias, self.content_bias))
        return ScoreWeights(heads, self.scale, *biases)

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        """Shared keys (N, S, D̃k), values (N, G, S, dv), content logits (N, H, S)."""
        content: Optional[Tensor] = None
        if self.content_bias is not None:
            content = nn.functional.linear(key, self.content_bias).transpose(1, 2)
        return KeyValue(keys, self.split_heads(values, self.value_heads), content)

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        return attend_collaborative(self.kernel, query, self.mixing, entry, mask, self.scale, dropout, need_weights)

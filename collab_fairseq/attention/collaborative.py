"""Collaborative multi-head attention: heads share one query and one key projection.

Cordonnier, Loukas, Jaggi (2020), "Multi-Head Attention: Collaborate Instead of Concatenate",
https://arxiv.org/abs/2006.16362, equation 6, with the content bias of equation 13. New here: heads may share values as
well, in groups as those of grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).
"""

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .cache import KeyValue, of_each_head
from .kernels import COLLABORATIVE, choose, packed_bmm
from .layer import AttentionLayer
from .mixing import initial_mixing


class CollaborativeAttention(AttentionLayer):
    """Attention whose heads re-weigh shared query and key dimensions::

        H_i = softmax( [ (X W_Q ⊙ m_i)(Y W_K)ᵀ + 1 (Y v_i)ᵀ ] · scale ) Y W_V^(i)
        output = [H_1 … H_H] W_O

        X (N, T, E) ── q_proj ─→ (N, T, D̃k) ── ⊙ m_i ─→ (N, H, T, D̃k) ─┐
        Y (N, S, ·) ── k_proj ─→ (N, S, D̃k) ────────────────────────── · ─→ softmax ─┐
        Y (N, S, ·) ── v_proj ─→ (N, H, S, dv) ────────────────────────────────────── · ─→ out_proj ─→ (N, T, E)

    With ``value_heads`` G < H the values are (N, G, S, dv), and head i reads those of group ⌊i·G/H⌋: decoding then
    caches D̃k + G·dv numbers per position.

    A drop-in replacement of ``torch.nn.MultiheadAttention(batch_first=True)``: called in the same way, it returns the
    same pair, also as ``self_attn`` and ``multihead_attn`` of torch's own encoder and decoder layers built with
    ``batch_first=True``. Inputs are always batched, there is no ``bias_kv`` or ``add_zero_attn``, and parameters have
    other names. With ``mixing="blocks"`` and ``key_dim == embed_dim`` it computes the same function.

    Args:
        embed_dim, num_heads: E and H.
        key_dim: D̃k, width of the shared query and key projections; default E.
        content_bias: add the trainable content score ``Y v_i`` (eq. 13).
        mixing: ``xavier``, ``blocks``, ``normal`` (:func:`.initial_mixing`), or the matrix itself, (H, D̃k).
        mixing_lr_multiplier: c, the learning rate of the mixing matrix and the content bias under Adam and its like,
            relative to the other parameters'. ``mixing`` is stored divided by c and ``scale`` multiplied by it: Adam's
            steps do not depend on the size of gradients, so that they are c times as large for what is c times smaller
            (equalised learning rates: Karras et al. 2018, section 4.1, https://arxiv.org/abs/1710.10196). Adam's ε acts
            as ε/c there, weight decay is not multiplied, and ``mixing`` has c² of its share in the norm of gradients.
        kernel: ``auto``, or a name of :data:`.kernels.COLLABORATIVE`; ``bmm`` for second derivatives, which torch's
            fused attention (``sdpa``, on a GPU also ``auto``) lacks.
        device, dtype: of the parameters.
        options: ``kdim``, ``vdim``, ``head_dim``, ``value_heads``, ``dropout``, ``scale``, ``bias``, ``query_bias``,
            ``key_bias``, ``value_bias``, ``out_bias``: see :class:`.AttentionLayer`.

    Parameters: ``q_proj`` (D̃k, E), ``k_proj`` (D̃k, kdim), ``v_proj`` (G·dv, vdim), ``out_proj`` (E, H·dv), ``mixing``
    (H, D̃k), ``content_bias`` (H, kdim) or None. A state dict may also say the ``scale`` of the layer that it is from:
    ``mixing`` and ``content_bias`` are then multiplied by what that is of this layer's.

    Raises:
        ValueError: sizes that do not fit, an unknown mixing or kernel.
    """

    content_bias: Optional[Tensor]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        key_dim: Optional[int] = None,
        *,
        content_bias: bool = False,
        mixing: Union[str, Tensor] = "xavier",
        mixing_lr_multiplier: float = 1.0,
        kernel: str = "auto",
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
        **options: Any,
    ) -> None:
        if "mixing_init" in options:  # the flag's name
            raise TypeError("the argument is called mixing, got mixing_init")
        super().__init__(embed_dim, num_heads, key_dim, **options)
        if not mixing_lr_multiplier > 0:
            raise ValueError(f"mixing_lr_multiplier must be positive, but is {mixing_lr_multiplier}")
        self.scale *= mixing_lr_multiplier
        self._initial_mixing, self._mixing_lr_multiplier = mixing, mixing_lr_multiplier
        self.mixing = nn.Parameter(torch.empty(num_heads, self.key_dim))
        # not a parameter that is None: fairseq takes those of several layers for one shared parameter
        self.content_bias = nn.Parameter(torch.empty(num_heads, self.kdim)) if content_bias else None
        self._finish(kernel, COLLABORATIVE, device, dtype)

    def reset_parameters(self) -> None:
        """Xavier projections, the chosen mixing matrix, content bias zero."""
        super().reset_parameters()
        start = self._initial_mixing
        matrix = initial_mixing(start, self.num_heads, self.key_dim) if isinstance(start, str) else start
        if matrix.shape != self.mixing.shape:
            raise ValueError(f"mixing must have shape {tuple(self.mixing.shape)}, but is {tuple(matrix.shape)}")
        with torch.no_grad():
            self.mixing.copy_(matrix / self._mixing_lr_multiplier)
        if self.content_bias is not None:
            nn.init.zeros_(self.content_bias)

    def _load_from_state_dict(self, state_dict: Dict[str, Any], prefix: str, *rest: Any) -> None:
        scale = state_dict.pop(prefix + "scale", None)
        for name in [prefix + "mixing", prefix + "content_bias"] if scale is not None else []:
            if name in state_dict:
                state_dict[name] = state_dict[name] * (float(scale) / self.scale)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        """Shared keys (N, S, D̃k), values (N, G, S, dv), content scores (N, H, S)."""
        content: Optional[Tensor] = None
        bias = self.content_bias
        if bias is not None:
            content = nn.functional.linear(key, bias).transpose(1, 2)
        return KeyValue(keys, self.split_heads(values, self.value_heads), content)

    def _contexts(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        attend = choose(self.kernel, query, self.mixing, entry, mask, need_weights)
        if attend is not packed_bmm.attend:  # the others want values of every head
            entry = KeyValue(entry.key, of_each_head(entry.value, self.num_heads), entry.content)
        return attend(query, self.mixing, entry, mask, self.scale, dropout, need_weights)

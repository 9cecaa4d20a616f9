"""Attention with fairseq's call signature and incremental state, on top of :mod:`collab_fairseq.attention`.

fairseq passes (T, R, E) tensors; the layers take (R, T, E). Letters as in :mod:`collab_fairseq.attention.cache`.
"""

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor

from collab_fairseq.attention.attention_types import layer_at
from collab_fairseq.attention.cache import Cache, KeyValue, SourceRows, source_rows

from .gates import HeadGates
from .heads import parse_heads
from .settings import flat_settings, parse_shapes, parse_sites


class IncrementalAttention(FairseqIncrementalState):
    """Mixin that gives an :class:`~collab_fairseq.attention.AttentionLayer` the call of fairseq's MultiheadAttention.

    Args (besides those of the layer):
        cross: encoder–decoder attention: keys are projected once per sentence and do not grow.
        noise: probability of quantization noise on the projections (``--quant-noise-pq``); noise_block: its block size.
        masked: heads, from 0, whose output is zero (``--mask-heads``).
        gates: log α that :class:`.HeadGates` start from (``--head-gates``); None: no gates.

    Attributes:
        head_multiplier: factor on the heads' outputs, (H), (R, H) or (R, T, H), or None. Set it to mask heads of a
            model in memory, or for the gradient of a mask; it is not saved.
    """

    # fairseq's own: renaming the fused projections of old checkpoints
    upgrade_state_dict_named = MultiheadAttention.upgrade_state_dict_named

    def __init__(
        self,
        *args: Any,
        cross: bool,
        noise: float = 0.0,
        noise_block: int = 8,
        masked: Sequence[int] = (),
        gates: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.cross = cross
        self.dropout_in_inference = False
        for projection in [child for child in self.children() if isinstance(child, torch.nn.Linear)]:
            quant_noise(projection, noise, noise_block)
        mask = torch.tensor([float(head not in masked) for head in range(self.num_heads)]) if masked else None
        self.register_buffer("head_multiplier", mask, persistent=False)
        self.head_gates = HeadGates(self.num_heads, gates) if gates is not None else None

    def multiplier(self) -> Optional[Tensor]:
        """What the heads' outputs are multiplied by, mask and gates together, or None."""
        fixed = self.head_multiplier
        if self.head_gates is None:
            return fixed
        drawn: Tensor = self.head_gates()
        return drawn if fixed is None else drawn * fixed

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Any]] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's transformer layers call it.

        Args:
            query: (T, R, E). key, value: (S, N, kdim), (S, N, vdim); None where both are cached. N is R, or R / B where
                B hypotheses, side by side, read the same sentence.
            key_padding_mask: (N, S), True for padding. attn_mask: (T, S), additive or boolean.
            incremental_state: where a :class:`.Cache` of past steps is kept for each layer; None: no decoding.
            need_weights: return weights averaged over heads; need_head_weights: of every head instead.
            static_kv: as in fairseq; keys of cross-attention are static in any case.

        Returns:
            output (T, R, E); weights (R, T, S), (H, R, T, S) for every head, or None.
        """
        cache: Optional[Cache] = None
        if incremental_state is not None:  # whose key is each layer's own: torch.compile must not look at it
            cache = self.get_incremental_state(incremental_state, "attn_state")
        queries, static = query.transpose(0, 1), self.cross and cache is not None
        if cache is None or not self.cross:
            if key is None or value is None:
                raise ValueError("key and value must be given where none are cached")
            keys = queries if key is query else key.transpose(0, 1)
            queries, entry = self._project(queries, keys, keys if value is key else value.transpose(0, 1))
            if self.cross and incremental_state is not None:  # read at every step from now on
                entry = KeyValue(entry.key.contiguous(), entry.value.contiguous(), entry.content)
            if cache is None:
                cache = Cache(entry, key_padding_mask, query.size(1) // max(1, key.size(1)))
            else:
                cache = cache.append(entry, key_padding_mask)
            if incremental_state is not None:
                self.set_incremental_state(incremental_state, "attn_state", cache)
        drop = self.dropout if self.training or self.dropout_in_inference else 0.0
        output, weights = self.attend(
            queries,
            cache.entry,
            cache.padding,
            need_weights or need_head_weights,
            attn_mask,
            average_attn_weights=not need_head_weights,
            head_multiplier=self.multiplier(),
            dropout=drop,
            projected=not static,
        )
        if need_head_weights and weights is not None:
            weights = weights.transpose(0, 1)
        # in fairseq's memory layout, so that residual dropout draws the same mask as in fairseq's transformer
        return output.transpose(0, 1).contiguous(), weights

    def reorder_incremental_state(
        self,
        incremental_state: Dict[str, Any],
        new_order: Tensor,
        find: Callable[[Tensor, int, int], SourceRows] = source_rows,
    ) -> Dict[str, Any]:
        """Follow beam search: hypothesis r becomes what hypothesis ``new_order[r]`` (R', ) was.

        Args:
            find: :func:`.source_rows`, or one that remembers what it has found for the layers before.
        """
        past: Optional[Cache] = self.get_incremental_state(incremental_state, "attn_state")
        if past is not None:
            rows = find(new_order, past.beams, past.entry.value.size(0)) if self.cross else (new_order, 1)
            if rows is not None:
                self.set_incremental_state(incremental_state, "attn_state", past.select(*rows))
        return incremental_state

    def make_generation_fast_(
        self,
        name: str,
        retain_dropout: bool = False,
        retain_dropout_modules: Optional[List[str]] = None,
        **kwargs: Any,
    ) -> None:
        """``--retain-dropout``: keep dropping attention weights when translating (fairseq names attention so)."""
        if retain_dropout and (retain_dropout_modules is None or "MultiheadAttention" in retain_dropout_modules):
            self.dropout_in_inference = True

    def _get_input_buffer(self, incremental_state: Optional[Dict[str, Any]]) -> Dict[str, Tensor]:
        """What is cached, under fairseq's names: its decoder layer asks for them."""
        if incremental_state is None:
            return {}
        cache: Optional[Cache] = self.get_incremental_state(incremental_state, "attn_state")
        return {} if cache is None else {"prev_key": cache.entry.key, "prev_value": cache.entry.value}


@functools.cache
def incremental(attention_type: Any) -> Type[Any]:
    """The class of an attention type (of :data:`.attention_types.ATTENTION_TYPES`) under fairseq's signature."""
    return type(
        f"Incremental{attention_type.__name__}",
        (IncrementalAttention, attention_type),
        {"__doc__": attention_type.__doc__},
    )


def build_attention(cfg: Any, layer: int, site: str) -> IncrementalAttention:
    """The attention of one layer (counted from 0) and site (``encoder``, ``cross`` or ``decoder``).

    Args:
        cfg: a ``TransformerCollabConfig``. A kernel that the heads of the layer do not have is ``auto`` to them.

    """
    attention_type: Any
    name, kernel = f"{site}.{layer}", str(cfg.attention_kernel)
    attention_type, arguments = layer_at(flat_settings(cfg), site, parse_shapes(cfg.attention_shapes).get(name))
    made: IncrementalAttention = incremental(attention_type)(
        **arguments,
        dropout=cfg.attention_dropout,
        kernel=kernel if kernel in attention_type.kernels else "auto",
        cross=site == "cross",
        noise=cfg.quant_noise.pq,
        noise_block=cfg.quant_noise.pq_block_size,
        masked=parse_heads(cfg.mask_heads).get(name, ()),
        gates=cfg.head_gates_init if site in parse_sites(cfg.head_gates, "--head-gates") else None,
    )
    return made

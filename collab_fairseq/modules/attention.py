"""Attention with fairseq's call signature and incremental state, on top of :mod:`collab_fairseq.attention`.

fairseq passes (T, R, E) tensors; the layers take (R, T, E). :mod:`collab_fairseq.attention.cache` defines the letters.
"""

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.attention_types import ATTENTION_TYPES, layer_at, parse_sites
from collab_fairseq.attention.cache import Cache, KeyValue, SourceRows, source_rows
from collab_fairseq.attention.masks import combine

from .gates import HeadGates
from .head_names import parse_heads
from .settings import flat, parse_shapes


class IncrementalAttention(FairseqIncrementalState):
    """Mixin that gives an :class:`~collab_fairseq.attention.AttentionLayer` the interface of fairseq's attention.

    Args (in addition to those of the layer):
        cross: encoder–decoder attention: keys are projected once per sentence and do not grow.
        noise: probability of quantisation noise on the projections (``--quant-noise-pq``).
        noise_block: block size of the noise.
        masked: heads, from 0, whose output is zero (``--mask-heads``).
        gates: initial log α of :class:`.HeadGates` (``--head-gates``); None: no gates.

    Attributes:
        head_multiplier: factor on the heads' outputs, (H), (R, H) or (R, T, H), or None. Set it to mask heads of a
            model in memory, or to compute the gradient with respect to a mask. It is not saved.
    """

    # a state dict has the names of fairseq's parameters; number of heads and scale are in its metadata
    get_extra_state = torch.nn.Module.get_extra_state
    # splits the fused projections of old checkpoints
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
        for projection in list(self.children()):
            if isinstance(projection, torch.nn.Linear):
                quant_noise(projection, noise, noise_block)
        self._masked = tuple(masked)
        self.register_buffer("head_multiplier", torch.empty(self.num_heads) if masked else None, persistent=False)
        self._reset_mask()
        self.head_gates = HeadGates(self.num_heads, gates) if gates is not None else None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["attention"] = AttentionLayer.get_extra_state(self)  # type: ignore[arg-type]

    def _load_from_state_dict(
        self, state_dict: Dict[str, Any], prefix: str, local_metadata: Dict[str, Any], *args: Any
    ) -> None:
        # a copy of a state dict has no metadata; the settings of a checkpoint have both numbers, too
        if "attention" in local_metadata:
            state_dict.setdefault(f"{prefix}_extra_state", local_metadata["attention"])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def reset_parameters(self) -> None:
        """The initial parameters of the layer and its gates, and the initial mask of heads."""
        super().reset_parameters()
        if "head_multiplier" not in self._buffers:  # the layer is being built
            return
        self._reset_mask()
        if self.head_gates is not None:
            self.head_gates.reset_parameters()

    def _reset_mask(self) -> None:
        if self._masked and self.head_multiplier is not None:
            mask = torch.tensor([float(head not in self._masked) for head in range(self.num_heads)])
            self.head_multiplier.copy_(mask)

    def multiplier(self) -> Optional[Tensor]:
        """Factor on the heads' outputs, from mask and gates, or None."""
        fixed = self.head_multiplier
        if self.head_gates is None:
            return fixed
        sampled: Tensor = self.head_gates()
        return sampled if fixed is None else sampled * fixed

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
        """Compute attention as fairseq's ``MultiheadAttention`` does.

        Args:
            query: (T, R, E).
            key, value: (S, N, kdim) and (S, N, vdim); None if both are cached. N is R, or R / B if B neighbouring
                hypotheses read the same sentence.
            key_padding_mask: (N, S), True for padding.
            incremental_state: stores a :class:`.Cache` of past steps for each layer; None outside of decoding.
            need_weights: return attention weights averaged over heads.
            static_kv: as in fairseq; keys of cross-attention are always static.
            attn_mask: (T, S), additive or boolean.
            need_head_weights: return the attention weights of every head.

        Returns:
            The output (T, R, E); and weights (R, T, S), or (H, R, T, S) for every head, or None.
        """
        cache: Optional[Cache] = None
        if incremental_state is not None:  # the key differs between layers: torch.compile would recompile
            cache = self.get_incremental_state(incremental_state, "attn_state")
        queries = query.transpose(0, 1)  # (T, R, E) → (R, T, E)
        static = self.cross and cache is not None
        if cache is None or not self.cross:
            if key is None or value is None:
                raise ValueError("key and value must be given unless they are cached")
            # (S, N, ·) → (N, S, ·); equal inputs stay one tensor, which is projected once
            keys = queries if key is query else key.transpose(0, 1)
            values = keys if value is key else value.transpose(0, 1)
            queries, entry = self._project(queries, keys, values)  # queries: (R, T, key_dim)
            if cache is None:
                cache = Cache(entry, key_padding_mask, query.size(1) // max(1, key.size(1)))  # B = R / N
                if self.cross and incremental_state is not None:
                    cache = self._for_every_step(cache)
            else:
                cache = cache.append(entry, key_padding_mask)
            if incremental_state is not None:
                self.set_incremental_state(incremental_state, "attn_state", cache)
        output, weights = self.attend(
            queries,
            cache.entry,
            cache.padding if cache.mask is None else cache.mask,
            need_weights or need_head_weights,
            attn_mask,
            average_attn_weights=not need_head_weights,
            head_multiplier=self.multiplier(),
            dropout=self.dropout if self.training or self.dropout_in_inference else 0.0,
            projected=not static,
        )
        if need_head_weights and weights is not None:
            weights = weights.transpose(0, 1)  # (R, H, T, S) → (H, R, T, S)
        # (R, T, E) → (T, R, E), contiguous: residual dropout then draws the same mask as in fairseq's transformer
        return output.transpose(0, 1).contiguous(), weights

    def _for_every_step(self, source: Cache) -> Cache:
        """Do once what every decoding step would repeat: store keys and values contiguously, combine the mask."""
        key, value, content = source.entry  # value: (N, G, S, dv)
        shape = (value.size(0), self.num_heads, 1, value.size(2))  # (N, H, 1, S): of one step's logits
        mask = combine(source.padding, None, False, shape, like=value)
        return Cache(KeyValue(key.contiguous(), value.contiguous(), content), None, source.beams, mask)

    def reorder_incremental_state(
        self,
        incremental_state: Dict[str, Any],
        new_order: Tensor,
        find: Callable[[Tensor, int, int], SourceRows] = source_rows,
    ) -> Dict[str, Any]:
        """Reorder the cache for beam search: hypothesis r becomes the old hypothesis ``new_order[r]``, (R', ).

        Args:
            find: :func:`.source_rows`, or a version that caches its result for all layers.
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
        """``--retain-dropout``: drop attention weights in translation, too."""
        if retain_dropout and (retain_dropout_modules is None or "MultiheadAttention" in retain_dropout_modules):
            self.dropout_in_inference = True

    def _get_input_buffer(self, incremental_state: Optional[Dict[str, Any]]) -> Dict[str, Tensor]:
        """The cache under fairseq's names, which its decoder layer reads."""
        if incremental_state is None:
            return {}
        cache: Optional[Cache] = self.get_incremental_state(incremental_state, "attn_state")
        return {} if cache is None else {"prev_key": cache.entry.key, "prev_value": cache.entry.value}


@functools.cache
def incremental(attention_type: Any) -> Type[Any]:
    """The class of an attention type (from :data:`.attention_types.ATTENTION_TYPES`) with fairseq's interface."""
    return type(
        f"Incremental{attention_type.__name__}",
        (IncrementalAttention, attention_type),
        {"__doc__": attention_type.__doc__},
    )


_types: Sequence[Any] = ATTENTION_TYPES
# pickle finds a class by its name
globals().update({f"Incremental{each.__name__}": incremental(each) for each in _types})


def build_attention(cfg: Any, layer_id: str) -> IncrementalAttention:
    """The attention of a layer (``cross.3``), or of all layers of a site (``cross``) without their own shape.

    Args:
        cfg: a ``TransformerCollabConfig``. If the attention type of the layer does not have the kernel, ``auto``
            replaces it.

    Raises:
        ValueError, AssertionError: inconsistent settings.
    """
    site = layer_id.partition(".")[0]
    attention_type: Any
    attention_type, arguments = layer_at(flat(cfg), site, parse_shapes(cfg.attention_shapes).get(layer_id))
    kernel = str(cfg.attention_kernel)
    attention: IncrementalAttention = incremental(attention_type)(
        **arguments,
        dropout=cfg.attention_dropout,
        kernel=kernel if kernel in attention_type.kernels else "auto",
        cross=site == "cross",
        noise=cfg.quant_noise.pq,
        noise_block=cfg.quant_noise.pq_block_size,
        masked=parse_heads(cfg.mask_heads).get(layer_id, ()),
        gates=cfg.head_gates_init if site in parse_sites(cfg.head_gates, "--head-gates") else None,
    )
    return attention

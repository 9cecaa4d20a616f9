"""Collaborative heads in the attention layers of BERT, DistilBERT, ALBERT and Marian of ``transformers``.

Each class here is a subclass of the layer that it replaces (``output_attentions`` finds layers by class). It keeps the
parameter names and adds ``mixing`` and ``content_bias``. It computes the same function as
:class:`collab_fairseq.attention.CollaborativeAttention`, with the same kernels.

The attention implementation is a setting of the model. ``eager`` returns attention weights; ``sdpa`` returns them only
for ``output_attentions`` and selects the fastest kernel for the device. Flash and flex attention are rejected: they
need queries and keys of the width of the values, and have no content scores.

Letters: N sentences, T queries, S keys, H heads, D̃k shared key dimension, D model width, dv value dimension of a head.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.models.albert.modeling_albert import AlbertAttention
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention
from transformers.models.distilbert.modeling_distilbert import DistilBertSelfAttention
from transformers.models.marian.modeling_marian import MarianAttention

from collab_fairseq.attention import AttentionError, KeyValue
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.attention.kernels import attend_collaborative
from collab_fairseq.attention.masks import combine

IMPLEMENTATIONS = ("eager", "sdpa")


class Names(NamedTuple):
    """Attribute names of an architecture's attention layer; ``output`` is None if its parent has the projection."""

    query: str
    key: str
    value: str
    heads: str
    dropout: str
    output: Optional[str]

    @property
    def of_scores(self) -> Tuple[str, ...]:
        """Prefixes of the names of the score parameters in the layer."""
        return (f"{self.query}.", f"{self.key}.", "mixing", "content_bias")

    def parameters(self, weights: ScoreWeights) -> Dict[str, Tensor]:
        """Parameter name in the layer → tensor."""
        parameters = {}
        for name, tensor in weights.parameters().items():
            parameters[name.replace("q_proj", self.query).replace("k_proj", self.key)] = tensor
        return parameters


class Shape(NamedTuple):
    """Config entry of a collaborative layer: D̃k, the scale of the scores, and which biases it has."""

    key_dim: int
    scale: float
    query_bias: bool
    content_bias: bool

    @classmethod
    def of(cls, weights: ScoreWeights) -> "Shape":
        return cls(
            key_dim=weights.heads.rank,
            scale=weights.scale,
            query_bias=weights.query_bias is not None,
            content_bias=weights.content_bias is not None,
        )

    @classmethod
    def read(cls, name: str, fields: Mapping[str, Any]) -> "Shape":
        """The entry of the layer ``name`` in a config; wrong fields or types raise an AttentionError."""
        types = cls.__annotations__
        valid = isinstance(fields, Mapping) and fields.keys() == types.keys()
        valid = valid and all(type(fields[field]) is types[field] for field in types) and fields["key_dim"] >= 1
        if not valid:
            expected = ", ".join(f"{field} ({types[field].__name__})" for field in types)
            raise AttentionError(f"attention_shapes: {name} must have {expected}; got {fields!r}")
        return cls(**fields)


def torch_mask(mask: Optional[Tensor], causal: bool, queries: Tensor, keys: int) -> Optional[Tensor]:
    """A mask of ``transformers`` in torch's convention, (N, 1 or H, T, S) or (T, S); None if all keys are visible.

    Args:
        mask: broadcasts to (N, H, T, S), boolean (True: visible) or additive; None: ``causal`` or no mask.
        queries: (N, T, D). keys: S.
    """
    rows, length = queries.shape[:2]
    if mask is None:
        return torch.ones(length, keys, dtype=torch.bool, device=queries.device).triu(1) if causal else None
    mask = (~mask if mask.dtype == torch.bool else mask).to(queries.device)
    return mask[..., :keys].expand(rows, -1, length, keys)


class CollaborativeHeads(nn.Module):
    """Mixin for an attention layer of ``transformers``, which comes second in the base classes.

    Parameters in addition to those of the layer: query weight (D̃k, D), key weight (D̃k, D) without a bias, which would
    have no effect, ``mixing`` (H, D̃k), and ``content_bias`` (H, D) or None.
    """

    names: Names
    config: Any
    scaling: float
    layer_idx: int  # None in models without a cache
    mixing: nn.Parameter
    content_bias: Optional[nn.Parameter]

    def __init__(self, standard: Any, shape: Shape) -> None:
        """Untrained heads; all other parts are those of the layer ``standard``."""
        nn.Module.__init__(self)
        vars(self).update({**vars(standard), "_modules": {**standard._modules}, "_parameters": {}})
        key_weight = getattr(self, self.names.key).weight
        heads, width = getattr(self, self.names.heads), key_weight.size(1)
        for name, bias in ((self.names.query, shape.query_bias), (self.names.key, False)):
            options = {"device": key_weight.device, "dtype": key_weight.dtype}
            setattr(self, name, nn.Linear(width, shape.key_dim, bias=bias, **options))
        self.mixing = nn.Parameter(key_weight.new_empty(heads, shape.key_dim))
        nn.init.xavier_uniform_(self.mixing)
        self.content_bias = nn.Parameter(key_weight.new_zeros(heads, width)) if shape.content_bias else None
        self.scaling = shape.scale

    def check_cache(self, cache: Cache) -> None:
        """Raise an AttentionError if others have filled the cache of this layer, with keys of standard heads."""
        heads, key_dim = self.mixing.shape
        width = key_dim if self.content_bias is None else key_dim + heads
        keys = cache.layers[self.layer_idx].keys if len(cache.layers) > self.layer_idx else None
        # a new cache has no keys or an empty tensor
        if keys is not None and keys.dim() == 4 and keys.shape[1::2] != (1, width):
            raise AttentionError(
                f"past_key_values must have one key of width {width} per position with collaborative heads; got "
                f"{keys.size(1)} of width {keys.size(3)}: prefix tuning is not supported"
            )

    def entry(self, states: Tensor, cache: Optional[Cache], from_source: bool) -> KeyValue:
        """Keys and values of states (N, S, D) and of the cache, which is updated.

        The cache has a single head, and content scores follow the shared keys in its last dimension.

        Raises:
            AttentionError: the cache has keys of standard heads.
        """
        site_cache, cached = cache, None
        if isinstance(cache, EncoderDecoderCache):
            site_cache = cache.cross_attention_cache if from_source else cache.self_attention_cache
            if from_source and cache.is_updated.get(self.layer_idx):
                layer_cache = site_cache.layers[self.layer_idx]
                cached = layer_cache.keys, layer_cache.values
        if site_cache is not None:
            self.check_cache(site_cache)
        if cached is None:
            keys = getattr(self, self.names.key)(states)
            if self.content_bias is not None:
                keys = torch.cat([keys, nn.functional.linear(states, self.content_bias)], dim=-1)
            cached = keys.unsqueeze(1), getattr(self, self.names.value)(states).unsqueeze(1)
            if site_cache is not None:
                cached = site_cache.update(*cached, self.layer_idx)
                if from_source and isinstance(cache, EncoderDecoderCache):
                    cache.is_updated[self.layer_idx] = True
        keys, values = (part.squeeze(1) for part in cached)
        heads, key_dim = self.mixing.shape
        content = keys[..., key_dim:].transpose(1, 2) if self.content_bias is not None else None
        return KeyValue(keys[..., :key_dim], values.unflatten(-1, (heads, -1)).transpose(1, 2), content)

    def finish(self, context: Tensor, queries: Tensor) -> Tensor:
        """Output of the architecture's layer, given the head outputs (N, T, H·dv)."""
        return context if self.names.output is None else getattr(self, self.names.output)(context)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Optional[Tensor] = None,
        past_key_values: Optional[Cache] = None,
        key_value_states: Optional[Tensor] = None,
        encoder_hidden_states: Optional[Tensor] = None,
        is_causal: Optional[bool] = None,
        output_attentions: Optional[bool] = False,
        **_: Any,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Output (N, T, D) and weights (N, H, T, S) or None. Models pass all but the first two by name.

        Args:
            hidden_states: queries, (N, T, D). attention_mask: as the model passes it to its layers.
            past_key_values: cache of earlier positions or of the source.
            key_value_states, encoder_hidden_states: source (N, S, D), by its name in Marian and in BERT, or None.
            is_causal: overrides the layer's attribute.
            output_attentions: return the weights with any implementation.
        """
        implementation = self.config._attn_implementation or "eager"
        if implementation not in IMPLEMENTATIONS:
            supported = " or ".join(IMPLEMENTATIONS)
            raise AttentionError(f"collaborative heads need attn_implementation {supported}; got {implementation}")
        source = encoder_hidden_states if key_value_states is None else key_value_states
        states = hidden_states if source is None else source
        entry = self.entry(states, past_key_values, from_source=source is not None)
        query = getattr(self, self.names.query)(hidden_states)
        rows, query_len, key_len = hidden_states.size(0), hidden_states.size(1), entry.key.size(1)

        # transformers passes every mask to eager attention; with sdpa, no mask can mean a causal one
        layer_is_causal = getattr(self, "is_causal", False) if is_causal is None else is_causal
        causal = implementation == "sdpa" and query_len > 1 and bool(layer_is_causal)
        mask = torch_mask(attention_mask, causal, query, key_len)
        mask_heads = 1 if mask is None or mask.dim() == 2 else mask.size(1)
        combined = combine(None, mask, False, (rows, mask_heads, query_len, key_len), query)
        additive, hidden = (None, None) if combined is None else combined

        need_weights = implementation == "eager" or bool(output_attentions)
        dropout = getattr(self, self.names.dropout)
        rate = float(dropout.p if isinstance(dropout, nn.Dropout) else dropout) if self.training else 0.0
        context, weights = attend_collaborative(
            "auto", query, self.mixing, entry, additive, self.scaling, rate, need_weights
        )
        if hidden is not None:
            context = context.masked_fill(hidden, 0.0)
            weights = weights if weights is None else weights.masked_fill(hidden, 0.0)
        return self.finish(context.transpose(1, 2).flatten(2), hidden_states), weights


class CollaborativeBertSelfAttention(CollaborativeHeads, BertSelfAttention):
    names = Names("query", "key", "value", "num_attention_heads", "dropout", None)


class CollaborativeBertCrossAttention(CollaborativeHeads, BertCrossAttention):
    names = CollaborativeBertSelfAttention.names


class CollaborativeDistilBertSelfAttention(CollaborativeHeads, DistilBertSelfAttention):
    names = Names("q_lin", "k_lin", "v_lin", "n_heads", "dropout", "out_lin")


class CollaborativeAlbertAttention(CollaborativeHeads, AlbertAttention):
    names = Names("query", "key", "value", "num_attention_heads", "attention_dropout", "dense")
    output_dropout: nn.Dropout
    LayerNorm: nn.LayerNorm

    def finish(self, context: Tensor, queries: Tensor) -> Tensor:
        return self.LayerNorm(queries + self.output_dropout(super().finish(context, queries)))


class CollaborativeMarianAttention(CollaborativeHeads, MarianAttention):
    names = Names("q_proj", "k_proj", "v_proj", "num_heads", "dropout", "out_proj")


#: attention layer of transformers → its replacement
COLLABORATIVE: Dict[Type[nn.Module], Type[CollaborativeHeads]] = {
    AlbertAttention: CollaborativeAlbertAttention,
    BertCrossAttention: CollaborativeBertCrossAttention,
    BertSelfAttention: CollaborativeBertSelfAttention,
    DistilBertSelfAttention: CollaborativeDistilBertSelfAttention,
    MarianAttention: CollaborativeMarianAttention,
}


def names_of(layer: nn.Module) -> Optional[Names]:
    """Attribute names of an attention layer; None for all other modules."""
    if isinstance(layer, CollaborativeHeads):
        return layer.names
    replacement = COLLABORATIVE.get(type(layer))
    return None if replacement is None else replacement.names

"""Collaborative heads in the attention layers of ``transformers``: BERT, DistilBERT, ALBERT and Marian.

Each class here replaces one of theirs, is a subclass of it (``output_attentions`` finds layers by their
class), has its parameters under the same names, and adds ``mixing`` and ``content_bias``. What is computed is
:class:`collab_fairseq.attention.CollaborativeAttention`, by the same kernels.

The model's attention implementation stays a setting of the model. ``eager`` and ``sdpa`` compute the same; with
``eager`` the attention weights come back, with ``sdpa`` only where ``output_attentions`` asks for them, and the fastest
kernel for the device is chosen. Flash and flex attention are rejected: in them queries and keys are as wide as values,
and keys have no content scores.

Letters: N sentences, T queries, S keys, H heads, D̃k shared key dim, dv value dim of one head.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.models.albert.modeling_albert import AlbertAttention
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention
from transformers.models.distilbert.modeling_distilbert import DistilBertSelfAttention
from transformers.models.marian.modeling_marian import MarianAttention

from collab_fairseq.attention import KeyValue
from collab_fairseq.attention.factors import ReparamError, ScoreWeights
from collab_fairseq.attention.kernels import attend_collaborative
from collab_fairseq.attention.masks import combine

IMPLEMENTATIONS = ("eager", "sdpa")

Attended = Tuple[Tensor, Optional[Tensor]]


class Names(NamedTuple):
    """What the attention layer of an architecture calls its parts; no ``output``: its parent has the projection."""

    query: str
    key: str
    value: str
    heads: str
    dropout: str
    output: Optional[str]

    def parameters(self, weights: ScoreWeights) -> Dict[str, Tensor]:
        """The scores by the names of their parameters in the layer."""
        named = weights.parameters().items()
        return {n.replace("q_proj", self.query).replace("k_proj", self.key): tensor for n, tensor in named}


class Shape(NamedTuple):
    """What a config says of one collaborative layer: D̃k, the factor on the scores, and which biases it has."""

    key_dim: int
    scale: float
    query_bias: bool
    content_bias: bool

    @classmethod
    def of(cls, weights: ScoreWeights) -> "Shape":
        """The shape of a layer with these scores."""
        biases = (bias is not None for bias in (weights.query_bias, weights.content_bias))
        return cls(weights.heads.rank, weights.scale, *biases)

    @classmethod
    def read(cls, name: str, fields: Mapping[str, Any]) -> "Shape":
        """From a config. Raises ReparamError for other fields or types, with the layer's name."""
        types = cls.__annotations__
        right = isinstance(fields, Mapping) and fields.keys() == types.keys()
        if not right or not all(type(fields[field]) is kind for field, kind in types.items()) or fields["key_dim"] < 1:
            wanted = ", ".join(f"{field} ({kind.__name__})" for field, kind in types.items())
            raise ReparamError(f"attention_shapes: {name} must have {wanted}; got {fields!r}")
        return cls(**fields)


def visible(mask: Optional[Tensor], causal: bool, rows: int, queries: int, keys: int) -> Optional[Tensor]:
    """A mask of ``transformers`` in the conventions of torch, (N, 1 or H, T, S) or (T, S); None where all is visible.

    Args:
        mask: broadcasts to (N, H, T, S), boolean (True: visible) or additive; None: ``causal`` or everything.
    """
    if mask is None:
        return torch.ones(queries, keys, dtype=torch.bool).triu(1) if causal else None
    return (~mask if mask.dtype == torch.bool else mask)[..., :keys].expand(rows, -1, queries, keys)


class CollaborativeHeads(nn.Module):
    """What all collaborative layers of this module share; a base beside the class of ``transformers``.

    Parameters, beside those of the other base: query weight (D̃k, D), key weight (D̃k, D) without a bias, which would not
    change anything, ``mixing`` (H, D̃k), and ``content_bias`` (H, D) or None.
    """

    names: Names
    config: Any
    scaling: float
    layer_idx: Optional[int]
    mixing: nn.Parameter
    content_bias: Optional[nn.Parameter]

    def __init__(self, standard: Any, shape: Shape) -> None:
        """Untrained heads of this shape, with all other parts of a layer of the other base."""
        nn.Module.__init__(self)
        vars(self).update({**vars(standard), "_modules": {**standard._modules}, "_parameters": {}})
        names, like = self.names, getattr(self, self.names.key).weight
        heads, width = getattr(self, names.heads), like.size(1)
        for name, bias in ((names.query, shape.query_bias), (names.key, False)):
            setattr(self, name, nn.Linear(width, shape.key_dim, bias=bias, device=like.device, dtype=like.dtype))
        self.mixing = nn.Parameter(like.new_empty(heads, shape.key_dim))
        nn.init.xavier_uniform_(self.mixing)
        self.content_bias = nn.Parameter(like.new_zeros(heads, width)) if shape.content_bias else None
        self.scaling = shape.scale

    def entry(self, states: Tensor, cache: Optional[Cache], from_source: bool) -> KeyValue:
        """Keys and values of (N, S, D), with those that are cached, and cached themselves.

        The content scores lie beside the shared keys in the cache, which has one head for keys and values alike.
        """
        site_cache, cached = cache, None
        if isinstance(cache, EncoderDecoderCache):
            site_cache = cache.cross_attention_cache if from_source else cache.self_attention_cache
            if from_source and cache.is_updated.get(self.layer_idx):
                cached = site_cache.layers[self.layer_idx].keys, site_cache.layers[self.layer_idx].values
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
        """What the architecture's layer makes of the heads' outputs, (N, T, H·dv)."""
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
    ) -> Attended:
        """Output (N, T, D) and weights (N, H, T, S) or None. Models give all but the first two by name.

        Args:
            hidden_states: queries, (N, T, D). attention_mask: as the model hands it to its layers.
            past_key_values: cache of earlier positions or of the source.
            key_value_states, encoder_hidden_states: (N, S, D), the source, as Marian and as BERT call it, or None.
            is_causal: instead of the layer's own, as transformers' layers take it.
            output_attentions: return the weights whatever the implementation.

        Raises:
            ReparamError: an attention implementation that cannot compute collaborative heads.
        """
        implementation = self.config._attn_implementation or "eager"
        if implementation not in IMPLEMENTATIONS:
            raise ReparamError(
                f"collaborative heads need attn_implementation {' or '.join(IMPLEMENTATIONS)}; got "
                f"{implementation}, which takes no queries wider than values and no content scores"
            )
        source = encoder_hidden_states if key_value_states is None else key_value_states
        entry = self.entry(hidden_states if source is None else source, past_key_values, source is not None)
        rows, query_len, key_len = hidden_states.size(0), hidden_states.size(1), entry.key.size(1)
        query = getattr(self, self.names.query)(hidden_states)
        # with eager attention transformers hands over every mask, with sdpa a missing one may mean a causal one
        own_causal = getattr(self, "is_causal", False) if is_causal is None else is_causal
        causal = implementation == "sdpa" and query_len > 1 and bool(own_causal)
        seen = visible(attention_mask, causal, rows, query_len, key_len)
        heads = 1 if seen is None or seen.dim() == 2 else seen.size(1)
        seen = None if seen is None else seen.to(query.device)
        combined = combine(None, seen, False, (rows, heads, query_len, key_len), query)
        additive, hidden = (None, None) if combined is None else combined
        need_weights = implementation == "eager" or bool(output_attentions)
        dropout = getattr(self, self.names.dropout)
        probability = float(dropout.p if isinstance(dropout, nn.Dropout) else dropout) if self.training else 0.0
        context, weights = attend_collaborative(
            "auto", query, self.mixing, entry, additive, self.scaling, probability, need_weights
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


#: attention layer of transformers → the one that replaces it
COLLABORATIVE: Dict[Type[nn.Module], Type[CollaborativeHeads]] = {
    AlbertAttention: CollaborativeAlbertAttention,
    BertCrossAttention: CollaborativeBertCrossAttention,
    BertSelfAttention: CollaborativeBertSelfAttention,
    DistilBertSelfAttention: CollaborativeDistilBertSelfAttention,
    MarianAttention: CollaborativeMarianAttention,
}


def names_of(layer: nn.Module) -> Optional[Names]:
    """What an attention layer calls its parts; None for modules that are not an attention layer known here."""
    kind = type(layer) if isinstance(layer, CollaborativeHeads) else COLLABORATIVE.get(type(layer))
    return None if kind is None else kind.names  # type: ignore[attr-defined]

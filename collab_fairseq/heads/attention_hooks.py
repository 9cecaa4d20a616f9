"""Masks, multipliers and hooks on the heads of a model in memory, and the attention maps of its heads.

Layers are mappings: layer_id (``encoder.0``, ``cross.3``, …) → attention layer.
Letters: N sentences, T queries, S keys, H heads of a layer.
"""

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import SITES, AttentionLayer, attention_types
from collab_fairseq.attention.cache import Attended
from collab_fairseq.modules.head_names import check_heads, short_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel
from fairseq_modern.errors import UserError

#: layers with ``num_heads``, ``head_multiplier`` and ``out_proj``: :class:`.IncrementalAttention`, and
#: :class:`collab_fairseq.huggingface.HeadOutputs` for models of transformers
Layers = Mapping[str, Any]
#: site → the tokens of its queries and of its keys: source, decoder input, or target (the predicted tokens)
SIDES = {"encoder": ("source", "source"), "cross": ("target", "source"), "decoder": ("input", "input")}


def sites_of(flag: str, layers: Iterable[str]) -> List[str]:
    """The sites of ``--sites`` in the order of the model; raises a UserError unless the layers (layer_ids) have one."""
    sites = attention_types.parse_sites(flag, "--sites")
    available = list(dict.fromkeys(layer_id.split(".")[0] for layer_id in layers))
    if sites.isdisjoint(available):
        raise UserError(f"--sites must name at least one of the model's sites, {', '.join(available)}; got {flag}")
    return [site for site in SITES if site in sites]


def head_counts(layers: Layers) -> Dict[str, int]:
    """layer_id → H."""
    return {layer_id: layer.num_heads for layer_id, layer in layers.items()}


@contextlib.contextmanager
def multiplied(layers: Layers, multipliers: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the outputs of heads by (H), (N, H) or (N, T, H), in addition to the existing multipliers."""
    with contextlib.ExitStack() as stack:
        for layer_id, multiplier in multipliers.items():
            layer = layers[layer_id]
            existing = layer.head_multiplier
            stack.callback(setattr, layer, "head_multiplier", existing)
            layer.head_multiplier = multiplier if existing is None else multiplier * existing
        yield


@contextlib.contextmanager
def masked(layers: Layers, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Set the outputs of these heads to zero; heads that the model lacks raise a UserError."""
    check_heads(heads, head_counts(layers))
    masks = {}
    for layer_id, members in heads.items():
        layer = layers[layer_id]
        masks[layer_id] = layer.out_proj.weight.new_ones(layer.num_heads)
        masks[layer_id][list(members)] = 0.0
    with multiplied(layers, masks):
        yield


@contextlib.contextmanager
def hooked(layers: Mapping[str, AttentionLayer], hook: Callable[..., Attended]) -> Iterator[None]:
    """Compute all heads by ``hook(layer_id, *arguments)``, with the arguments of :attr:`.AttentionLayer.hook`."""
    with contextlib.ExitStack() as stack:
        for layer_id, layer in layers.items():
            stack.callback(setattr, layer, "hook", layer.hook)
            layer.hook = partial(hook, layer_id)
        yield


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without parameter gradients; both are restored on exit."""
    with contextlib.ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for parameter in model.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)
        yield


class AttentionMaps(NamedTuple):
    """Attention of the heads of one layer.

    Attributes:
        weights: (N, H, T, S). queries: (N, T), True for words. keys: (N, S), True for words.
        tokens: (N, S), the keys.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: Tensor


@torch.no_grad()
def attention(trained: TrainedModel, sample: Mapping[str, Any]) -> Dict[str, AttentionMaps]:
    """layer_id → attention maps of a batch; </s> and padding are not words."""
    recorded: Dict[str, Tensor] = {}

    def record(layer_id: str, compute: Callable[..., Attended], *arguments: Any) -> Attended:
        *inputs, _need_weights = arguments
        outputs, weights = compute(*inputs, True)
        assert weights is not None
        recorded[layer_id] = weights
        return outputs, weights

    inputs = sample["net_input"]
    with hooked(attention_layers(trained.model), record):
        trained.model(**inputs)
    sides = {"source": inputs["src_tokens"], "input": inputs["prev_output_tokens"], "target": sample["target"]}
    dictionary = trained.task.target_dictionary  # special symbols have the same indices in both dictionaries
    words = {name: tokens.ne(dictionary.pad()) & tokens.ne(dictionary.eos()) for name, tokens in sides.items()}
    maps = {}
    for layer_id, weights in recorded.items():
        queries, keys = SIDES[layer_id.split(".")[0]]
        if weights.size(-1) != sides[keys].size(1):
            raise UserError(f"{short_name(layer_id)} attends to source and target together (--cross-self-attention)")
        maps[layer_id] = AttentionMaps(weights, words[queries], words[keys], sides[keys])
    return maps


def argmax_keys(maps: AttentionMaps) -> Tuple[Tensor, Tensor, Tensor]:
    """Largest weight, and its key, of the n queries that are words and attend to at least one word.

    Returns:
        weights (n, H), keys (n, H), and positions (n, 2): sentence and time step of each query.
    """
    not_words = ~maps.keys[:, None, None, :].expand_as(maps.weights)  # (N, S) → (N, H, T, S)
    largest, keys = maps.weights.masked_fill(not_words, -1.0).max(dim=-1)
    # the first query of a decoder attends to </s> only
    sees_words = maps.weights.masked_fill(not_words, 0.0).sum(dim=(1, 3)) > 0
    positions = (maps.queries & sees_words).nonzero()
    sentences, steps = positions.unbind(1)
    return largest.clamp_min(0.0)[sentences, :, steps], keys[sentences, :, steps], positions

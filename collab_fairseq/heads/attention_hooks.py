"""Masking heads of a model in memory, and recording their attention maps.

Layers are mappings: layer_id (``encoder.0``, ``cross.3``, …) → attention layer.
"""

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.cache import Attended
from collab_fairseq.modules.heads import check_heads, short_name
from collab_fairseq.modules.settings import SITES, parse_sites
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel
from fairseq_modern.errors import UserError

#: layers with ``num_heads``, ``head_multiplier`` and ``out_proj``: :class:`.IncrementalAttention`, and
#: :class:`collab_fairseq.huggingface.HeadOutputs` of transformers' models
Layers = Mapping[str, Any]
#: site → which tokens its queries and its keys stand for: of the source, what the decoder reads, and what it predicts
SIDES = {"encoder": ("source", "source"), "cross": ("target", "source"), "decoder": ("input", "input")}


def sites(flag: str) -> List[str]:
    """The sites of ``--sites``, at least one, in the order of the model.

    Raises:
        ConfigurationError: not the name of a site. UserError: none.
    """
    chosen = parse_sites(flag, "--sites")
    if not chosen:
        raise UserError("--sites must name at least one of encoder, cross and decoder, got none")
    return [site for site in SITES if site in chosen]


def counts(layers: Layers) -> Dict[str, int]:
    """layer_id → number of its heads."""
    return {layer_id: layer.num_heads for layer_id, layer in layers.items()}


def masks(heads: Mapping[str, Iterable[int]], layers: Layers) -> Dict[str, Tensor]:
    """layer_id → factors (H) on the outputs of its heads: 0 for these heads, 1 for the others.

    Raises ConfigurationError for heads that the model does not have.
    """
    check_heads(heads, counts(layers))
    factors = {}
    for layer_id, members in heads.items():
        layer = layers[layer_id]
        weight = layer.out_proj.weight
        factors[layer_id] = torch.ones(layer.num_heads, dtype=weight.dtype, device=weight.device)
        factors[layer_id][list(members)] = 0.0
    return factors


@contextlib.contextmanager
def multiplied(layers: Layers, factors: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the outputs of heads by ``factors`` (H), (N, H) or (N, T, H), on top of the masks that they have."""
    with contextlib.ExitStack() as stack:
        for layer_id, factor in factors.items():
            layer = layers[layer_id]
            fixed = layer.head_multiplier
            stack.callback(setattr, layer, "head_multiplier", fixed)
            layer.head_multiplier = factor if fixed is None else factor * fixed
        yield


@contextlib.contextmanager
def masked(layers: Layers, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Without these heads; errors are those of :func:`masks`."""
    with multiplied(layers, masks(heads, layers)):
        yield


@contextlib.contextmanager
def hooked(layers: Mapping[str, AttentionLayer], hook: Callable[..., Attended]) -> Iterator[None]:
    """Compute all heads through ``hook(layer_id, …)``, where … is what :class:`.AttentionLayer` gives its hook."""
    with contextlib.ExitStack() as stack:
        for layer_id, layer in layers.items():
            stack.callback(setattr, layer, "hook", layer.hook)
            layer.hook = partial(hook, layer_id)
        yield


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, and without gradients of parameters, which no analysis needs."""
    with contextlib.ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for parameter in model.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)
        yield


class AttentionMaps(NamedTuple):
    """The attention of the heads of a layer in N sentences of T queries and S keys.

    Attributes:
        weights: (N, H, T, S). queries: (N, T), True where the query counts. keys: (N, S), True where the key counts.
        tokens: (N, S), of the keys.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: Tensor


@torch.no_grad()
def attention(trained: TrainedModel, sample: Mapping[str, Any]) -> Dict[str, AttentionMaps]:
    """layer_id → the attention of its heads in a batch.

    Raises:
        UserError: a layer attends to source and target at once.
    """
    recorded: Dict[str, Tensor] = {}

    def record(layer_id: str, compute: Callable[..., Attended], *arguments: Any) -> Attended:
        *inputs, _ = arguments  # the last one says whether weights are needed
        outputs, weights = compute(*inputs, True)
        assert weights is not None
        recorded[layer_id] = weights
        return outputs, weights

    with hooked(attention_layers(trained.model), record):
        trained.model(**sample["net_input"])
    dictionary = trained.task.target_dictionary  # both dictionaries have these symbols at the same places
    inputs = sample["net_input"]
    sides = {"source": inputs["src_tokens"], "input": inputs["prev_output_tokens"], "target": sample["target"]}
    words = {name: tokens.ne(dictionary.pad()) & tokens.ne(dictionary.eos()) for name, tokens in sides.items()}
    maps = {}
    for layer_id, weights in recorded.items():
        queries, keys = SIDES[layer_id.split(".")[0]]
        if weights.size(-1) != sides[keys].size(1):
            raise UserError(f"{short_name(layer_id)} looks at source and target at once (--cross-self-attention)")
        maps[layer_id] = AttentionMaps(weights, words[queries], words[keys], sides[keys])
    return maps


def argmax_keys(maps: AttentionMaps) -> Tuple[Tensor, Tensor, Tensor]:
    """The largest weight of every query that counts and sees a key that counts, and the key that it is on.

    Returns:
        weights (n, H), keys (n, H), and (n, 2) sentence and position of the n queries.
    """
    hidden = ~maps.keys[:, None, None, :].expand_as(maps.weights)
    largest, keys = maps.weights.masked_fill(hidden, -1.0).max(dim=-1)
    # the first query of a decoder sees </s> alone
    sees_words = maps.weights.masked_fill(hidden, 0.0).sum(dim=(1, 3)) > 0
    positions = (maps.queries & sees_words).nonzero()
    rows, steps = positions.unbind(1)
    return largest.clamp_min(0.0)[rows, :, steps], keys[rows, :, steps], positions

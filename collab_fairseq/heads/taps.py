"""Masking heads of a model in memory, and looking into what they read."""

import contextlib
from functools import partial
from typing import Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionLayer, KeyValue
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.heads import Heads, check_heads

Layers = Mapping[str, IncrementalAttention]
Attended = Tuple[Tensor, Optional[Tensor]]
#: ``_contexts`` of a layer: query, entry, mask, dropout, need_weights → context, weights
Read = Callable[[Tensor, KeyValue, Optional[Tensor], float, bool], Attended]
#: the same, told the layer's name and its own ``_contexts``
Through = Callable[[str, Read, Tensor, KeyValue, Optional[Tensor], float, bool], Attended]


def counts(layers: Layers) -> Dict[str, int]:
    """Place → number of its heads."""
    return {place: layer.num_heads for place, layer in layers.items()}


def all_heads(layers: Layers) -> Heads:
    """Every head of the model."""
    return {place: tuple(range(number)) for place, number in counts(layers).items()}


@contextlib.contextmanager
def multiplied(layers: Layers, factors: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the contexts of heads by ``factors`` (H), (N, H) or (N, T, H), on top of the masks that they have."""
    before = {place: layers[place].head_multiplier for place in factors}
    try:
        for place, factor in factors.items():
            fixed = before[place]
            layers[place].head_multiplier = factor if fixed is None else factor * fixed
        yield
    finally:
        for place, fixed in before.items():
            layers[place].head_multiplier = fixed


@contextlib.contextmanager
def masked(layers: Layers, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Without these heads.

    Raises:
        ConfigurationError: heads that the model does not have.
    """
    check_heads(heads, counts(layers))
    factors = {}
    for place, members in heads.items():
        layer = layers[place]
        factors[place] = torch.ones(layer.num_heads, device=layer.out_proj.weight.device)
        factors[place][list(members)] = 0.0
    with multiplied(layers, factors):
        yield


@contextlib.contextmanager
def reading(layers: Mapping[str, AttentionLayer], through: Through) -> Iterator[None]:
    """Let every layer's ``_contexts`` go through a function of yours."""
    try:
        for place, layer in layers.items():
            layer._contexts = partial(through, place, layer._contexts)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("_contexts", None)


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Without gradients of parameters, which nobody here asks for."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in wanted:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)

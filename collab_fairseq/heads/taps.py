"""Masking heads of a model in memory, and looking into what they read."""

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.cache import Attended
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.heads import check_heads
from collab_fairseq.modules.settings import SITES, parse_sites
from collab_fairseq.translation import load_model as load  # noqa: F401  (what all analyses begin with)

from . import HeadsError

Layers = Mapping[str, IncrementalAttention]


def sites(flag: str) -> List[str]:
    """The sites of ``--sites``, at least one, in the order of the model.

    Raises:
        ConfigurationError: not the name of a site. HeadsError: none.
    """
    chosen = parse_sites(flag, "--sites")
    if not chosen:
        raise HeadsError("--sites must name at least one of encoder, cross and decoder, got none")
    return [site for site in SITES if site in chosen]


def counts(layers: Mapping[str, Any]) -> Dict[str, int]:
    """Place → number of its heads."""
    return {place: layer.num_heads for place, layer in layers.items()}


def masks(heads: Mapping[str, Iterable[int]], layers: Mapping[str, Any], **like: Any) -> Dict[str, Tensor]:
    """Place → factors (H) on the contexts of its heads: 0 for these heads, 1 for the others.

    ``like``: their dtype and device. Raises ConfigurationError for heads that the model does not have.
    """
    check_heads(heads, counts(layers))
    factors = {place: torch.ones(layers[place].num_heads, **like) for place in heads}
    for place, members in heads.items():
        factors[place][list(members)] = 0.0
    return factors


@contextlib.contextmanager
def multiplied(layers: Layers, factors: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the contexts of heads by ``factors`` (H), (N, H) or (N, T, H), on top of the masks that they have."""
    with contextlib.ExitStack() as stack:
        for place, factor in factors.items():
            layer, fixed = layers[place], layers[place].head_multiplier
            stack.callback(setattr, layer, "head_multiplier", fixed)
            layer.head_multiplier = factor if fixed is None else factor * fixed
        yield


@contextlib.contextmanager
def masked(layers: Layers, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Without these heads; errors are those of :func:`masks`."""
    device = next(iter(layers.values())).out_proj.weight.device
    with multiplied(layers, masks(heads, layers, device=device)):
        yield


@contextlib.contextmanager
def reading(layers: Mapping[str, AttentionLayer], through: Callable[..., Attended]) -> Iterator[None]:
    """Let all heads read through a function of the place and of what :class:`.AttentionLayer` gives its tap."""
    with contextlib.ExitStack() as stack:
        for place, layer in layers.items():
            stack.callback(setattr, layer, "tap", layer.tap)
            layer.tap = partial(through, place)
        yield


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Without gradients of parameters, which nobody here asks for."""
    with contextlib.ExitStack() as stack:
        for parameter in model.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)
        yield

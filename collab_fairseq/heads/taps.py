"""Masking heads of a model in memory, and seeing where they look."""

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.cache import Attended
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.heads import check_heads, short_name
from collab_fairseq.modules.settings import SITES, parse_sites
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel

from . import HeadsError

Layers = Mapping[str, IncrementalAttention]
#: site → which tokens its queries and its keys stand for: of the source, what the decoder reads, and what it predicts
SIDES = {"encoder": ("source", "source"), "cross": ("target", "source"), "decoder": ("input", "input")}


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
    """Place → factors (H) on the outputs of its heads: 0 for these heads, 1 for the others.

    ``like``: their dtype and device. Raises ConfigurationError for heads that the model does not have.
    """
    check_heads(heads, counts(layers))
    factors = {place: torch.ones(layers[place].num_heads, **like) for place in heads}
    for place, members in heads.items():
        factors[place][list(members)] = 0.0
    return factors


@contextlib.contextmanager
def multiplied(layers: Layers, factors: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the outputs of heads by ``factors`` (H), (N, H) or (N, T, H), on top of the masks that they have."""
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
    """Without gradients of parameters, which no analysis needs."""
    with contextlib.ExitStack() as stack:
        for parameter in model.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)
        yield


class Seen(NamedTuple):
    """What the heads of a layer look at in N sentences of T queries and S keys.

    Attributes:
        weights: (N, H, T, S). queries: (N, T), True where the query counts. keys: (N, S), True where the key counts.
        tokens: (N, S), of the keys.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: Tensor


@torch.no_grad()
def attention(trained: TrainedModel, sample: Mapping[str, Any]) -> Dict[str, Seen]:
    """Place → what its heads look at in a batch.

    Raises:
        HeadsError: they look at source and target at once.
    """
    found: Dict[str, Tensor] = {}

    def keep(place: str, read: Callable[..., Attended], *given: Any) -> Attended:
        context, kept = read(*given[:-1], True)
        assert kept is not None
        found[place] = kept
        return context, kept

    with reading(attention_layers(trained.model), keep):
        trained.model(**sample["net_input"])
    dictionary = trained.task.target_dictionary  # both dictionaries have these symbols at the same places
    inputs = sample["net_input"]
    sides = {"source": inputs["src_tokens"], "input": inputs["prev_output_tokens"], "target": sample["target"]}
    words = {name: tokens.ne(dictionary.pad()) & tokens.ne(dictionary.eos()) for name, tokens in sides.items()}
    seen = {}
    for place, weights in found.items():
        queries, keys = SIDES[place.split(".")[0]]
        if weights.size(-1) != sides[keys].size(1):
            raise HeadsError(f"{short_name(place)} looks at source and target at once (--cross-self-attention)")
        seen[place] = Seen(weights, words[queries], words[keys], sides[keys])
    return seen


def pointed(seen: Seen) -> Tuple[Tensor, Tensor, Tensor]:
    """The largest weight of every query that counts and sees a key that counts, and the key that it is on.

    Returns:
        weights (n, H), keys (n, H), and (n, 2) sentence and position of the n queries.
    """
    hidden = ~seen.keys[:, None, None, :].expand_as(seen.weights)
    # the first query of a decoder sees </s> alone
    largest, keys = seen.weights.masked_fill(hidden, -1.0).max(dim=-1)
    counted = seen.queries & (seen.weights.masked_fill(hidden, 0.0).sum(dim=(1, 3)) > 0)
    places = counted.nonzero()
    rows, steps = places.unbind(1)
    return largest.clamp_min(0.0)[rows, :, steps], keys[rows, :, steps], places

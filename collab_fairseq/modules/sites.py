"""The attention layers of a whole model by name: ``encoder.0``, ``cross.3``, …, as in ``attention_shapes``."""

import contextlib
from typing import Dict, Iterator, Mapping

from torch import nn

from .attention import IncrementalAttention
from .settings import ConfigurationError

# site → the stack of layers and the attribute of a layer that it is
_HOMES = {
    "encoder": ("encoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
    "decoder": ("decoder", "self_attn"),
}


def attention_layers(model: nn.Module) -> Dict[str, IncrementalAttention]:
    """``site.layer`` → attention, all encoder layers first, then all of cross-, then all of decoder self-attention.

    Args:
        model: a ``transformer_collab``.

    Raises:
        ConfigurationError: a model with other attention, as fairseq's own (:func:`.stock.as_transformer_collab`).
    """
    found: Dict[str, IncrementalAttention] = {}
    for site, (stack, attribute) in _HOMES.items():
        layers = getattr(getattr(model, stack), "layers")  # noqa: B009  (a module, to mypy)
        for number in range(len(layers)):  # iterating would skip layers at random where layers are dropped in training
            layer = getattr(layers[number], attribute)
            if layer is None:  # a decoder without cross-attention
                continue
            if not isinstance(layer, IncrementalAttention):
                raise ConfigurationError(
                    f"{site}.{number} must be attention of transformer_collab, but is {type(layer).__name__}"
                )
            found[f"{site}.{number}"] = layer
    return found


@contextlib.contextmanager
def swapped(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """The model with other attention at the given places, for the length of a ``with`` block."""
    before = {place: model.get_submodule(parameter_prefix(place)[:-1]) for place in layers}
    try:
        for place, layer in layers.items():
            model.set_submodule(parameter_prefix(place)[:-1], layer)
        yield
    finally:
        for place, layer in before.items():
            model.set_submodule(parameter_prefix(place)[:-1], layer)


def parameter_prefix(place: str) -> str:
    """What the names of the parameters of ``site.layer`` begin with in a checkpoint: ``encoder.layers.0.self_attn.``"""
    site, _, number = place.partition(".")
    stack, attribute = _HOMES[site]
    return f"{stack}.layers.{number}.{attribute}."

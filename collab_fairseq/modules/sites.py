"""The attention layers of a model or checkpoint by name: ``encoder.0``, ``cross.3``, …, as in ``attention_shapes``."""

import contextlib
import itertools
from typing import Any, Dict, Iterator, Mapping

from fairseq.models.transformer import TransformerConfig
from torch import nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.attention_types import uninitialized_layer

from .attention import IncrementalAttention
from .fairseq_compat import model_config
from .gates import HeadGates
from .heads import short_name
from .settings import SITES, ConfigurationError, flat_settings, parse_shapes

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
        ConfigurationError: a model with other attention, such as fairseq's (:func:`.as_transformer_collab`).
    """
    attention: Dict[str, IncrementalAttention] = {}
    for site, (stack, attribute) in _HOMES.items():
        layers = getattr(getattr(model, stack), "layers")  # noqa: B009  (a module, to mypy)
        for number in range(len(layers)):  # iterating would skip layers at random where layers are dropped in training
            layer = getattr(layers[number], attribute)
            if layer is None:  # a decoder without cross-attention
                continue
            if not isinstance(layer, IncrementalAttention):
                raise ConfigurationError(
                    f"{site}.{number} must be attention of transformer_collab; got {type(layer).__name__}"
                )
            attention[f"{site}.{number}"] = layer
    return attention


@contextlib.contextmanager
def swapped(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """The model with other attention at the given layers, for the length of a ``with`` block."""
    before = {name: model.get_submodule(parameter_prefix(name)[:-1]) for name in layers}
    try:
        for name, layer in layers.items():
            model.set_submodule(parameter_prefix(name)[:-1], layer)
        yield
    finally:
        for name, layer in before.items():
            model.set_submodule(parameter_prefix(name)[:-1], layer)


def parameter_prefix(name: str) -> str:
    """The prefix of the parameters of ``site.layer`` in a checkpoint: ``encoder.layers.0.self_attn.``"""
    site, _, number = name.partition(".")
    stack, attribute = _HOMES[site]
    return f"{stack}.layers.{number}.{attribute}."


def checkpoint_layers(state: Mapping[str, Any]) -> Dict[str, AttentionLayer]:
    """Layer name → the attention of a checkpoint of ``transformer_collab``, without fairseq's signature.

    Raises:
        ConfigurationError: it has no attention layers, or parameters of attention are missing or of other sizes.
    """
    config, parameters = model_config(dict(state)), state["model"]
    shapes = parse_shapes(config.get("attention_shapes"))
    settings = {**flat_settings(TransformerConfig()), **config}
    layers: Dict[str, AttentionLayer] = {}
    for site in SITES:
        for number in itertools.count():
            layer_id = f"{site}.{number}"
            prefix = parameter_prefix(layer_id)
            if not any(name.startswith(prefix) for name in parameters):
                break
            layer = uninitialized_layer(settings, site, shapes.get(layer_id))
            tensors = {name: parameters.get(prefix + name) for name in layer.state_dict()}
            for name, expected in layer.state_dict().items():
                if tensors[name] is None:
                    raise ConfigurationError(f"the checkpoint has no {prefix}{name}, which its attention there has")
                if tensors[name].shape != expected.shape:
                    sizes, got = tuple(expected.shape), tuple(tensors[name].shape)
                    raise ConfigurationError(f"{prefix}{name} must have shape {sizes}; got {got}")
            layer.load_state_dict(tensors, assign=True)
            layers[layer_id] = layer
    if not layers:
        raise ConfigurationError("the checkpoint has no attention layers (encoder.layers.0.self_attn.q_proj.weight, …)")
    return layers


def gates_of(model: nn.Module) -> Dict[str, HeadGates]:
    """Layer (``E:1``, …) → its gates, of a model that may be wrapped for data-parallel training."""
    sites = {home: site for site, home in _HOMES.items()}
    gates = {}
    for name, module in model.named_modules():
        if isinstance(module, HeadGates):
            stack, _, rest = name.partition(".layers.")  # … encoder.layers.0.self_attn.head_gates
            parts = rest.split(".")
            site = sites[stack.split(".")[-1], parts[-2]]
            gates[short_name(f"{site}.{parts[0]}")] = module
    return gates

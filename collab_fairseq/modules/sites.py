"""The attention layers of a model or checkpoint by name: ``encoder.0``, ``cross.3``, …, as in ``attention_shapes``."""

import contextlib
import itertools
from typing import Any, Dict, Iterator, Mapping

from fairseq.models.transformer import TransformerConfig
from torch import nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.kinds import sized

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
    """What the names of the parameters of ``site.layer`` begin with in a checkpoint: ``encoder.layers.0.self_attn.``"""
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
    found: Dict[str, AttentionLayer] = {}
    for site in SITES:
        for number in itertools.count():
            layer_name, prefix = f"{site}.{number}", parameter_prefix(f"{site}.{number}")
            if not any(name.startswith(prefix) for name in parameters):
                break
            found[layer_name] = sized(settings, site, shapes.get(layer_name))
            own = {name: parameters.get(prefix + name) for name in found[layer_name].state_dict()}
            for name, expected in found[layer_name].state_dict().items():
                if own[name] is None:
                    raise ConfigurationError(f"the checkpoint has no {prefix}{name}, which its attention there has")
                if own[name].shape != expected.shape:
                    sizes, got = tuple(expected.shape), tuple(own[name].shape)
                    raise ConfigurationError(f"{prefix}{name} must have shape {sizes}, but is {got}")
            found[layer_name].load_state_dict(own, assign=True)
    if not found:
        raise ConfigurationError("the checkpoint has no attention layers (encoder.layers.0.self_attn.q_proj.weight, …)")
    return found


def gates_of(model: nn.Module) -> Dict[str, HeadGates]:
    """Layer (``E:1``, …) → its gates, of a model that may be wrapped for data-parallel training."""
    sites = {home: site for site, home in _HOMES.items()}
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, HeadGates):
            stack, _, layer = name.partition(".layers.")  # … encoder.layers.0.self_attn.head_gates
            site = sites[stack.split(".")[-1], layer.split(".")[-2]]
            found[short_name(f"{site}.{layer.split('.')[0]}")] = module
    return found

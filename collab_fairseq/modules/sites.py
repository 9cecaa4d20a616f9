"""Attention layers of a model or checkpoint by layer ID (``encoder.0``, ``cross.3``), as in ``attention_shapes``."""

import contextlib
import itertools
from typing import Any, ContextManager, Dict, Iterator, Mapping

from fairseq.models.transformer import TransformerConfig
from torch import nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.attention_types import SITES, uninitialised_layer
from collab_fairseq.checkpoints import model_settings
from fairseq_modern.errors import UserError

from .attention import IncrementalAttention
from .gates import HeadGates
from .head_names import short_name
from .settings import flat, parse_shapes

# site → stack of layers, attribute of a layer
_ATTRIBUTES = {
    "encoder": ("encoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
    "decoder": ("decoder", "self_attn"),
}


def attention_layers(model: nn.Module) -> Dict[str, IncrementalAttention]:
    """Layer ID → attention of a ``transformer_collab``: encoder layers, then cross-attention, then decoder layers.

    Other models raise UserError; :func:`.as_transformer_collab` converts checkpoints of fairseq's.
    """
    attention: Dict[str, IncrementalAttention] = {}
    for site, (stack, attribute) in _ATTRIBUTES.items():
        layers = getattr(getattr(model, stack), "layers")  # noqa: B009  (untyped for mypy)
        for number in range(len(layers)):  # with LayerDrop, iteration skips layers at random
            layer = getattr(layers[number], attribute)
            if layer is None:  # a decoder without cross-attention
                continue
            if not isinstance(layer, IncrementalAttention):
                raise UserError(f"{site}.{number} must be attention of transformer_collab; got {type(layer).__name__}")
            attention[f"{site}.{number}"] = layer
    return attention


@contextlib.contextmanager
def swapped_modules(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Context manager that replaces submodules of a model, given by name."""
    originals = {name: model.get_submodule(name) for name in modules}
    try:
        for name, module in modules.items():
            model.set_submodule(name, module)
        yield
    finally:
        for name, module in originals.items():
            model.set_submodule(name, module)


def swapped(model: nn.Module, layers: Mapping[str, nn.Module]) -> ContextManager[None]:
    """:func:`swapped_modules` for attention layers, given by layer ID."""
    return swapped_modules(model, {parameter_prefix(layer_id)[:-1]: layer for layer_id, layer in layers.items()})


def parameter_prefix(layer_id: str) -> str:
    """The prefix of a layer's parameters in a checkpoint: ``encoder.0`` → ``encoder.layers.0.self_attn.``"""
    site, _, number = layer_id.partition(".")
    stack, attribute = _ATTRIBUTES[site]
    return f"{stack}.layers.{number}.{attribute}."


def checkpoint_layers(state: Mapping[str, Any]) -> Dict[str, AttentionLayer]:
    """Layer ID → attention, without fairseq's interface, from a checkpoint of ``transformer_collab``.

    Missing parameters and unexpected shapes raise UserError.
    """
    config, parameters = model_settings(state), state["model"]
    shapes = parse_shapes(config.get("attention_shapes"))
    settings = {**flat(TransformerConfig()), **flat(config)}
    layers: Dict[str, AttentionLayer] = {}
    for site in SITES:
        for number in itertools.count():
            layer_id = f"{site}.{number}"
            prefix = parameter_prefix(layer_id)
            if not any(name.startswith(prefix) for name in parameters):
                break
            layer = uninitialised_layer(settings, site, shapes.get(layer_id))
            tensors = {}
            for name, expected in layer.named_parameters():
                tensor = parameters.get(prefix + name)
                shape = None if tensor is None else tuple(tensor.shape)
                if shape != tuple(expected.shape):
                    raise UserError(f"{prefix}{name} must have shape {tuple(expected.shape)}; got {shape}")
                tensors[name] = tensor
            layer.load_state_dict(tensors, assign=True)
            layers[layer_id] = layer
    if not layers:
        raise UserError("the checkpoint has no attention layers (encoder.layers.0.self_attn.q_proj.weight, …)")
    return layers


def gates_of(model: nn.Module) -> Dict[str, HeadGates]:
    """Layer name (``E:1``) → gates of a model, which may be wrapped for data-parallel training."""
    layers = attention_layers(model).items()
    return {short_name(layer_id): layer.head_gates for layer_id, layer in layers if layer.head_gates is not None}

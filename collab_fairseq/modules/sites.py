"""The attention layers of a model or checkpoint by name: ``encoder.0``, ``cross.3``, …, as in ``attention_shapes``."""

import contextlib
from typing import Any, Dict, Iterator, List, Mapping

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from .attention import IncrementalAttention
from .gates import HeadGates
from .heads import layer_name
from .settings import SITES, ConfigurationError, parse_shapes
from .stock import model_config

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


def head_counts(state: Mapping[str, Any]) -> Dict[str, int]:
    """Place → number of heads, of a checkpoint of ``transformer_collab``.

    Raises:
        ConfigurationError: it has no attention layers, or query, key and mixing weights are missing or do not fit.
    """
    config, parameters = model_config(dict(state)), state["model"]
    shapes = parse_shapes(config.get("attention_shapes"))
    found = {}
    for site in SITES:
        side = "encoder" if site == "encoder" else "decoder"
        heads = config.get(f"{side}_attention_heads") or getattr(TransformerConfig(), side).attention_heads
        layer = 0
        while any(name.startswith(parameter_prefix(f"{site}.{layer}")) for name in parameters):
            place = f"{site}.{layer}"
            found[place] = shapes.get(place, {}).get("num_heads", heads)
            _check_parameters(parameters, parameter_prefix(place), found[place])
            layer += 1
    if not found:
        raise ConfigurationError("the checkpoint has no attention layers (encoder.layers.0.self_attn.q_proj.weight, …)")
    return found


def scale_of(state: Mapping[str, Any], place: str, heads: int) -> float:
    """The scale of the scores of ``site.layer``, as its mixing matrix is stored, in a checkpoint."""
    config, prefix = model_config(dict(state)), parameter_prefix(place)
    own = parse_shapes(config.get("attention_shapes")).get(place, {}).get("scale")
    if own is not None:
        return float(own)
    multiplier = config.get("mixing_lr_multiplier", 1.0) if prefix + "mixing" in state["model"] else 1.0
    return float((state["model"][prefix + "out_proj.weight"].size(1) // heads) ** -0.5 * multiplier)


def _check_parameters(parameters: Mapping[str, Tensor], prefix: str, heads: int) -> None:
    """Refuse a layer without query (K, E) and key (K', kdim) weights that fit each other, mixing and heads."""
    for name in ("q_proj.weight", "k_proj.weight"):
        if prefix + name not in parameters:
            raise ConfigurationError(f"the checkpoint has no {prefix}{name}, which every attention layer has")
    query, key = (tuple(parameters[f"{prefix}{name}_proj.weight"].shape) for name in ("q", "k"))
    mixing = parameters.get(f"{prefix}mixing")
    fits = len(query) == len(key) == 2 and key[0] > 0
    if mixing is not None:
        fits = fits and mixing.shape == (heads, query[0]) and key[0] == query[0]
    else:  # standard heads, which may share keys in groups
        fits = fits and heads <= query[0] and query[0] % key[0] == 0
    if not fits:
        shape = "" if mixing is None else f" and {prefix}mixing {tuple(mixing.shape)}"
        raise ConfigurationError(f"{prefix}q_proj.weight {query}, k_proj.weight {key}{shape} do not fit {heads} heads")


def shared_by_heads(parameters: Mapping[str, Tensor], place: str) -> List[str]:
    """Which of ``keys`` and ``values`` the heads of a layer share in groups or as latents, in a checkpoint."""
    query, key, value, out = (
        parameters[f"{parameter_prefix(place)}{name}_proj.weight"] for name in ("q", "k", "v", "out")
    )
    latent = f"{parameter_prefix(place)}latent_proj.weight" in parameters
    found = {"keys": latent or len(key) < len(query), "values": latent or len(value) < out.size(1)}
    return [name for name, is_shared in found.items() if is_shared]


def gates_of(model: nn.Module) -> Dict[str, HeadGates]:
    """Layer (``E:1``, …) → its gates, of a model that may be wrapped for data-parallel training."""
    sites = {home: site for site, home in _HOMES.items()}
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, HeadGates):
            stack, _, layer = name.partition(".layers.")  # … encoder.layers.0.self_attn.head_gates
            site = sites[stack.split(".")[-1], layer.split(".")[-2]]
            found[layer_name(f"{site}.{layer.split('.')[0]}")] = module
    return found

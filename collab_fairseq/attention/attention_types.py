"""The table of attention types, which flags, checks, records, benchmarks, conversion and exports read.

A new attention type is a subclass of :class:`.AttentionLayer` in its own file, and an entry in :data:`ATTENTION_TYPES`.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import torch

from .attention_type import Flag
from .collaborative import CollaborativeAttention
from .grouped import GroupedAttention
from .latent import LatentAttention
from .layer import AttentionLayer
from .standard import StandardAttention

#: all attention types; a layer without further flags has the first collaborative or the first non-collaborative one
ATTENTION_TYPES: List[Type[AttentionLayer]] = [
    CollaborativeAttention,
    StandardAttention,
    GroupedAttention,
    LatentAttention,
]

#: the attentions of a transformer: encoder self-attention, encoder–decoder attention, decoder self-attention
SITES = ("encoder", "cross", "decoder")
#: site → setting of its key dimension, which takes precedence over ``key_dim``
KEY_DIM_SETTINGS = {site: f"{site}_key_dim" for site in SITES}

#: settings of a single layer, after conversion or pruning, and their types; all but the first are layer arguments
_OF_ANY_LAYER = {
    "collaborative": bool,
    "num_heads": int,
    "head_dim": int,
    "key_dim": int,
    "scale": float,
    "query_bias": bool,
    "key_bias": bool,
    "value_bias": bool,
    "out_bias": bool,
}


def flags() -> Dict[str, Flag]:
    """The flags of all attention types, by name."""
    return {flag.name: flag for attention_type in ATTENTION_TYPES for flag in attention_type.flags}


def per_layer_settings() -> Dict[str, Any]:
    """Settings that a single layer may have in ``attention_shapes``, and their types."""
    return {**_OF_ANY_LAYER, **{flag.argument: flag.type for flag in flags().values() if flag.per_layer}}


def kernels(types: Sequence[Type[AttentionLayer]]) -> Tuple[str, ...]:
    """The names of the kernels of these attention types, ``auto`` first."""
    return tuple(dict.fromkeys(["auto", *(name for attention_type in types for name in attention_type.kernels)]))


def side_of(site: str) -> str:
    """The stack of a site, ``encoder`` or ``decoder``, which sets the width of its queries."""
    return "encoder" if site == "encoder" else "decoder"


def layer_at(
    settings: Mapping[str, Any], site: str, overrides: Optional[Mapping[str, Any]] = None
) -> Tuple[Type[AttentionLayer], Dict[str, Any]]:
    """The attention type of a layer, and the arguments that determine its parameters.

    Args:
        settings: model settings by flat name: ``encoder_embed_dim``, ``key_dim``, ``kv_heads``, …
        site: one of :data:`SITES`.
        overrides: settings of this layer alone, see :func:`per_layer_settings`.

    Raises:
        ValueError: a setting of the layer belongs to another attention type.
    """
    overrides = dict(overrides or {})
    sites = (settings.get("collaborative_heads") or "none").split("_")
    collaborative = overrides.pop("collaborative", site in sites)
    attention_type = _type_of(collaborative, settings, overrides)
    defaults = {flag.argument: flag.default for flag in flags().values()}
    for name in sorted(defaults.keys() - {flag.argument for flag in attention_type.flags}):
        if overrides.pop(name, defaults[name]) not in (None, False, defaults[name]):
            raise ValueError(f"{name!r} is not a setting of {attention_type.type_name} heads")
    key_dim = settings.get(KEY_DIM_SETTINGS[site])
    source_width = settings["encoder_embed_dim"] if site == "cross" else None
    arguments = {
        "embed_dim": settings[f"{side_of(site)}_embed_dim"],
        "num_heads": settings[f"{side_of(site)}_attention_heads"],
        "key_dim": settings.get("key_dim") if key_dim is None else key_dim,
        "kdim": source_width,
        "vdim": source_width,
        "init": str(settings.get("attention_init") or "default"),
    }
    return attention_type, {**arguments, **attention_type.arguments(settings, overrides), **overrides}


def _type_of(collaborative: bool, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Type[AttentionLayer]:
    """The type whose flag is not at its default: for this layer alone, or else for the model; or the default type."""
    types = [attention_type for attention_type in ATTENTION_TYPES if attention_type.collaborative == collaborative]
    chosen_by = [(each, flag) for each in types for flag in each.flags if flag.name == each.chosen_by]
    for attention_type, flag in chosen_by:
        if overrides.get(flag.argument, flag.default) != flag.default:
            return attention_type
    for attention_type, flag in chosen_by:
        if flag.argument not in overrides and settings.get(flag.name, flag.default) != flag.default:
            return attention_type
    return types[0]


def uninitialized_layer(
    settings: Mapping[str, Any], site: str, overrides: Optional[Mapping[str, Any]] = None
) -> AttentionLayer:
    """A layer with uninitialized parameters, to count them; for arguments and errors see :func:`layer_at`."""
    attention_type, arguments = layer_at(settings, site, overrides)
    for flag in attention_type.flags:
        if not flag.persistent:
            arguments.pop(flag.argument)
    return on_meta_device(attention_type, arguments).to_empty(device="cpu")


@torch.no_grad()
def kv_cache_per_token(layer: AttentionLayer) -> int:
    """Size of the KV cache: numbers that decoding keeps per position of a row."""
    key = layer.q_proj.weight.new_empty(1, 1, layer.kdim)
    value = key if layer.vdim == layer.kdim else key.new_empty(1, 1, layer.vdim)
    return sum(tensor.numel() for tensor in layer.project(key, value) if tensor is not None)


def on_meta_device(attention_type: Type[AttentionLayer], arguments: Mapping[str, Any]) -> AttentionLayer:
    """A layer on torch's meta device. ValueError: inconsistent sizes."""
    with torch.device("meta"):
        return attention_type(**arguments).eval()

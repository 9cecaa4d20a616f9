"""The attention types, and the layer that the settings of a model describe at each of its sites.

A new attention type is a subclass of :class:`.AttentionLayer` in its own file, and an entry in :data:`ATTENTION_TYPES`.
"""

from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple, Type

import torch

from .collaborative import CollaborativeAttention
from .errors import AttentionError
from .grouped import GroupedAttention
from .latent import LatentAttention
from .layer import AttentionLayer
from .standard import StandardAttention

#: all attention types; a layer without further settings has the first collaborative or the first non-collaborative one
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

#: settings that a single layer may have after conversion or pruning (``attention_shapes``), and their types; all but
#: the first are arguments of the layer
LAYER_SETTINGS: Dict[str, type] = {
    "collaborative": bool,
    "num_heads": int,
    "head_dim": int,
    "key_dim": int,
    "scale": float,
    "query_bias": bool,
    "key_bias": bool,
    "value_bias": bool,
    "out_bias": bool,
    "value_heads": int,
    "content_bias": bool,
    "kv_heads": int,
    "kv_latent_dim": int,
}


def is_given(value: Any) -> bool:
    """Whether a setting without a default value is given: neither None nor False."""
    return value is not None and value is not False


def parse_sites(text: str, name: str = "--collaborative-heads") -> FrozenSet[str]:
    """The sites in a setting: names from :data:`SITES` joined by ``_`` in any order, or ``none``.

    Raises:
        AttentionError: other names, or a name twice; the message starts with ``name``.
    """
    sites = [] if text == "none" else str(text).split("_")
    if not set(sites) <= set(SITES) or len(set(sites)) != len(sites):
        raise AttentionError(
            f"{name} must be different sites among {', '.join(SITES)} joined by '_' (such as encoder_cross), or none; "
            f"got {text!r}"
        )
    return frozenset(sites)


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
        overrides: settings of this layer alone, see :data:`LAYER_SETTINGS`.

    Raises:
        ValueError: a setting of the layer belongs to another attention type.
    """
    overrides = dict(overrides or {})
    collaborative_sites = parse_sites(settings.get("collaborative_heads") or "none")
    attention_type = _type_of(overrides.pop("collaborative", site in collaborative_sites), settings, overrides)
    others = {argument for each in ATTENTION_TYPES for argument in each.settings} - set(attention_type.settings)
    for name in sorted(others & set(overrides)):
        if is_given(overrides.pop(name)):
            raise ValueError(f"{name!r} is not a setting of {attention_type.type_name} heads")
    key_dim = settings.get(KEY_DIM_SETTINGS[site])
    source_width = settings["encoder_embed_dim"] if site == "cross" else None
    arguments = {
        "embed_dim": settings[f"{side_of(site)}_embed_dim"],
        "num_heads": settings[f"{side_of(site)}_attention_heads"],
        "key_dim": settings.get("key_dim") if key_dim is None else key_dim,
        "kdim": source_width,
        "vdim": source_width,
        "init": settings.get("attention_init") or "default",
    }
    return attention_type, {**arguments, **attention_type.arguments(settings, overrides)}


def _type_of(collaborative: bool, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Type[AttentionLayer]:
    """The type that a setting chooses, for this layer alone or else for the model; or the default type."""
    types = [each for each in ATTENTION_TYPES if each.collaborative == collaborative]
    of_layer = [each for each in types if is_given(overrides.get(each.chosen_by))]
    others = [each for each in types if each.chosen_by and each.chosen_by not in overrides]
    of_model = [each for each in others if is_given(settings.get(each.settings[each.chosen_by]))]
    return (of_layer or of_model or types)[0]


def uninitialised_layer(
    settings: Mapping[str, Any], site: str, overrides: Optional[Mapping[str, Any]] = None
) -> AttentionLayer:
    """A layer with uninitialised parameters, to count them; for arguments and errors see :func:`layer_at`."""
    attention_type, arguments = layer_at(settings, site, overrides)
    arguments = {name: value for name, value in arguments.items() if name not in ("init", "mixing")}
    with torch.device("meta"):
        layer = attention_type(**arguments).eval()
    return layer.to_empty(device="cpu")


@torch.no_grad()
def kv_cache_per_token(layer: AttentionLayer) -> int:
    """Size of the KV cache: numbers that decoding keeps per position of a row."""
    key = layer.q_proj.weight.new_empty(1, 1, layer.kdim)
    value = key if layer.vdim == layer.kdim else key.new_empty(1, 1, layer.vdim)
    return sum(tensor.numel() for tensor in layer.project(key, value) if tensor is not None)

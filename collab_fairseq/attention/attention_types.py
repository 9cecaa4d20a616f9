"""The attention types: the one table that flags, checks, records, benchmarks, conversion and exports read.

A new attention type is a subclass of :class:`.AttentionLayer` in its own file, and a line in :data:`ATTENTION_TYPES`.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import torch

from .attention_type import Flag
from .collaborative import CollaborativeAttention
from .grouped import GroupedAttention
from .latent import LatentAttention
from .layer import AttentionLayer
from .standard import StandardAttention

#: what a layer's heads may be; the first of collaborative and of standard heads is what they are without any flag
ATTENTION_TYPES: List[Type[AttentionLayer]] = [
    CollaborativeAttention,
    StandardAttention,
    GroupedAttention,
    LatentAttention,
]

#: the attentions of a transformer: encoder self-attention, encoder–decoder attention, decoder self-attention
SITES = ("encoder", "cross", "decoder")
#: site → the setting of its key dim, where that is not ``key_dim``
KEY_DIMS = {site: f"{site}_key_dim" for site in SITES}

#: what any layer may have of its own, where conversion or pruning made it differ: whether its heads collaborate, and
#: arguments of :class:`.AttentionLayer`; with their types
_OF_ANY_LAYER = {
    "collaborative": bool, "num_heads": int, "head_dim": int, "key_dim": int, "scale": float,
    "query_bias": bool, "key_bias": bool, "value_bias": bool, "out_bias": bool,
}  # fmt: skip


def flags() -> Dict[str, Flag]:
    """The flags of all attention types, by name."""
    return {flag.name: flag for attention_type in ATTENTION_TYPES for flag in attention_type.flags}


def of_one_layer() -> Dict[str, Any]:
    """Settings of a single layer (``attention_shapes``) and their types."""
    return {**_OF_ANY_LAYER, **{flag.argument: flag.type for flag in flags().values() if flag.own}}


def kernels(types: Sequence[Type[AttentionLayer]]) -> Tuple[str, ...]:
    """The names of the kernels of these attention types, ``auto`` first."""
    return tuple(dict.fromkeys(["auto", *(name for attention_type in types for name in attention_type.kernels)]))


def side_of(site: str) -> str:
    """The stack of a site, which is what its queries are as wide as: ``encoder`` or ``decoder``."""
    return "encoder" if site == "encoder" else "decoder"


def layer_at(
    settings: Mapping[str, Any], site: str, own: Optional[Mapping[str, Any]] = None
) -> Tuple[Type[AttentionLayer], Dict[str, Any]]:
    """The attention type of a layer, and its arguments as far as parameters depend on them.

    Args:
        settings: of a model, by flat names: ``encoder_embed_dim``, ``key_dim``, ``kv_heads``, …
        site: of :data:`SITES`. own: what this layer has of its own, of :func:`of_one_layer`.

    Raises:
        ValueError: the layer has a setting that its attention type does not have.
    """
    own, side = dict(own or {}), side_of(site)
    collaborative = own.pop("collaborative", site in (settings.get("collaborative_heads") or "none").split("_"))
    types = [attention_type for attention_type in ATTENTION_TYPES if attention_type.collaborative == collaborative]
    chosen = [k for given in (own, settings) for k in types if k.chosen_by and given.get(k.chosen_by) is not None]
    attention_type = (chosen or types)[0]
    for name in {flag.argument for flag in flags().values()} - {flag.argument for flag in attention_type.flags}:
        if own.pop(name, None):
            raise ValueError(f"has {name!r}, but its heads are {attention_type.type_name}")
    key_dim, source = settings.get(KEY_DIMS[site]), settings["encoder_embed_dim"] if site == "cross" else None
    arguments = {
        "embed_dim": settings[f"{side}_embed_dim"],
        "num_heads": settings[f"{side}_attention_heads"],
        "key_dim": settings.get("key_dim") if key_dim is None else key_dim,
        "kdim": source,
        "vdim": source,
        "init": str(settings.get("attention_init") or "default"),
    }
    return attention_type, {**arguments, **attention_type.arguments(settings, own), **own}


def sized(settings: Mapping[str, Any], site: str, own: Optional[Mapping[str, Any]] = None) -> AttentionLayer:
    """A layer whose parameters are not initialised, to count them; arguments and errors: see :func:`layer_at`."""
    attention_type, arguments = layer_at(settings, site, own)
    for flag in attention_type.flags:
        if not flag.lasting:
            arguments.pop(flag.argument)
    return without_numbers(attention_type, arguments).to_empty(device="cpu")


@torch.no_grad()
def kv_cache_per_token(layer: AttentionLayer) -> int:
    """KV cache per token: the numbers that decoding keeps for each position of a row."""
    weight = layer.q_proj.weight
    key = weight.new_empty(1, 1, layer.kdim)
    entry = layer.project(key, key if layer.vdim == layer.kdim else weight.new_empty(1, 1, layer.vdim))
    return sum(kept.numel() for kept in entry if kept is not None)


def without_numbers(attention_type: Type[AttentionLayer], arguments: Mapping[str, Any]) -> AttentionLayer:
    """A layer on torch's meta device. Raises ValueError for sizes that do not fit."""
    with torch.device("meta"):
        return attention_type(**arguments).eval()

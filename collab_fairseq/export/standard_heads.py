"""Collaborative heads written as standard heads: what engines without them can compute, exactly.

Head i with the shared projections W_Q, W_K (D̃k rows), the mixing vector m_i and the content bias v_i has the scores

    [ (X W_Q ⊙ m_i)(Y W_K)ᵀ + 1 (Y v_i)ᵀ ] · scale  =  (X W_Q diag(m_i), 1)(Y W_K, Y v_i)ᵀ · scale

so it is a standard head with the queries W_Q diag(m_i) and a copy of the keys; the content bias takes one more
dimension, whose query is 1. Groups of heads that share keys or values get copies, and latents are multiplied out. Zeros
fill heads up to a width and layers up to a number of heads. What is given up is the small cache of keys or latents.
"""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.modules.attention import IncrementalAttention, IncrementalStandardAttention
from collab_fairseq.modules.sites import attention_layers

from .source import UnsupportedError


def needed_width(layer: IncrementalAttention) -> int:
    """Dimensions that a standard head needs to be any head of this layer."""
    return max(_key_width(layer), layer.head_dim)


def _key_width(layer: IncrementalAttention) -> int:
    if getattr(layer, "mixing", None) is None:
        return layer.key_dim // layer.num_heads
    return layer.key_dim + (layer.content_bias is not None)


def _queries_and_keys(layer: IncrementalAttention) -> Tuple[Tensor, Tensor]:
    """Queries (H, w, E + 1) and keys (H, w, kdim + 1) as of :func:`_affine`."""
    query = _affine(layer.q_proj)
    mixing = getattr(layer, "mixing", None)
    if mixing is None:
        return query.unflatten(0, (layer.num_heads, -1)), _of_each_head(layer, "k_proj")
    queries, keys = mixing.double()[..., None] * query, _affine(layer.k_proj).expand(layer.num_heads, -1, -1)
    if layer.content_bias is not None:
        one = torch.zeros_like(queries[:, :1])
        one[:, :, -1] = 1
        content = nn.functional.pad(layer.content_bias.double()[:, None], [0, 1])
        queries, keys = torch.cat([queries, one], dim=1), torch.cat([keys, content], dim=1)
    return queries, keys


def _of_each_head(layer: IncrementalAttention, name: str) -> Tensor:
    """The keys or values that each head reads, (H, w, input + 1), as of :func:`_affine`."""
    projection = _affine(getattr(layer, name))
    latent = getattr(layer, "latent_proj", None)
    if latent is not None:
        projection = torch.cat([projection[:, :-1] @ latent.weight.double(), projection[:, -1:]], dim=1)
    groups = layer.key_heads if name == "k_proj" else layer.value_heads
    return projection.unflatten(0, (groups, -1)).repeat_interleave(layer.num_heads // groups, dim=0)


def _affine(projection: Any) -> Tensor:
    """(output, input + 1) in float64: the weight, and the bias behind it, as of an input that is 1."""
    weight, bias = projection.weight.double(), projection.bias
    return torch.cat([weight, weight.new_zeros(len(weight), 1) if bias is None else bias.double()[:, None]], dim=1)


@torch.no_grad()
def as_standard(
    layer: IncrementalAttention, heads: int, width: Optional[int] = None, scale: Optional[float] = None
) -> IncrementalStandardAttention:
    """The same attention with standard heads; masks and gates become zeros.

    Args:
        layer: H heads, of either kind, in evaluation mode.
        heads: so many, at least H.
        width: dimensions of a head, for keys and values; default :func:`needed_width`.
        scale: of the scores, the rest going into the queries; default the layer's.

    Raises:
        UnsupportedError: the heads do not fit into this width.
    """
    width = needed_width(layer) if width is None else width
    if layer.num_heads > heads:
        raise UnsupportedError(f"it has {layer.num_heads} heads, but there is room for {heads}")
    if needed_width(layer) > width:
        content = " and its content bias" if _key_width(layer) > layer.key_dim else ""
        kind = f"key dim {layer.key_dim}{content}" if _key_width(layer) > layer.head_dim else "values"
        needed = needed_width(layer)
        raise UnsupportedError(f"heads of {needed} dimensions are needed for its {kind}, but they have {width}")
    scale = layer.scale if scale is None else scale
    rest = layer.scale / scale
    made = IncrementalStandardAttention(
        layer.embed_dim, heads, heads * width, kdim=layer.kdim, vdim=layer.vdim, head_dim=width, scale=scale,
        cross=layer.cross,
    )  # fmt: skip
    query, key = _queries_and_keys(layer)
    out = _affine(layer.out_proj)
    of_heads = out[:, :-1].unflatten(1, (layer.num_heads, -1)).movedim(0, 2)  # (H, dv, E)
    multiplier = layer.multiplier()
    if multiplier is not None:
        of_heads = of_heads * multiplier.double()[:, None, None]

    def fill(tensor: Tensor) -> Tensor:
        """(H, w, …) → (heads · width, …)"""
        missing = [0, 0, 0, width - tensor.size(1), 0, heads - tensor.size(0)]
        return nn.functional.pad(tensor, missing).flatten(0, 1)

    parameters = {"out_proj.weight": fill(of_heads).T, "out_proj.bias": out[:, -1]}
    for name, own in (("q_proj", query * rest), ("k_proj", key), ("v_proj", _of_each_head(layer, "v_proj"))):
        filled = fill(own)
        parameters.update({f"{name}.weight": filled[:, :-1], f"{name}.bias": filled[:, -1]})
    made.to(layer.q_proj.weight.dtype).load_state_dict(parameters)
    return made.eval()


def standard_layers(model: Any, config: Any = None) -> Dict[str, Any]:
    """Place → standard attention, for :func:`~collab_fairseq.modules.sites.swapped`; equally many heads on each side.

    Args:
        config: of fairseq's transformer, whose heads they are to be: H, width E / H, scale (E / H)^-0.5. Default: the
            width that each layer needs, and its own scale.

    Raises:
        UnsupportedError: heads of a layer, which is named, do not fit.
    """
    layers = attention_layers(model)
    made = {}
    for place, layer in layers.items():
        side = "encoder" if place.startswith("encoder") else "decoder"
        heads = max(other.num_heads for name, other in layers.items() if name.startswith("enc") == (side == "encoder"))
        width = None
        if config is not None:
            heads = getattr(config, side).attention_heads
            width = getattr(config, side).embed_dim // heads
        try:
            made[place] = as_standard(layer, heads, width, None if width is None else width**-0.5)
        except UnsupportedError as error:
            raise UnsupportedError(f"{place}: {error}") from error
    return made

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

from .source import ExportError


def needed_width(layer: IncrementalAttention) -> int:
    """Dimensions that a standard head needs to be any head of this layer."""
    return max(_key_width(layer), layer.head_dim)


def _key_width(layer: IncrementalAttention) -> int:
    if getattr(layer, "mixing", None) is None:
        return layer.key_dim // layer.num_heads
    return layer.key_dim + (layer.content_bias is not None)


def _queries_and_keys(layer: IncrementalAttention) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query weights (H, w, E) and biases (H, w), key weights (H, w, kdim) and biases (H, w) in float64."""
    heads = layer.num_heads
    query, query_bias = _affine(layer.q_proj)
    mixing = getattr(layer, "mixing", None)
    if mixing is None:
        split = query.unflatten(0, (heads, -1)), query_bias.unflatten(0, (heads, -1))
        return *split, *_of_each_head(layer, "k_proj")
    key, key_bias = _affine(layer.k_proj)
    mixing = mixing.double()
    queries, biases = mixing[..., None] * query, mixing * query_bias
    keys, key_biases = key.expand(heads, -1, -1), key_bias.expand(heads, -1)
    if layer.content_bias is not None:
        one = biases.new_ones(heads, 1)
        queries, biases = _grow(queries, 1, 1), torch.cat([biases, one], dim=1)
        keys = torch.cat([keys, layer.content_bias.double()[:, None]], dim=1)
        key_biases = _grow(key_biases, 1, 1)
    return queries, biases, keys, key_biases


def _of_each_head(layer: IncrementalAttention, name: str) -> Tuple[Tensor, Tensor]:
    """Weights (H, w, input) and biases (H, w) of the keys or values that each head reads."""
    weight, bias = _affine(getattr(layer, name))
    latent = getattr(layer, "latent_proj", None)
    if latent is not None:
        weight = weight @ latent.weight.double()
    groups = layer.key_heads if name == "k_proj" else layer.value_heads
    members = layer.num_heads // groups
    split = [tensor.unflatten(0, (groups, -1)).repeat_interleave(members, dim=0) for tensor in (weight, bias)]
    return split[0], split[1]


def _affine(projection: Any) -> Tuple[Tensor, Tensor]:
    weight = projection.weight.double()
    return weight, weight.new_zeros(weight.size(0)) if projection.bias is None else projection.bias.double()


def _grow(tensor: Tensor, dim: int, by: int) -> Tensor:
    """Zeros behind the last index of a dimension."""
    return nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [0, by])


@torch.no_grad()
def as_standard(
    layer: IncrementalAttention, heads: Optional[int] = None, width: Optional[int] = None, scale: Optional[float] = None
) -> IncrementalStandardAttention:
    """The same attention with standard heads; masks and gates become zeros.

    Args:
        layer: H heads, of either kind, in evaluation mode.
        heads: as many at least; default H.
        width: dimensions of a head, for keys and values; default :func:`needed_width`.
        scale: of the scores, the rest going into the queries; default the layer's.

    Raises:
        ExportError: the heads do not fit into this width.
    """
    heads = layer.num_heads if heads is None else heads
    width = needed_width(layer) if width is None else width
    if layer.num_heads > heads:
        raise ExportError(f"it has {layer.num_heads} heads, but there is room for {heads}")
    if needed_width(layer) > width:
        content = " and its content bias" if _key_width(layer) > layer.key_dim else ""
        kind = f"key dim {layer.key_dim}{content}" if _key_width(layer) > layer.head_dim else "values"
        raise ExportError(f"heads of {needed_width(layer)} dimensions are needed for its {kind}, but they have {width}")
    scale = layer.scale if scale is None else scale
    rest = layer.scale / scale
    made = IncrementalStandardAttention(
        layer.embed_dim, heads, heads * width, kdim=layer.kdim, vdim=layer.vdim, head_dim=width, scale=scale,
        cross=layer.cross,
    )  # fmt: skip
    query, query_bias, key, key_bias = _queries_and_keys(layer)
    value, value_bias = _of_each_head(layer, "v_proj")
    out, out_bias = _affine(layer.out_proj)
    out = out.unflatten(1, (layer.num_heads, -1))  # (E, H, dv)
    multiplier = layer.multiplier()
    if multiplier is not None:
        out = out * multiplier.double()[:, None]

    def fill(tensor: Tensor, head: int = 0) -> Tensor:
        """(H, w, …) → (heads · width, …); the number of the dimension of heads is ``head``."""
        wide = _grow(tensor, head + 1, width - tensor.size(head + 1))
        return _grow(wide, head, heads - tensor.size(head)).flatten(head, head + 1)

    parameters: Dict[str, Tensor] = {
        "q_proj.weight": fill(query * rest), "q_proj.bias": fill(query_bias * rest),
        "k_proj.weight": fill(key), "k_proj.bias": fill(key_bias),
        "v_proj.weight": fill(value), "v_proj.bias": fill(value_bias),
        "out_proj.weight": fill(out, 1), "out_proj.bias": out_bias,
    }  # fmt: skip
    made.to(layer.q_proj.weight.dtype).load_state_dict(parameters)
    return made.eval()


def standard_layers(model: Any, config: Any = None) -> Dict[str, Any]:
    """Place → standard attention, for :func:`~collab_fairseq.modules.sites.swapped`; equally many heads on each side.

    Args:
        config: of fairseq's transformer, whose heads they are to be: H, width E / H, scale (E / H)^-0.5. Default: the
            width that each layer needs, and its own scale.

    Raises:
        ExportError: heads of a layer, which is named, do not fit.
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
        except ExportError as error:
            raise ExportError(f"{place}: {error}") from error
    return made

"""Conversion of all attention types to equivalent standard heads (:meth:`.AttentionLayer.head_maps`).

Head i with the shared projections W_Q, W_K (D̃k rows), the mixing vector m_i and the content bias v_i has the logits

    [ (X W_Q ⊙ m_i)(Y W_K)ᵀ + 1 (Y v_i)ᵀ ] · scale  =  (X W_Q diag(m_i), 1)(Y W_K, Y v_i)ᵀ · scale

It equals a standard head with the queries X W_Q diag(m_i) and its own copy of the keys; the content bias takes one more
dimension, in which every query is 1. Groups of heads that share keys or values get copies. Zeros pad heads to a common
width and layers to a common number of heads. The smaller cache of shared keys is lost.
"""

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionError, StandardAttention
from collab_fairseq.attention.factors import affine
from collab_fairseq.modules.attention import IncrementalAttention, incremental
from collab_fairseq.modules.sites import attention_layers
from fairseq_modern.errors import UserError


@torch.no_grad()
def as_standard(
    layer: IncrementalAttention, heads: int, width: Optional[int] = None, scale: Optional[float] = None
) -> IncrementalAttention:
    """An equivalent layer with standard heads; masked and gated heads get zero weights.

    Args:
        layer: H heads of any type, in evaluation mode.
        heads: number of heads of the result, at least H.
        width: dimensions of a head, for keys and values; default: as many as the heads need.
        scale: scale of the logits, the queries absorbing the difference; default: that of the layer.

    Raises:
        UserError: ``heads`` or ``width`` is too small.
    """
    query, key, value = layer.head_maps()
    needed = max(query.size(1), value.size(1))
    width = needed if width is None else width
    if layer.num_heads > heads:
        raise UserError(f"the number of heads must be at most {heads}; got {layer.num_heads}")
    if needed > width:
        reason = "its values"
        if query.size(1) > value.size(1):
            content = " and its content bias" if query.size(1) > layer.key_dim else ""
            reason = f"its key dimension {layer.key_dim}{content}"
        raise UserError(f"{reason} must fit into heads of {width} dimensions; it needs {needed}")
    scale = layer.scale if scale is None else scale
    sizes = {"kdim": layer.kdim, "vdim": layer.vdim, "head_dim": width}
    standard_class: Any = incremental(StandardAttention)
    standard = standard_class(layer.embed_dim, heads, heads * width, **sizes, scale=scale, cross=layer.cross)
    out = affine(layer.out_proj)
    of_heads = out[:, :-1].unflatten(1, (layer.num_heads, -1)).movedim(0, 2)  # (H, dv, E)
    multiplier = layer.multiplier()
    if multiplier is not None:
        of_heads = of_heads * multiplier.double()[:, None, None]

    def pad(tensor: Tensor) -> Tensor:
        """(H, w, …) → (heads · width, …)"""
        missing = [0, 0, 0, width - tensor.size(1), 0, heads - tensor.size(0)]
        return nn.functional.pad(tensor, missing).flatten(0, 1)

    parameters = {"out_proj.weight": pad(of_heads).T, "out_proj.bias": out[:, -1]}
    for name, projection in (("q_proj", query * (layer.scale / scale)), ("k_proj", key), ("v_proj", value)):
        padded = pad(projection)
        parameters[f"{name}.weight"] = padded[:, :-1]
        parameters[f"{name}.bias"] = padded[:, -1]
    standard.to(layer.q_proj.weight.dtype).load_state_dict(parameters)
    return standard.eval()  # type: ignore[no-any-return]


def standard_layers(model: Any, config: Any = None) -> Dict[str, IncrementalAttention]:
    """``site.layer`` → equivalent standard attention, for :func:`~collab_fairseq.modules.sites.swapped`.

    All layers of the encoder have the same number of heads, and so have all of the decoder.

    Args:
        config: settings of fairseq's transformer, which determine the heads: H, width E / H, scale (E / H)^-0.5.
            Default: every layer has the head width that it needs, and its own scale.

    Raises:
        UserError: the heads of a layer do not fit; the message names the layer.
    """
    layers = attention_layers(model)
    standard = {}
    for layer_id, layer in layers.items():
        in_encoder = layer_id.startswith("encoder")
        if config is None:
            side = [other for name, other in layers.items() if name.startswith("encoder") == in_encoder]
            heads = max(other.num_heads for other in side)
            width = scale = None
        else:
            sizes = config.encoder if in_encoder else config.decoder
            heads = sizes.attention_heads
            width = sizes.embed_dim // heads
            scale = width**-0.5
        try:
            standard[layer_id] = as_standard(layer, heads, width, scale)
        except (UserError, AttentionError) as error:
            raise UserError(f"{layer_id}: {error}") from error
    return standard

"""All attention types written exactly as standard heads (:meth:`.AttentionType.head_maps`), which any engine computes.

Head i with the shared projections W_Q, W_K (D̃k rows), the mixing vector m_i and the content bias v_i has the scores

    [ (X W_Q ⊙ m_i)(Y W_K)ᵀ + 1 (Y v_i)ᵀ ] · scale  =  (X W_Q diag(m_i), 1)(Y W_K, Y v_i)ᵀ · scale

so it is a standard head with the queries W_Q diag(m_i) and a copy of the keys; the content bias takes one more
dimension, whose query is 1. Groups of heads that share keys or values get copies. Zeros fill heads up to a width and
layers up to a number of heads. What is given up is the small cache.
"""

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from collab_fairseq.attention import StandardAttention
from collab_fairseq.attention.factors import ReparamError, affine
from collab_fairseq.modules.attention import IncrementalAttention, incremental
from collab_fairseq.modules.sites import attention_layers

from .source import UnsupportedError


@torch.no_grad()
def as_standard(
    layer: IncrementalAttention, heads: int, width: Optional[int] = None, scale: Optional[float] = None
) -> IncrementalAttention:
    """The same attention with standard heads; masks and gates become zeros.

    Args:
        layer: H heads of any kind, in evaluation mode.
        heads: so many, at least H.
        width: dimensions of a head, for keys and values; default: what they need.
        scale: of the scores, the rest going into the queries; default the layer's.

    Raises:
        UnsupportedError: the heads do not fit into this width.
    """
    query, key, value = layer.head_maps()
    needed = max(query.size(1), value.size(1))
    width = needed if width is None else width
    if layer.num_heads > heads:
        raise UnsupportedError(f"it has {layer.num_heads} heads, but there is room for {heads}")
    if needed > width:
        content = " and its content bias" if query.size(1) > layer.key_dim else ""
        kind = f"key dim {layer.key_dim}{content}" if query.size(1) > value.size(1) else "values"
        raise UnsupportedError(f"heads of {needed} dimensions are needed for its {kind}, but they have {width}")
    scale = layer.scale if scale is None else scale
    rest = layer.scale / scale
    made: IncrementalAttention = incremental(StandardAttention)(
        layer.embed_dim, heads, heads * width, kdim=layer.kdim, vdim=layer.vdim, head_dim=width, scale=scale,
        cross=layer.cross,
    )  # fmt: skip
    out = affine(layer.out_proj)
    of_heads = out[:, :-1].unflatten(1, (layer.num_heads, -1)).movedim(0, 2)  # (H, dv, E)
    multiplier = layer.multiplier()
    if multiplier is not None:
        of_heads = of_heads * multiplier.double()[:, None, None]

    def fill(tensor: Tensor) -> Tensor:
        """(H, w, …) → (heads · width, …)"""
        missing = [0, 0, 0, width - tensor.size(1), 0, heads - tensor.size(0)]
        return nn.functional.pad(tensor, missing).flatten(0, 1)

    parameters = {"out_proj.weight": fill(of_heads).T, "out_proj.bias": out[:, -1]}
    for name, own in (("q_proj", query * rest), ("k_proj", key), ("v_proj", value)):
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
        except (UnsupportedError, ReparamError) as error:
            raise UnsupportedError(f"{place}: {error}") from error
    return made

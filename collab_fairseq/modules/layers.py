"""fairseq's transformer layers with the attention of :mod:`.attention`."""

from typing import Any, Optional

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import nn

from collab_fairseq.attention.projections import are_plain

from .attention import IncrementalAttention, build_attention

# The encoder layer of fairseq 0.12.2 keeps a second copy of its weights for a fast path that recent PyTorch versions
# cannot run. Unpatched, it would translate with untrained weights.
if "load_to_BT" in TransformerEncoderLayerBase.__init__.__code__.co_names:
    raise ImportError(
        "fairseq's encoder layer is not patched: the start-up hook fairseq_modern is not active in this Python. "
        "Install this project with pip (which installs the hook), and leave FAIRSEQ_MODERN unset."
    )


class CollabEncoderLayer(TransformerEncoderLayerBase):
    """Encoder layer with the self-attention that the config sets.

    Args:
        cfg: a ``TransformerCollabConfig``.
        layer: index of this layer, from 0.
    """

    def __init__(self, cfg: Any, layer: int, return_fc: bool = False) -> None:
        self._number = layer  # before Module.__init__, which calls build_self_attention
        super().__init__(cfg, return_fc=return_fc)

    def build_self_attention(self, embed_dim: int, cfg: Any) -> IncrementalAttention:
        return build_attention(cfg, f"encoder.{self._number}")


class CollabDecoderLayer(TransformerDecoderLayerBase):
    """Decoder layer with the self-attention and cross-attention that the config sets.

    Args:
        cfg, layer: see :class:`CollabEncoderLayer`.
        no_encoder_attn: build no cross-attention.
    """

    def __init__(self, cfg: Any, layer: int, no_encoder_attn: bool = False) -> None:
        self._number = layer
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim: int, cfg: Any, **_: Any) -> IncrementalAttention:
        return build_attention(cfg, f"decoder.{self._number}")

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> IncrementalAttention:
        return build_attention(cfg, f"cross.{self._number}")


def linear_output(decoder: Any) -> Optional[nn.Linear]:
    """The output projection of a decoder if logits are a linear function of its features; None for other decoders.

    They are in fairseq's transformers, without adaptive softmax, hooks or adapters.
    """
    is_transformer = isinstance(decoder, TransformerDecoderBase)
    if not is_transformer or type(decoder).output_layer is not TransformerDecoderBase.output_layer:
        return None
    layer = decoder.output_projection  # None with adaptive softmax
    return layer if layer is not None and are_plain(layer) else None

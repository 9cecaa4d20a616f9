"""fairseq's transformer layers with the attention of :mod:`.attention`; everything else is fairseq's."""

from typing import Any, Dict

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import nn

from .attention import IncrementalAttention, build_attention
from .fairseq_compat import SURPLUS

# fairseq 0.12.2's encoder layer, as released, keeps a second copy of its weights for a fast path that newer torch
# cannot run; it would translate with weights that were never trained
if "load_to_BT" in TransformerEncoderLayerBase.__init__.__code__.co_names:
    raise ImportError(
        "fairseq's encoder layer is not patched: the start-up hook fairseq_modern is not at work in this Python. "
        "Install this project with pip (which installs the hook), and leave FAIRSEQ_MODERN unset."
    )


class CollabEncoderLayer(TransformerEncoderLayerBase):
    """Encoder layer whose self-attention is as the config says.

    Args:
        cfg: a ``TransformerCollabConfig``. layer: number of this layer, from 0.
    """

    def __init__(self, cfg: Any, layer: int, return_fc: bool = False) -> None:
        self._number = layer  # plain attributes may precede Module.__init__, which calls build_self_attention
        super().__init__(cfg, return_fc=return_fc)

    def build_self_attention(self, embed_dim: int, cfg: Any) -> IncrementalAttention:
        return build_attention(cfg, self._number, "encoder")

    def _load_from_state_dict(self, state_dict: Dict[str, Any], prefix: str, *rest: Any) -> None:
        """As any module: fairseq's layer joins the weights of its attention, which must be of one width for that."""
        for name in SURPLUS:
            state_dict.pop(prefix + name, None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)


class CollabDecoderLayer(TransformerDecoderLayerBase):
    """Decoder layer whose self- and cross-attention are as the config says.

    Args:
        cfg, layer: see :class:`CollabEncoderLayer`. no_encoder_attn: no cross-attention.
    """

    def __init__(self, cfg: Any, layer: int, no_encoder_attn: bool = False) -> None:
        self._number = layer
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim: int, cfg: Any, **_: Any) -> IncrementalAttention:
        return build_attention(cfg, self._number, "decoder")

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> IncrementalAttention:
        return build_attention(cfg, self._number, "cross")

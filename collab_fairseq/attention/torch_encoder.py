"""What ``torch.nn``'s encoder reads of the attention in its layers, besides calling it."""

from typing import Any


class _Overriding:
    """Says that it overrides torch's functions, which no one calls on it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


class WithoutFastPath:
    """Mixin of attention that may be the ``self_attn`` of a ``torch.nn.TransformerEncoderLayer``.

    In evaluation torch's encoder computes standard heads itself, from the joined weights of its ``self_attn``. It calls
    a layer without a joined bias, or with weights that override torch's functions, instead.
    """

    batch_first = True
    in_proj_bias = None
    in_proj_weight = _Overriding()
    _qkv_same_embed_dim = False

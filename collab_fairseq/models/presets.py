"""Named architectures. Each sets its own values and leaves the others to fairseq's preset of the same size."""

from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy
from omegaconf import OmegaConf

from . import transformer_collab as _model  # noqa: F401  (registered before its presets)
from .arguments import flatten, inherit_attention
from .config import OWN_FIELDS, TransformerCollabConfig

_NAME = "transformer_collab"


def _defaults(args: Any, **values: Any) -> None:
    """Set the values that neither the command line nor the Hydra config sets."""
    if OmegaConf.is_config(args):
        flatten(args)
    inherit_attention(args)
    default = TransformerCollabConfig()
    values = {**{name: getattr(default, name) for name in OWN_FIELDS}, **values}
    for name, value in values.items():
        if not hasattr(args, name):
            setattr(args, name, value)


@register_model_architecture(_NAME, "transformer_collab")
def transformer_collab(args: Any) -> None:
    """The base model of Vaswani et al. (2017) and of the paper: 6+6 layers, width 512, FFN 2048, 8 heads."""
    _defaults(args)
    transformer_legacy.base_architecture(args)


@register_model_architecture(_NAME, "transformer_collab_big")
def transformer_collab_big(args: Any) -> None:
    """The big model of Vaswani et al. (2017): width 1024, FFN 4096, 16 heads, dropout 0.3."""
    _defaults(args)
    transformer_legacy.transformer_vaswani_wmt_en_de_big(args)


@register_model_architecture(_NAME, "transformer_collab_iwslt_de_en")
def transformer_collab_iwslt_de_en(args: Any) -> None:
    """fairseq's IWSLT14 size: 6+6 layers, width 512, FFN 1024, 4 heads."""
    _defaults(args)
    transformer_legacy.transformer_iwslt_de_en(args)


@register_model_architecture(_NAME, "transformer_collab_tiny")
def transformer_collab_tiny(args: Any) -> None:
    """The size for Multi30k and trial runs: 4+4 layers, width 128, FFN 256, 4 heads."""
    sizes = {"embed_dim": 128, "ffn_embed_dim": 256, "layers": 4, "attention_heads": 4}
    _defaults(args, **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()})
    transformer_legacy.base_architecture(args)

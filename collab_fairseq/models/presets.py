"""Named architectures. Each sets its own values and leaves the others to fairseq's preset of the same size."""

import copy
import functools
from typing import Any, Callable

from fairseq import models
from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy
from omegaconf import OmegaConf, open_dict

from .arguments import flatten, inherit_attention
from .config import OWN_DEFAULTS
from .transformer_collab import TransformerCollabModel  # registered before its presets

_NAME = "transformer_collab"


def _flat_for_presets(build_model: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's ``build_model``, in which presets, also of users, find Hydra's nested settings under flat names.

    A preset sets what is not set: it must see ``encoder: {layers: 2}`` as ``encoder_layers``, as on the command line.
    """

    @functools.wraps(build_model)
    def build(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        name = cfg.get("_name") if OmegaConf.is_config(cfg) else None
        model_class = models.ARCH_MODEL_REGISTRY.get(name) or models.MODEL_REGISTRY.get(name)
        if isinstance(model_class, type) and issubclass(model_class, TransformerCollabModel):
            with open_dict(cfg):
                flatten(cfg, others=model_class is not TransformerCollabModel)
        return build_model(cfg, *args, **kwargs)

    return build


models.build_model = _flat_for_presets(models.build_model)


def _defaults(args: Any, **values: Any) -> None:
    """Set the values that neither the command line nor the Hydra config sets."""
    inherit_attention(args)
    for name, value in {**copy.deepcopy(OWN_DEFAULTS), **values}.items():
        if not hasattr(args, name):
            setattr(args, name, value)


@register_model_architecture(_NAME, "transformer_collab")
def transformer_collab(args: Any) -> None:
    """The base model of Vaswani et al. (2017) and of the paper: 6+6 layers, d_model 512, feed-forward 2048, 8 heads."""
    _defaults(args)
    transformer_legacy.base_architecture(args)


@register_model_architecture(_NAME, "transformer_collab_big")
def transformer_collab_big(args: Any) -> None:
    """The big model of Vaswani et al. (2017): d_model 1024, feed-forward 4096, 16 heads, dropout 0.3."""
    _defaults(args)
    transformer_legacy.transformer_vaswani_wmt_en_de_big(args)


@register_model_architecture(_NAME, "transformer_collab_iwslt_de_en")
def transformer_collab_iwslt_de_en(args: Any) -> None:
    """fairseq's IWSLT14 size: 6+6 layers, d_model 512, feed-forward 1024, 4 heads."""
    _defaults(args)
    transformer_legacy.transformer_iwslt_de_en(args)


@register_model_architecture(_NAME, "transformer_collab_tiny")
def transformer_collab_tiny(args: Any) -> None:
    """The size for Multi30k and trial runs: 4+4 layers, d_model 128, feed-forward 256, 4 heads."""
    sizes = {"embed_dim": 128, "ffn_embed_dim": 256, "layers": 4, "attention_heads": 4}
    _defaults(args, **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()})
    transformer_legacy.base_architecture(args)

"""Configuration of ``transformer_collab``: fairseq's transformer config and five flags.

The model is registered *without* this dataclass: fairseq loses nested flags (``--encoder-layers``) of models registered
with one. Flags, presets and Hydra configs all become a flat namespace first (:func:`flatten`), then this config.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from collab_fairseq.modules.settings import (
    KERNELS,
    KERNELS_OF_STANDARD_HEADS,
    MIXINGS,
    SITES,
    AttentionSettings,
    ConfigurationError,
    parse_shapes,
    parse_sites,
)

_SUB_CONFIGS = ("encoder", "decoder", "quant_noise")


@dataclass
class TransformerCollabConfig(TransformerConfig):
    collaborative_heads: str = field(
        default="encoder_cross_decoder",
        metadata={"help": f"sites with collaborative heads: {', '.join(SITES)}, joined by '_' in any order, or none"},
    )
    key_dim: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of the query and key projections of every attention: shared by all heads where they "
            "collaborate, divided among them where they do not (default: the embedding width)"
        },
    )
    mixing_init: ChoiceEnum(list(MIXINGS)) = field(  # type: ignore[valid-type]
        default="xavier", metadata={"help": "initial mixing matrix of collaborative heads"}
    )
    attention_content_bias: bool = field(
        default=False, metadata={"help": "collaborative heads have a content bias (eq. 13 of the paper)"}
    )
    attention_kernel: ChoiceEnum(list(KERNELS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "how attention is computed: bmm (plain), head_loop (heads one after the other, for CPUs), "
            "sdpa (torch's fused attention), or auto, the fastest for device, type and size; same results"
        },
    )
    # written by conversion and pruning, typed by nobody: {"cross.3": {"key_dim": 96, "scale": 0.125}, …}
    attention_shapes: Dict[str, Any] = field(default_factory=dict)

    def _get_all_attributes(self) -> List[str]:
        """Fields that become command-line flags."""
        return [name for name in super()._get_all_attributes() if name != "attention_shapes"]


def flatten(cfg: DictConfig) -> None:
    """Turn the nested keys of a Hydra model config into fairseq's flat names, in place.

    ``encoder: {layers: 2}`` becomes ``encoder_layers: 2``, so that presets and checkpoints know one form.

    Raises:
        ConfigurationError: the same value is given in both forms.
    """
    for name in _SUB_CONFIGS:
        nested = cfg.pop(name, None)
        for key, value in (nested or {}).items():
            flat = f"{name}_{key}"
            if flat in cfg:
                raise ConfigurationError(f"model.{name}.{key} and model.{flat} are the same; give one of them")
            cfg[flat] = value


def resolve(args: Any) -> TransformerCollabConfig:
    """The config of a namespace (command line, checkpoint) or of a flattened Hydra config, checked.

    Raises:
        ConfigurationError: values that cannot be, before anything is built.
    """
    if isinstance(args, TransformerCollabConfig):
        return args
    if OmegaConf.is_config(args):
        args = Namespace(**dict(OmegaConf.to_container(args, resolve=True)))  # type: ignore[arg-type]
    _check_flags(args)
    args = Namespace(**vars(args))
    for name in ("encoder_layers_to_keep", "decoder_layers_to_keep"):
        keep = getattr(args, name, None)
        if isinstance(keep, (list, tuple)):  # the command line gives a list where fairseq's model wants "0,2,4"
            setattr(args, name, ",".join(map(str, keep)))
    cfg: TransformerCollabConfig = TransformerCollabConfig.from_namespace(args)
    _check_sizes(cfg)
    return cfg


def attention_settings(cfg: TransformerCollabConfig) -> AttentionSettings:
    """What the config says of attention."""
    return AttentionSettings(
        collaborative=parse_sites(cfg.collaborative_heads),
        key_dim=cfg.key_dim,
        mixing=str(cfg.mixing_init),
        content_bias=cfg.attention_content_bias,
        dropout=cfg.attention_dropout,
        kernel=str(cfg.attention_kernel),
        shapes=parse_shapes(cfg.attention_shapes),
    )


def _check_flags(args: Namespace) -> None:
    mixing = getattr(args, "mixing_init", "xavier")
    if mixing not in MIXINGS:
        raise ConfigurationError(f"--mixing-init must be one of {', '.join(MIXINGS)}, but is {mixing!r}")
    kernel = getattr(args, "attention_kernel", "auto")
    if kernel not in KERNELS:
        raise ConfigurationError(f"--attention-kernel must be one of {', '.join(KERNELS)}, but is {kernel!r}")
    for side in ("encoder", "decoder"):
        if getattr(args, f"{side}_xformers_att_config", None) is not None:
            raise ConfigurationError(f"--{side}-xformers-att-config is not an option of transformer_collab")


def _check_sizes(cfg: TransformerCollabConfig) -> None:
    """Sizes that no layer could be built with, said in the words of the command line."""
    sites = parse_sites(cfg.collaborative_heads)
    if not sites and not cfg.attention_shapes and str(cfg.attention_kernel) not in KERNELS_OF_STANDARD_HEADS:
        raise ConfigurationError(
            f"--attention-kernel {cfg.attention_kernel} computes collaborative heads, "
            f"but --collaborative-heads is none; choose one of {', '.join(KERNELS_OF_STANDARD_HEADS)}"
        )
    if cfg.key_dim is not None and cfg.key_dim < 1:
        raise ConfigurationError(f"--key-dim must be positive, but is {cfg.key_dim}")
    for site in SITES:
        side = "encoder" if site == "encoder" else "decoder"
        sub = cfg.encoder if site == "encoder" else cfg.decoder
        heads, width = sub.attention_heads, sub.embed_dim
        key_dim = width if cfg.key_dim is None else cfg.key_dim
        if width % heads != 0:
            raise ConfigurationError(
                f"--{side}-embed-dim must be divisible by --{side}-attention-heads, but they are {width} and {heads}"
            )
        if site not in sites and key_dim % heads != 0:
            raise ConfigurationError(
                f"--key-dim must be divisible by the {heads} standard heads of {site} attention, but is {key_dim}; "
                f"choose a multiple of {heads}, or collaborative heads there (--collaborative-heads …{site}…)"
            )
        if site in sites and str(cfg.mixing_init) == "blocks" and key_dim < heads:
            raise ConfigurationError(
                f"--mixing-init blocks gives each of the {heads} heads a key dimension of its own, "
                f"but --key-dim is {key_dim}"
            )

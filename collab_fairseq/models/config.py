"""Configuration of ``transformer_collab``: fairseq's transformer config and flags of its own.

The model is registered *without* this dataclass: fairseq loses nested flags (``--encoder-layers``) of models registered
with one. Flags, presets and Hydra configs all become a flat namespace first (:func:`flatten`), then this config.
"""

import os
from argparse import Namespace
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Dict, List, Optional, get_args, get_type_hints

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from collab_fairseq.modules.gates import OPEN
from collab_fairseq.modules.heads import check_heads, parse_heads
from collab_fairseq.modules.settings import (
    KERNELS,
    KERNELS_OF_STANDARD_HEADS,
    MIXINGS,
    MIXINGS_OF_BLOCKS,
    SITES,
    AttentionSettings,
    ConfigurationError,
    parse_shapes,
    parse_sites,
)
from collab_fairseq.modules.stock import SUB_CONFIGS

from .kept_layers import keep_layers


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
    value_heads: Optional[int] = field(
        default=None,
        metadata={
            "help": "collaborative heads share values, too, in this many groups of neighbouring heads, so that "
            "decoding caches fewer numbers (default: every head has values of its own)"
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
    mask_heads: Optional[str] = field(
        default=None,
        metadata={
            "help": "heads whose output is zero: E (encoder), A (encoder-decoder) or D (decoder), layer and heads, "
            "counted from 1; several separated by blanks, such as 'E:1:3,5 A:2:1'"
        },
    )
    head_gates: str = field(
        default="none",
        metadata={
            "help": "sites whose heads have stochastic gates (for the criterion "
            "label_smoothed_cross_entropy_with_gates), as in --collaborative-heads"
        },
    )
    head_gates_init: float = field(
        default=2.4,
        metadata={"help": f"log alpha that the gates start from; from {OPEN:.2f} on a mean gate is exactly open"},
    )
    head_gates_freeze_decoder: bool = field(
        default=False,
        metadata={
            "help": "train no parameter of the decoder, nor embeddings that it shares, so that the encoder's "
            "gates are not made up for there"
        },
    )
    attention_from: Optional[str] = field(
        default=None,
        metadata={
            "help": "take --collaborative-heads, --key-dim, --attention-content-bias and what single layers have of "
            "their own from this checkpoint; to train on what `collab reparam` or `collab heads prune` has made"
        },
    )
    # written by conversion and pruning, typed by nobody: {"cross.3": {"key_dim": 96, "scale": 0.125}, …}
    attention_shapes: Dict[str, Any] = field(default_factory=dict)

    def _get_all_attributes(self) -> List[str]:
        """Fields that become command-line flags."""
        return [name for name in super()._get_all_attributes() if name != "attention_shapes"]


#: what this config has beyond fairseq's
OWN_FIELDS = tuple(
    f.name for f in fields(TransformerCollabConfig) if f.name not in TransformerConfig.__dataclass_fields__
)


def flatten(cfg: DictConfig) -> None:
    """Turn the nested keys of a Hydra model config into fairseq's flat names, in place.

    ``encoder: {layers: 2}`` becomes ``encoder_layers: 2``, so that presets and checkpoints know one form.

    Raises:
        ConfigurationError: the same value is given in both forms, a name is no field, or a value not of its type.
    """
    for name in SUB_CONFIGS:
        nested = cfg.pop(name, None)
        for key, value in (nested or {}).items():
            flat = f"{name}_{key}"
            if flat in cfg:
                raise ConfigurationError(f"model.{name}.{key} and model.{flat} are the same; give one of them")
            cfg[flat] = value
    _check_fields(cfg)


def _check_fields(cfg: DictConfig) -> None:
    """Every name is one of the config's, in its flat form, and numbers are numbers."""
    types = get_type_hints(TransformerCollabConfig)
    for part in SUB_CONFIGS:
        types.update({f"{part}_{name}": kind for name, kind in get_type_hints(types.pop(part)).items()})
    for name, value in ((str(key), value) for key, value in cfg.items()):
        if name not in types and name != "arch":
            nearest = get_close_matches(name, types, n=1)
            meant = f"; the nearest is model.{nearest[0]}" if nearest else ""
            raise ConfigurationError(f"model.{name} is no setting of transformer_collab{meant}")
        kind = next((k for k in (int, float, bool) if k in (types.get(name), *get_args(types.get(name)))), None)
        if kind and value is not None and not isinstance(value, (int, float) if kind is float else int):
            raise ConfigurationError(f"model.{name} must be of type {kind.__name__}, but is {value!r}")


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
    keep_layers(cfg)
    _check_sizes(cfg)
    return cfg


def attention_settings(cfg: TransformerCollabConfig) -> AttentionSettings:
    """What the config says of attention."""
    return AttentionSettings(
        collaborative=parse_sites(cfg.collaborative_heads),
        key_dim=cfg.key_dim,
        value_heads=cfg.value_heads,
        mixing=str(cfg.mixing_init),
        content_bias=cfg.attention_content_bias,
        dropout=cfg.attention_dropout,
        kernel=str(cfg.attention_kernel),
        shapes=parse_shapes(cfg.attention_shapes),
        masked=parse_heads(cfg.mask_heads),
        gated=parse_sites(cfg.head_gates, "--head-gates"),
        gates_init=cfg.head_gates_init,
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
    if cfg.value_heads is not None and not sites:
        raise ConfigurationError(
            f"--value-heads {cfg.value_heads} shares values of collaborative heads, but --collaborative-heads is none"
        )
    numbers = 0  # in the query and key projections
    for site in SITES:
        side = "encoder" if site == "encoder" else "decoder"
        sub = cfg.encoder if site == "encoder" else cfg.decoder
        heads, width = sub.attention_heads, sub.embed_dim
        for name, value in (("attention-heads", heads), ("embed-dim", width)):
            if value < 1:
                raise ConfigurationError(f"--{side}-{name} must be positive, but is {value}")
        key_dim = width if cfg.key_dim is None else cfg.key_dim
        numbers += sub.layers * 2 * width * key_dim
        if width % heads != 0:
            raise ConfigurationError(
                f"--{side}-embed-dim must be divisible by --{side}-attention-heads, but they are {width} and {heads}"
            )
        if site not in sites and key_dim % heads != 0:
            raise ConfigurationError(
                f"--key-dim must be divisible by the {heads} standard heads of {site} attention, but is {key_dim}; "
                f"choose a multiple of {heads}, or collaborative heads there (--collaborative-heads …{site}…)"
            )
        if site in sites and cfg.value_heads is not None and (cfg.value_heads < 1 or heads % cfg.value_heads != 0):
            raise ConfigurationError(
                f"--value-heads must divide the {heads} heads of {site} attention, but is {cfg.value_heads}"
            )
        if site in sites and str(cfg.mixing_init) in MIXINGS_OF_BLOCKS and key_dim < heads:
            raise ConfigurationError(
                f"--mixing-init {cfg.mixing_init} gives each of the {heads} heads a key dimension of its own, "
                f"but --key-dim is {key_dim}"
            )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if cfg.key_dim is not None and not cfg.attention_shapes and 4 * numbers > memory:
        raise ConfigurationError(
            f"--key-dim {cfg.key_dim} makes query and key projections of {4 * numbers / 2**30:,.0f} GiB, "
            f"but this machine has {memory / 2**30:,.0f} GiB of memory"
        )
    _check_heads(cfg)


def _check_heads(cfg: TransformerCollabConfig) -> None:
    """Masked heads are there, and gates do not freeze what they are in."""
    settings = attention_settings(cfg)
    counts = {}
    for site in SITES:
        side = cfg.encoder if site == "encoder" else cfg.decoder
        for layer in range(side.layers):
            own = settings.shape(site, layer).num_heads
            counts[f"{site}.{layer}"] = side.attention_heads if own is None else own
    check_heads(settings.masked, counts)
    frozen = settings.gated - {"encoder"}
    if cfg.head_gates_freeze_decoder and (frozen or not settings.gated):
        raise ConfigurationError(
            f"--head-gates-freeze-decoder goes with --head-gates encoder, but that is {cfg.head_gates!r}"
        )

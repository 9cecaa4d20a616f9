"""Checks of the settings of ``transformer_collab`` before a model is built."""

import math
import re
from argparse import Namespace
from typing import Any, Dict, List, Mapping, Sequence, Type, get_type_hints

from fairseq.criterions import CRITERION_REGISTRY
from torch import nn

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.attention_types import (
    ATTENTION_TYPES,
    KEY_DIM_SETTINGS,
    SITES,
    flags,
    kernels,
    layer_at,
    on_meta_device,
    side_of,
)
from collab_fairseq.modules.fairseq_compat import SUB_CONFIGS, model_config
from collab_fairseq.modules.heads import check_heads, parse_heads
from collab_fairseq.modules.settings import ConfigurationError, check_type, flat_settings, parse_shapes, parse_sites

from .config import TransformerCollabConfig

#: ends of names of settings → smallest and largest value; layers check the sizes of heads
_RANGES = {
    ("_layers",): (0, 10_000),
    ("_embed_dim", "_input_dim", "_output_dim", "_block_size", "softmax_factor"): (1, math.inf),
    ("_positions",): (1, 1_000_000),
    ("dropout", "_layerdrop", "quant_noise_pq", "quant_noise_scalar"): (0, 1),
}
#: settings for which None means the default, as in fairseq's transformer
DEFAULT_IF_NONE = ("max_source_positions", "max_target_positions")


def _field_types() -> Dict[str, Any]:
    types = get_type_hints(TransformerCollabConfig)
    for section in SUB_CONFIGS:
        for name, field_type in get_type_hints(types.pop(section)).items():
            types[f"{section}_{name}"] = field_type
    return types


#: flat name of a setting (``encoder_layers``) → its type
FIELD_TYPES = _field_types()


def check_fields(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless settings by flat name have valid types and ranges; ignore unknown names."""
    for name, value in settings.items():
        check_type("the name of a setting of the model", str, name)
        if name not in FIELD_TYPES or (value is None and name in DEFAULT_IF_NONE):
            continue
        check_type(f"model.{name}", FIELD_TYPES[name], value)
        for endings, (least, most) in _RANGES.items():
            if name.endswith(endings) and (value is None or not least <= value <= most):
                expected = f"at least {least}" if most == math.inf else f"between {least} and {most:,}"
                raise ConfigurationError(f"model.{name} must be {expected}; got {value}")


def _sites(cfg: TransformerCollabConfig) -> List[str]:
    """The sites that the model has."""
    return [site for site in SITES if site != "cross" or not cfg.no_cross_attention]


def check_config(cfg: TransformerCollabConfig) -> None:
    """Raise ConfigurationError unless every layer accepts its settings and every flag has an effect."""
    parse_sites(cfg.collaborative_heads)
    settings = flat_settings(cfg)
    layers = {site: layer_at(settings, site) for site in _sites(cfg)}
    types = [attention_type for attention_type, _ in layers.values()]
    _check_type_flags(settings, types)
    available = kernels(ATTENTION_TYPES if cfg.attention_shapes else types)
    kernel = str(cfg.attention_kernel)
    if kernel not in available:
        raise ConfigurationError(
            f"--attention-kernel must be one of {', '.join(available)} with --collaborative-heads "
            f"{cfg.collaborative_heads}; got {kernel!r}"
        )
    for side in ("encoder", "decoder"):
        if getattr(cfg, side).xformers_att_config is not None:
            raise ConfigurationError(f"--{side}-xformers-att-config is not an option of transformer_collab")
    for site, (attention_type, arguments) in layers.items():
        try:
            layer = on_meta_device(attention_type, {**arguments, "dropout": cfg.attention_dropout})
            _check_noise_blocks(cfg, layer)
        except (ValueError, RuntimeError) as error:  # RuntimeError: too large for PyTorch
            message = _with_flag_names(str(error), attention_type, settings, site)
            raise ConfigurationError(f"{site} attention: {message}") from error
    for layer_id, shape in parse_shapes(cfg.attention_shapes).items():
        site, _, _ = layer_id.partition(".")
        try:
            _check_noise_blocks(cfg, on_meta_device(*layer_at(settings, site, shape)))
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(f"attention_shapes[{layer_id}]: {error}") from error
    _check_heads(cfg)


def _check_noise_blocks(cfg: TransformerCollabConfig, layer: AttentionLayer) -> None:
    """Raise ValueError unless blocks of quantization noise divide the inputs of all projections."""
    block_size = cfg.quant_noise.pq_block_size
    for projection in layer.children():
        if isinstance(projection, nn.Linear) and cfg.quant_noise.pq > 0 and projection.in_features % block_size != 0:
            raise ValueError(
                f"--quant-noise-pq-block-size must divide the {projection.in_features} inputs of a projection; "
                f"got {block_size}"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_flag_names(message: str, attention_type: Type[AttentionLayer], settings: Mapping[str, Any], site: str) -> str:
    """An error message of a layer, with flags instead of the layer's arguments."""
    side, key_dim = side_of(site), KEY_DIM_SETTINGS[site]
    names = {
        "embed_dim": f"{side}_embed_dim",
        "num_heads": f"{side}_attention_heads",
        "init": "attention_init",
        "dropout": "attention_dropout",
        "key_dim": "key_dim" if settings[key_dim] is None else key_dim,
        **{flag.argument: flag.name for flag in attention_type.flags},
    }
    return re.sub(rf"\b({'|'.join(names)})\b", lambda match: _flag(names[match[0]]), message)


def _check_type_flags(settings: Mapping[str, Any], types: Sequence[Type[AttentionLayer]]) -> None:
    """Reject flags of attention types that the model does not have, and flags for several types at once."""
    # recipes set flags with other defaults, such as --mixing-init, also for models where they have no effect
    choices = [attention_type.chosen_by for attention_type in ATTENTION_TYPES]
    optional = {name: flag for name, flag in flags().items() if flag.default in (None, False) or name in choices}
    active = {name for name, flag in optional.items() if settings[name] != flag.default}
    choosing = [name for name in choices if name in active]
    if len(choosing) > 1:
        names = " and ".join(_flag(str(name)) for name in choosing)
        raise ConfigurationError(f"{names} select different attention types; give only one of them")
    unused = active - {flag.name for attention_type in types for flag in attention_type.flags}
    for attention_type in ATTENTION_TYPES:
        for name in sorted(unused & {flag.name for flag in attention_type.flags}):
            heads = "collaborative" if attention_type.collaborative else "standard"
            raise ConfigurationError(
                f"{_flag(name)}{'' if settings[name] is True else f' {settings[name]}'} is for {heads} heads, "
                f"but --collaborative-heads is {settings['collaborative_heads']}"
            )


def _check_heads(cfg: TransformerCollabConfig) -> None:
    """Check that masked heads exist, and that a frozen decoder has no gates."""
    shapes = parse_shapes(cfg.attention_shapes)
    counts = {}
    for site in _sites(cfg):
        stack = getattr(cfg, side_of(site))
        for layer in range(stack.layers):
            layer_id = f"{site}.{layer}"
            counts[layer_id] = shapes.get(layer_id, {}).get("num_heads", stack.attention_heads)
    check_heads(parse_heads(cfg.mask_heads), counts)
    gated = parse_sites(cfg.head_gates, "--head-gates")
    if cfg.no_cross_attention and ("cross" in gated or cfg.cross_key_dim is not None):
        name = "--head-gates cross" if "cross" in gated else "--cross-key-dim"
        raise ConfigurationError(f"{name} needs cross-attention; leave out --no-cross-attention")
    if cfg.head_gates_freeze_decoder and gated != {"encoder"}:
        raise ConfigurationError(f"--head-gates must be encoder with --head-gates-freeze-decoder; got {cfg.head_gates}")


def check_checkpoint(state: Dict[str, Any]) -> None:
    """Raise ConfigurationError for invalid or missing settings, or missing layers, in a checkpoint.

    fairseq itself checks the settings of task and criterion.

    Args:
        state: from :func:`.as_transformer_collab`.
    """
    sections: Any = {name: state["cfg"].get(name) for name in ("task", "criterion", "dataset")}
    if isinstance(sections["criterion"], Namespace):  # a criterion without a dataclass
        sections["criterion"] = vars(sections["criterion"])
    for name, settings in sections.items():
        check_type(f"cfg.{name}", Dict, settings)
    criterion = str(sections["criterion"].get("_name"))
    if criterion not in CRITERION_REGISTRY:
        raise ConfigurationError(f"cfg.criterion must be a criterion of fairseq; got {criterion[:80]!r}")
    multiple = "required_batch_size_multiple"
    check_type(f"dataset.{multiple}", int, sections["dataset"].get(multiple))
    model = model_config(state)
    check_fields(model)
    for side in ("encoder", "decoder"):
        saved = {name.split(".")[2] for name in state["model"] if name.startswith(f"{side}.layers.")}
        layers = model.get(f"{side}_layers", 0)
        if layers > len(saved):
            raise ConfigurationError(
                f"model.{side}_layers must be at most {len(saved)}, the number of layers in the checkpoint; "
                f"got {layers}"
            )

"""Checks of the settings of ``transformer_collab`` before a model is built."""

import math
from argparse import Namespace
from typing import Any, Dict, List, Mapping, Sequence, get_type_hints

import torch
from fairseq.criterions import CRITERION_REGISTRY

from collab_fairseq.attention import ATTENTION_TYPES, SITES, AttentionLayer
from collab_fairseq.attention.attention_types import is_given, parse_sites, side_of
from collab_fairseq.checkpoints import model_settings
from collab_fairseq.modules.attention import build_attention
from collab_fairseq.modules.head_names import check_heads, parse_heads
from collab_fairseq.modules.settings import SUB_CONFIGS, check_type, flat, parse_shapes
from fairseq_modern.errors import UserError

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


_HINTS = get_type_hints(TransformerCollabConfig)
#: flat name of a setting (``encoder_layers``) → its type
FIELD_TYPES = flat({**_HINTS, **{section: get_type_hints(_HINTS[section]) for section in SUB_CONFIGS}})


def check_fields(settings: Mapping[str, Any]) -> None:
    """Raise UserError unless settings by flat name have valid types and ranges; ignore unknown names."""
    for name, value in settings.items():
        check_type("the name of a setting of the model", str, name)
        if name not in FIELD_TYPES or (value is None and name in DEFAULT_IF_NONE):
            continue
        check_type(f"model.{name}", FIELD_TYPES[name], value)
        for endings, (least, most) in _RANGES.items():
            if name.endswith(endings) and (value is None or not least <= value <= most):
                expected = f"at least {least}" if most == math.inf else f"between {least} and {most:,}"
                raise UserError(f"model.{name} must be {expected}; got {value}")


def _sites(cfg: TransformerCollabConfig) -> List[str]:
    """The sites that the model has."""
    return [site for site in SITES if site != "cross" or not cfg.no_cross_attention]


def check_config(cfg: TransformerCollabConfig) -> None:
    """Raise UserError unless every layer can be built from its settings and every flag has an effect."""
    for side in ("encoder", "decoder"):
        if getattr(cfg, side).xformers_att_config is not None:
            raise UserError(f"--{side}-xformers-att-config is not an option of transformer_collab")
    _check_heads(cfg)
    layers = []
    for layer_id in (*_sites(cfg), *parse_shapes(cfg.attention_shapes)):  # a site: its layers without their own shape
        try:
            with torch.device("meta"):
                layers.append(build_attention(cfg, layer_id))
        except (ValueError, RuntimeError, AssertionError) as error:  # from the layer, torch, fairseq's quant_noise
            raise UserError(f"{layer_id} attention: {error}") from error
    _check_flags(flat(cfg), layers)


def _check_flags(settings: Mapping[str, Any], layers: Sequence[AttentionLayer]) -> None:
    """Raise UserError if a flag is a setting or the kernel of attention types that no layer has."""
    heads = " and ".join(sorted({layer.type_name for layer in layers}))
    kernel, kernels = settings["attention_kernel"], {name for layer in layers for name in layer.kernels}
    if kernel not in ("auto", *kernels):
        raise UserError(
            f"--attention-kernel must be among auto, {', '.join(sorted(kernels))} with {heads} heads; got {kernel!r}"
        )
    used = {name for layer in layers for name in layer.settings.values()}
    for attention_type in ATTENTION_TYPES:
        for name in attention_type.settings.values():
            # recipes set those with other defaults, such as --mixing-init, also for models where they have no effect
            has_default = is_given(getattr(TransformerCollabConfig, name))
            if not has_default and name not in used and is_given(settings[name]):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is for {attention_type.type_name} heads; the model has {heads} heads")


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
        raise UserError(f"{name} needs cross-attention; leave out --no-cross-attention")
    if cfg.head_gates_freeze_decoder and gated != {"encoder"}:
        raise UserError(f"--head-gates must be encoder with --head-gates-freeze-decoder; got {cfg.head_gates}")


def check_checkpoint(state: Dict[str, Any]) -> None:
    """Raise UserError for invalid or missing settings, or missing layers, in a checkpoint of ``transformer_collab``.

    fairseq itself checks the settings of task and criterion.
    """
    sections: Any = {name: state["cfg"].get(name) for name in ("task", "criterion", "dataset")}
    if isinstance(sections["criterion"], Namespace):  # a criterion without a dataclass
        sections["criterion"] = vars(sections["criterion"])
    for name, settings in sections.items():
        check_type(f"cfg.{name}", Dict, settings)
    criterion = str(sections["criterion"].get("_name"))
    if criterion not in CRITERION_REGISTRY:
        raise UserError(f"cfg.criterion must be a criterion of fairseq; got {criterion[:80]!r}")
    multiple = "required_batch_size_multiple"
    check_type(f"dataset.{multiple}", int, sections["dataset"].get(multiple))
    model = model_settings(state)
    check_fields(model)
    for side in ("encoder", "decoder"):
        saved = {name.split(".")[2] for name in state["model"] if name.startswith(f"{side}.layers.")}
        layers = model.get(f"{side}_layers", 0)
        if layers > len(saved):
            raise UserError(f"model.{side}_layers must be at most {len(saved)}, as in the checkpoint; got {layers}")

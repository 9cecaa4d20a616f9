"""What the settings of ``transformer_collab`` must be, in the words of the command line, before anything is built."""

import re
from typing import Any, Dict, Mapping, Sequence, Type, get_type_hints

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.attention.attention_types import (
    ATTENTION_TYPES,
    KEY_DIMS,
    SITES,
    flags,
    kernels,
    layer_at,
    on_meta_device,
    side_of,
)
from collab_fairseq.modules.fairseq_compat import SUB_CONFIGS
from collab_fairseq.modules.heads import check_heads, parse_heads
from collab_fairseq.modules.settings import ConfigurationError, check_type, flat_settings, parse_shapes, parse_sites

#: end of a setting's name → its smallest and largest value; the sizes of heads are the layers' to check
_RANGES = {
    "_layers": (0, 10_000), "_embed_dim": (1, None), "_input_dim": (1, None), "_output_dim": (1, None),
    "_positions": (1, 1_000_000), "_block_size": (1, None), "softmax_factor": (1, None), "dropout": (0, 1),
    "_layerdrop": (0, 1), "quant_noise_pq": (0, 1), "quant_noise_scalar": (0, 1),
}  # fmt: skip
#: settings that fairseq fills in where they are None
_FILLED_IN = ("max_source_positions", "max_target_positions")


def field_types(config: Any) -> Dict[str, Any]:
    """The type of every setting of a config of fairseq's transformer, by its flat name (``encoder_layers``)."""
    types = get_type_hints(config)
    for part in SUB_CONFIGS:
        types.update(
            {f"{part}_{name}": attention_type for name, attention_type in get_type_hints(types.pop(part)).items()}
        )
    return types


def check_fields(settings: Mapping[str, Any], config: Any) -> None:
    """See that settings are of the types of their fields, and numbers within their range.

    Args:
        settings: by flat names; those that are no fields are not looked at.
        config: the dataclass.

    Raises:
        ConfigurationError: naming the setting, what was expected and what was got.
    """
    types = field_types(config)
    for name, value in settings.items():
        check_type("the name of a setting of the model", str, name)
        if name not in types or (value is None and name in _FILLED_IN):
            continue
        check_type(f"model.{name}", types[name], value)
        for ending, (least, most) in _RANGES.items():
            if name.endswith(ending) and (value is None or value < least or (most is not None and value > most)):
                expected = f"at least {least}" if most is None else f"between {least} and {most:,}"
                raise ConfigurationError(f"model.{name} must be {expected}; got {value}")


def check_config(cfg: Any) -> None:
    """Refuse values that no layer could be built with, and flags that would have no effect.

    Args:
        cfg: a :class:`.TransformerCollabConfig`.

    Raises:
        ConfigurationError: naming the flag, what was expected and what was got.
    """
    parse_sites(cfg.collaborative_heads)
    settings = flat_settings(cfg)
    layers = {site: layer_at(settings, site) for site in SITES}
    _check_chosen(settings, [attention_type for attention_type, _ in layers.values()])
    known = kernels(
        ATTENTION_TYPES if cfg.attention_shapes else [attention_type for attention_type, _ in layers.values()]
    )
    if str(cfg.attention_kernel) not in known:
        raise ConfigurationError(
            f"--attention-kernel must be one of {', '.join(known)} with --collaborative-heads "
            f"{cfg.collaborative_heads}, but is {str(cfg.attention_kernel)!r}"
        )
    for side, stack in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        if stack.xformers_att_config is not None:
            raise ConfigurationError(f"--{side}-xformers-att-config is not an option of transformer_collab")
    for site, (attention_type, arguments) in layers.items():
        try:
            on_meta_device(attention_type, {**arguments, "dropout": cfg.attention_dropout})
        except (ValueError, RuntimeError) as error:  # RuntimeError: torch has no tensors of this size
            raise ConfigurationError(
                f"{site} attention: {_in_flags(str(error), attention_type, settings, site)}"
            ) from error
    for name, own in parse_shapes(cfg.attention_shapes).items():
        try:
            on_meta_device(*layer_at(settings, name.partition(".")[0], own))
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(f"attention_shapes[{name}]: {error}") from error
    _check_heads(cfg)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _in_flags(message: str, attention_type: Type[AttentionLayer], settings: Mapping[str, Any], site: str) -> str:
    """What a layer says of its arguments, in the words of the command line."""
    own, side = KEY_DIMS[site], side_of(site)
    names = {
        "embed_dim": f"{side}_embed_dim", "num_heads": f"{side}_attention_heads", "init": "attention_init",
        "dropout": "attention_dropout", "key_dim": "key_dim" if settings[own] is None else own,
        **{flag.argument: flag.name for flag in attention_type.flags},
    }  # fmt: skip
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: _flag(names[found[0]]), message)


def _check_chosen(settings: Mapping[str, Any], there: Sequence[Type[AttentionLayer]]) -> None:
    """Flags of an attention type are for a model that has them at some site; at most one flag chooses a type."""
    given = {name for name, flag in flags().items() if flag.default is None and settings[name] is not None}
    chosen = [
        _flag(str(attention_type.chosen_by)) for attention_type in ATTENTION_TYPES if attention_type.chosen_by in given
    ]
    if len(chosen) > 1:
        raise ConfigurationError(f"{' and '.join(chosen)} are different attention types; give one of them")
    for name in sorted(given - {flag.name for attention_type in there for flag in attention_type.flags}):
        (attention_type,) = (
            attention_type for attention_type in ATTENTION_TYPES if flags()[name] in attention_type.flags
        )
        heads = "collaborative" if attention_type.collaborative else "standard"
        raise ConfigurationError(
            f"{_flag(name)} {settings[name]} is for {heads} heads, "
            f"but --collaborative-heads is {settings['collaborative_heads']}"
        )


def _check_heads(cfg: Any) -> None:
    """Masked heads are there, and gates do not freeze what they are in."""
    shapes, gated = parse_shapes(cfg.attention_shapes), parse_sites(cfg.head_gates, "--head-gates")
    stacks = {site: getattr(cfg, side_of(site)) for site in SITES}
    counts = {
        f"{site}.{layer}": shapes.get(f"{site}.{layer}", {}).get("num_heads", stack.attention_heads)
        for site, stack in stacks.items()
        for layer in range(stack.layers)
    }
    check_heads(parse_heads(cfg.mask_heads), counts)
    if cfg.head_gates_freeze_decoder and gated != {"encoder"}:
        raise ConfigurationError(
            f"--head-gates-freeze-decoder goes with --head-gates encoder, but that is {cfg.head_gates!r}"
        )

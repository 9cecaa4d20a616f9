"""What a config of ``transformer_collab`` must be, in the words of the command line, before anything is built."""

import math
from typing import AbstractSet, Any

from collab_fairseq.modules.heads import check_heads, parse_heads
from collab_fairseq.modules.settings import (
    GONE_KERNELS,
    INITS,
    KERNELS,
    KERNELS_OF_STANDARD_HEADS,
    KEY_DIMS,
    MIXINGS,
    SITES,
    ConfigurationError,
    parse_shapes,
    parse_sites,
)


def check_config(cfg: Any) -> None:
    """Refuse values that no layer could be built with, and flags that would have no effect.

    Args:
        cfg: a :class:`.TransformerCollabConfig`.

    Raises:
        ConfigurationError: naming the flag, what was expected and what was got.
    """
    check_kernel(str(cfg.attention_kernel))
    for flag, value, known in (
        ("mixing-init", cfg.mixing_init, MIXINGS), ("attention-kernel", cfg.attention_kernel, KERNELS),
        ("attention-init", cfg.attention_init, INITS),
    ):  # fmt: skip
        if value not in known:
            raise ConfigurationError(f"--{flag} must be one of {', '.join(known)}, but is {value!r}")
    sites = parse_sites(cfg.collaborative_heads)
    _check_sharing(cfg, sites)
    if not sites and not cfg.attention_shapes and str(cfg.attention_kernel) not in KERNELS_OF_STANDARD_HEADS:
        raise ConfigurationError(
            f"--attention-kernel {cfg.attention_kernel} computes collaborative heads, "
            f"but --collaborative-heads is none; choose one of {', '.join(KERNELS_OF_STANDARD_HEADS)}"
        )
    for name, value in ((name, getattr(cfg, name)) for name in ("key_dim", *KEY_DIMS.values())):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be positive, but is {value}")
    if cfg.attention_init == "authors" and cfg.mixing_init != "xavier":
        raise ConfigurationError(
            f"--attention-init authors goes with --mixing-init xavier, as in their code, but that is {cfg.mixing_init}"
        )
    if not 0 < cfg.mixing_lr_multiplier < math.inf:
        raise ConfigurationError(f"--mixing-lr-multiplier must be positive, but is {cfg.mixing_lr_multiplier}")
    for side, stack in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        heads, width = stack.attention_heads, stack.embed_dim
        if stack.xformers_att_config is not None:
            raise ConfigurationError(f"--{side}-xformers-att-config is not an option of transformer_collab")
        for name, value in (("attention-heads", heads), ("embed-dim", width)):
            if value < 1:
                raise ConfigurationError(f"--{side}-{name} must be positive, but is {value}")
        if width % heads != 0:
            raise ConfigurationError(
                f"--{side}-embed-dim must be divisible by --{side}-attention-heads, but they are {width} and {heads}"
            )
    for site in SITES:
        stack = cfg.encoder if site == "encoder" else cfg.decoder
        heads, own = stack.attention_heads, getattr(cfg, KEY_DIMS[site])
        key_dim, flag_of_dim = own or cfg.key_dim or stack.embed_dim, f"--{site}-key-dim" if own else "--key-dim"
        if site not in sites and key_dim % heads != 0:
            raise ConfigurationError(
                f"{flag_of_dim} must be divisible by the {heads} standard heads of {site} attention, but is {key_dim}; "
                f"choose a multiple of {heads}, or collaborative heads there (--collaborative-heads …{site}…)"
            )
        flag, groups = ("value", cfg.value_heads) if site in sites else ("kv", cfg.kv_heads)
        if groups is not None and (groups < 1 or heads % groups != 0):
            raise ConfigurationError(
                f"--{flag}-heads must divide the {heads} heads of {site} attention, but is {groups}"
            )
        if site in sites and cfg.mixing_init == "blocks" and key_dim < heads:
            raise ConfigurationError(
                f"--mixing-init blocks gives each of the {heads} heads a key dimension of its own, "
                f"but {flag_of_dim} is {key_dim}"
            )
    _check_heads(cfg)


def check_kernel(name: str) -> str:
    """The name of a kernel, unless it is one that is gone.

    Raises:
        ConfigurationError: which to use in its place.
    """
    if name in GONE_KERNELS:
        raise ConfigurationError(f"--attention-kernel {name} is gone; use {GONE_KERNELS[name]} (same results)")
    return name


def _check_sharing(cfg: Any, sites: AbstractSet[str]) -> None:
    """Each way to share keys and values has heads that it is for; ``sites`` are those whose heads collaborate."""
    standard = set(SITES) - sites
    for flag, value, kind, there in (
        ("value-heads", cfg.value_heads, "collaborative", sites),
        ("kv-heads", cfg.kv_heads, "standard", standard),
        ("kv-latent-dim", cfg.kv_latent_dim, "standard", standard),
    ):
        if value is not None and not there:
            other = "none" if kind == "collaborative" else "all sites"
            raise ConfigurationError(f"--{flag} {value} is for {kind} heads, but --collaborative-heads names {other}")
    if cfg.kv_latent_dim is not None and cfg.kv_heads is not None:
        raise ConfigurationError("--kv-heads and --kv-latent-dim are two kinds of attention; give one of them")
    if cfg.kv_latent_dim is not None and cfg.kv_latent_dim < 1:
        raise ConfigurationError(f"--kv-latent-dim must be positive, but is {cfg.kv_latent_dim}")


def _check_heads(cfg: Any) -> None:
    """Masked heads are there, and gates do not freeze what they are in."""
    shapes, gated = parse_shapes(cfg.attention_shapes), parse_sites(cfg.head_gates, "--head-gates")
    sides = {"encoder": cfg.encoder, "cross": cfg.decoder, "decoder": cfg.decoder}
    counts = {
        f"{site}.{layer}": shapes.get(f"{site}.{layer}", {}).get("num_heads", side.attention_heads)
        for site, side in sides.items()
        for layer in range(side.layers)
    }
    check_heads(parse_heads(cfg.mask_heads), counts)
    if cfg.head_gates_freeze_decoder and gated != {"encoder"}:
        raise ConfigurationError(
            f"--head-gates-freeze-decoder goes with --head-gates encoder, but that is {cfg.head_gates!r}"
        )

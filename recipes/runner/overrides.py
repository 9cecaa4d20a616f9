"""Overrides of a recipe's settings: variant, options and `SECTION.NAME=VALUE` arguments, merged in one order."""

import re
import shlex
from argparse import Namespace
from typing import Any, List

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from .settings import USER_DIR, SettingsError, reject_missing
from .validation import check, first_line, reject_reserved

#: overrides of --fast
FAST = [
    "criterion._name=label_smoothed_cross_entropy_chunked",
    "optimizer._name=fused_adam",
    "model.fast_dropout=true",
]
#: override of --heads none, unless a later one sets a key dimension: the embedding width
FULL_KEY_DIM = ["model.key_dim=null"]


def merge(cfg: DictConfig, args: Namespace, words: List[str]) -> DictConfig:
    """Apply all overrides to the settings of a recipe. Each layer overrides the layers above it.

    Args:
        args: options. An option that is named like a setting (with a dot) overrides it.
        words: `SECTION.NAME=VALUE` arguments.
    """
    options = {name: value for name, value in vars(args).items() if "." in name and value is not None}
    if args.stock and (args.fast or {"model.collaborative_heads", "model.key_dim"} & set(options)):
        raise SettingsError("--stock excludes --heads, --key-dim and --fast")
    recipe = stock(cfg) if args.stock else cfg
    standard_heads = options.get("model.collaborative_heads") == "none"
    variant_words = variant(cfg, args.variant) if args.variant else []
    chosen = OmegaConf.create()
    for name, value in options.items():
        OmegaConf.update(chosen, name, value)
    layers = [
        recipe,
        parse(recipe, FULL_KEY_DIM if standard_heads else []),
        parse(recipe, variant_words),
        parse(recipe, FAST if args.fast else []),
        chosen,
        parse(recipe, words),
    ]
    merged: Any = OmegaConf.merge(*layers)
    check(merged)
    reject_reserved(merged)  # of an argument, a variant or a YAML file
    if not any(word.startswith("checkpoint.save_interval_updates=") for word in (*variant_words, *words)):
        _keep_number_of_checkpoints(merged, recipe)
    merged.common.user_dir = None if args.stock else USER_DIR
    return merged  # type: ignore[no-any-return]


def _keep_number_of_checkpoints(cfg: DictConfig, recipe: DictConfig) -> None:
    """Scale the checkpoint interval with the length of the run, if an override changes the length."""
    interval, updates = recipe.checkpoint.save_interval_updates, recipe.optimization.max_update
    if interval > 0 and cfg.optimization.max_update != updates:
        number = max(1, updates // interval)
        cfg.checkpoint.save_interval_updates = max(1, cfg.optimization.max_update // number)


def stock(cfg: DictConfig) -> DictConfig:
    """Settings of fairseq's own transformer of the same size: `recipe.stock`, without the fields of this project."""
    from collab_fairseq.models.config import OWN_DEFAULTS

    merged: Any = OmegaConf.merge(cfg, cfg.recipe.stock)
    merged.model = {name: value for name, value in merged.model.items() if name not in OWN_DEFAULTS}
    return merged  # type: ignore[no-any-return]


def variant(cfg: DictConfig, name: str) -> List[str]:
    """`SECTION.NAME=VALUE` words of a variant, or of several joined by _, each overriding those before it."""
    variants = cfg.recipe.variants
    words = []
    for part in [name] if name in variants else name.split("_"):
        if part not in variants:
            known = ", ".join(sorted(variants)) or "none"
            raise SettingsError(
                f"--variant must be a variant of this recipe ({known}), or some joined by _; got '{name}'"
            )
        words += shell_words(f"recipe.variants.{part}", variants[part])
    return words


def shell_words(name: str, text: str) -> List[str]:
    """Split the value of a setting or option into words, as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"{name} must be words as in a shell; got {text} ({error})") from error


def parse(cfg: DictConfig, words: List[str]) -> DictConfig:
    """Parse `SECTION.NAME=VALUE` words that override settings of `cfg`."""
    for word in words:
        if not re.match(r"\w+(\.\w+)+=", word):
            raise SettingsError(f"an override must be a setting such as optimization.lr=[0.001]; got '{word}'")
    try:
        overrides = OmegaConf.from_dotlist(words)
        reject_missing(cfg, OmegaConf.to_container(overrides))
    except (OmegaConfBaseException, YAMLError) as error:
        raise SettingsError(f"{' '.join(words)}: {first_line(error)}") from error
    return overrides

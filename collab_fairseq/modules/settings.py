"""Which attention of a transformer is collaborative, and how large each one is."""

import reprlib
from enum import Enum
from typing import Any, Dict, FrozenSet, Mapping, Optional, Union, get_args, get_origin

from collab_fairseq.attention.attention_types import SITES, per_layer_settings, side_of
from fairseq_modern.errors import UserError

__all__ = ["SITES", "ConfigurationError", "check_type", "flat_settings", "parse_shapes", "parse_sites"]

_LARGEST = 2**63 - 1  # that torch takes


class ConfigurationError(UserError):
    """A flag or config value that cannot be; the message names it, what was expected and what was got."""


def parse_sites(flag: str, name_of_flag: str = "--collaborative-heads") -> FrozenSet[str]:
    """Sites of a flag: names of :data:`SITES` joined by ``_`` in any order, or ``none``.

    Raises:
        ConfigurationError: anything else, naming the part that is wrong.
    """
    if flag == "none":
        return frozenset()
    names = str(flag).split("_")
    for name in names:
        if name not in SITES:
            raise ConfigurationError(
                f"{name_of_flag} must be sites among {', '.join(SITES)} joined by '_' (such as encoder_cross), "
                f"or none, but {name!r} in {flag!r} is not a site"
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{name_of_flag} must name each site once, but is {flag!r}")
    return frozenset(names)


def parse_shapes(shapes: Optional[Mapping[str, Mapping[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """The config field ``attention_shapes``: layer name → settings (:func:`.per_layer_settings`) that are not None.

    Raises:
        ConfigurationError: a key that is not ``site.layer``, an unknown property or one of another type, by name.
    """
    parsed, known = {}, per_layer_settings()
    check_type("attention_shapes", Dict, {} if shapes is None else shapes)
    for name, properties in (shapes or {}).items():
        site, _, layer = str(name).partition(".")
        if site not in SITES or not layer.isdecimal():
            raise ConfigurationError(f"attention_shapes must be keyed like encoder.0 or cross.3, but has {name!r}")
        check_type(f"attention_shapes[{name}]", Dict, properties)
        for key, value in properties.items():
            if key not in known:
                raise ConfigurationError(f"attention_shapes[{name}] may have {', '.join(known)}, but has {key!r}")
            check_type(f"attention_shapes[{name}].{key}", Optional[known[key]], value)
        parsed[name] = {key: value for key, value in properties.items() if value is not None}
    return parsed


def check_type(name: str, kind: Any, value: Any) -> None:
    """See that a setting is of the type of its field.

    Args:
        name: what the error calls it. kind: a type hint of a config's dataclass; of choices any text is one.

    Raises:
        ConfigurationError: naming the setting, what was expected and what was got.
    """
    if kind is Any:
        return
    optional = get_origin(kind) is Union
    if optional:
        (kind,) = set(get_args(kind)) - {type(None)}
    base = get_origin(kind) or kind
    if base is list:  # the command line gives these as text
        expected, fits = "a list of numbers", isinstance(value, (list, tuple, str))
        fits = fits and (isinstance(value, str) or all(isinstance(number, int) for number in value))
    elif base is dict:
        expected, fits = "a mapping", isinstance(value, Mapping)
    elif base is bool:
        expected, fits = "true or false", isinstance(value, int) and value in (0, 1)
    elif base in (int, float):
        expected, fits = f"of type {base.__name__}", isinstance(value, (int, base)) and not isinstance(value, bool)
        fits = fits and -_LARGEST <= value <= _LARGEST  # NaN is not
    else:  # text, or one of several choices
        expected, fits = "of type str", isinstance(value, (str, Enum)) and value != "???"  # OmegaConf's "missing"
    if not fits and not (optional and value is None):
        raise ConfigurationError(f"{name} must be {expected}; got {reprlib.repr(value)}")


def flat_settings(cfg: Any) -> Dict[str, Any]:
    """The settings of a config by flat names, with the sizes that attention depends on."""
    sides = {side_of(site): getattr(cfg, side_of(site)) for site in SITES}
    names = ("embed_dim", "attention_heads")
    return {**vars(cfg), **{f"{side}_{name}": getattr(own, name) for side, own in sides.items() for name in names}}

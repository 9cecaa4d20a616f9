"""Settings of attention: which sites are collaborative, shapes of single layers, types of values."""

import reprlib
from enum import Enum
from typing import Any, Dict, FrozenSet, Mapping, Optional, Union, get_args, get_origin

from collab_fairseq.attention.attention_types import SITES, per_layer_settings
from fairseq_modern.errors import UserError

_LARGEST = 2**63 - 1  # largest integer that PyTorch accepts


class ConfigurationError(UserError):
    """A flag or setting has an invalid value."""


def parse_sites(value: str, flag: str = "--collaborative-heads") -> FrozenSet[str]:
    """The sites in the value of a flag: names from :data:`SITES` joined by ``_`` in any order, or ``none``."""
    if value == "none":
        return frozenset()
    names = str(value).split("_")
    if not set(names) <= set(SITES):
        raise ConfigurationError(
            f"{flag} must be sites among {', '.join(SITES)} joined by '_' (such as encoder_cross), or none; "
            f"got {value!r}"
        )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{flag} must name each site once; got {value!r}")
    return frozenset(names)


def parse_shapes(shapes: Optional[Mapping[str, Mapping[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """Check the setting ``attention_shapes``, and drop properties that are None.

    Args:
        shapes: layer ID (``cross.3``) → properties from :func:`.per_layer_settings`.
    """
    if shapes is None:
        return {}
    check_type("attention_shapes", Dict, shapes)
    parsed = {}
    property_types = per_layer_settings()
    for layer_id, properties in shapes.items():
        site, _, layer = str(layer_id).partition(".")
        if site not in SITES or not layer.isdecimal():
            raise ConfigurationError(f"keys of attention_shapes must look like encoder.0 or cross.3; got {layer_id!r}")
        setting = f"attention_shapes[{layer_id}]"
        check_type(setting, Dict, properties)
        for name, value in properties.items():
            if name not in property_types:
                raise ConfigurationError(f"properties in {setting} must be {', '.join(property_types)}; got {name!r}")
            check_type(f"{setting}.{name}", Optional[property_types[name]], value)
        parsed[layer_id] = {name: value for name, value in properties.items() if value is not None}
    return parsed


def check_type(name: str, hint: Any, value: Any) -> None:
    """Raise ConfigurationError unless the value of a setting has the type of its field.

    Args:
        name: of the setting, for the error message.
        hint: the field's type hint. Any text is accepted for an enumeration.
    """
    if hint is Any:
        return
    if get_origin(hint) is Union:  # Optional
        if value is None:
            return
        (hint,) = set(get_args(hint)) - {type(None)}
    base = get_origin(hint) or hint
    if base is list:
        expected, valid = "a list of numbers", _is_list_of_numbers(value)
    elif base is dict:
        expected, valid = "a mapping", isinstance(value, Mapping)
    elif base is bool:
        expected, valid = "true or false", isinstance(value, int) and value in (0, 1)
    elif base in (int, float):
        expected, valid = f"of type {base.__name__}", _is_number(value, base)
    else:
        missing = value == "???"  # in OmegaConf
        expected, valid = "of type str", isinstance(value, (str, Enum)) and not missing
    if not valid:
        raise ConfigurationError(f"{name} must be {expected}; got {reprlib.repr(value)}")


def _is_list_of_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(number, int) for number in value)
    return isinstance(value, str)  # from the command line


def _is_number(value: Any, number_type: type) -> bool:
    is_number = isinstance(value, (int, number_type)) and not isinstance(value, bool)
    return is_number and -_LARGEST <= value <= _LARGEST  # False for NaN


def flat_settings(cfg: Any) -> Dict[str, Any]:
    """Settings of a config by flat names, with the widths and numbers of heads of encoder and decoder."""
    settings = dict(vars(cfg))
    for side in ("encoder", "decoder"):
        stack = getattr(cfg, side)
        settings[f"{side}_embed_dim"] = stack.embed_dim
        settings[f"{side}_attention_heads"] = stack.attention_heads
    return settings

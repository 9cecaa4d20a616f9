"""Settings of models: flat names, shapes of single layers, types of values."""

import reprlib
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Union, get_args, get_origin

from collab_fairseq.attention.attention_types import LAYER_SETTINGS, SITES
from fairseq_modern.errors import UserError

#: nested sections of fairseq's model config
SUB_CONFIGS = ("encoder", "decoder", "quant_noise")
_LARGEST = 2**63 - 1  # largest integer that PyTorch accepts


def flat(model: Any) -> Dict[str, Any]:
    """Settings of a model by flat names: ``encoder_layers`` for ``encoder: {layers: …}``.

    Args:
        model: flags, nested or flat settings of Hydra or of a checkpoint, or the config.

    Raises:
        UserError: a setting is given twice, or a section is not a mapping.
    """
    settings = dict(model if isinstance(model, Mapping) else vars(model))
    for section in SUB_CONFIGS:
        nested = settings.pop(section, None) or {}
        if is_dataclass(nested):
            nested = vars(nested)
        check_type(f"model.{section}", Dict, nested)
        for key, value in nested.items():
            name = f"{section}_{key}"
            if name in settings:
                raise UserError(f"model.{section}.{key} and model.{name} are the same setting; give only one")
            settings[name] = value
    return {name: str(value) if isinstance(value, Enum) else value for name, value in settings.items()}


def parse_shapes(shapes: Optional[Mapping[str, Mapping[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """Check ``attention_shapes``, layer ID (``cross.3``) → :data:`.LAYER_SETTINGS`; drop properties that are None."""
    if shapes is None:
        return {}
    check_type("attention_shapes", Dict, shapes)
    parsed = {}
    for layer_id, properties in shapes.items():
        site, _, layer = str(layer_id).partition(".")
        if site not in SITES or not layer.isdecimal():
            raise UserError(f"keys of attention_shapes must look like encoder.0 or cross.3; got {layer_id!r}")
        setting = f"attention_shapes[{layer_id}]"
        check_type(setting, Dict, properties)
        for name, value in properties.items():
            if name not in LAYER_SETTINGS:
                raise UserError(f"properties in {setting} must be {', '.join(LAYER_SETTINGS)}; got {name!r}")
            check_type(f"{setting}.{name}", Optional[LAYER_SETTINGS[name]], value)
        parsed[layer_id] = {name: value for name, value in properties.items() if value is not None}
    return parsed


def check_type(name: str, hint: Any, value: Any) -> None:
    """Raise UserError unless the value of a setting has the type of its field.

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
        raise UserError(f"{name} must be {expected}; got {reprlib.repr(value)}")


def _is_list_of_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(number, int) for number in value)
    return isinstance(value, str)  # from the command line


def _is_number(value: Any, number_type: type) -> bool:
    is_number = isinstance(value, (int, number_type)) and not isinstance(value, bool)
    return is_number and -_LARGEST <= value <= _LARGEST  # False for NaN

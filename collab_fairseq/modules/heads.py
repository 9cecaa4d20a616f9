"""Names of heads, as Michel, Levy and Neubig (2019, https://arxiv.org/abs/1905.10650) write them.

``E:1:3,5`` are heads 3 and 5 of the first layer's encoder self-attention; ``A`` is encoder–decoder attention, ``D``
decoder self-attention. Layers and heads count from 1. Several descriptors are separated by blanks.

Within the program a set of heads is a dict: layer name (``encoder.0``, ``cross.3``, counted from 0) → heads, from 0.
"""

import re
from typing import Dict, Iterable, Mapping, Optional, Tuple

from .settings import SITES, ConfigurationError

#: letter → site
LETTERS = {"E": "encoder", "A": "cross", "D": "decoder"}

Heads = Dict[str, Tuple[int, ...]]

_DESCRIPTOR = re.compile(r"([A-Za-z]+):([0-9]+):([0-9]+(?:,[0-9]+)*)")
_FORM = "expected E (encoder), A (encoder–decoder) or D (decoder), a layer and heads, counted from 1, such as E:1:3,5"


def parse_heads(text: Optional[str]) -> Heads:
    """The heads that descriptors name; None and the empty text name none.

    Raises:
        ConfigurationError: a descriptor of another form, by name.
    """
    chosen: Dict[str, set] = {}
    for word in (text or "").split():
        match = _DESCRIPTOR.fullmatch(word)
        if match is None or match[1] not in LETTERS:
            raise ConfigurationError(f"{word!r} does not name heads: {_FORM}")
        layer, heads = int(match[2]), [int(number) for number in match[3].split(",")]
        if layer < 1 or min(heads) < 1:
            raise ConfigurationError(f"{word!r} does not name heads: layers and heads count from 1")
        chosen.setdefault(f"{LETTERS[match[1]]}.{layer - 1}", set()).update(head - 1 for head in heads)
    return {name: tuple(sorted(chosen[name])) for name in in_order(chosen)}


def check_heads(heads: Mapping[str, Iterable[int]], counts: Mapping[str, int]) -> None:
    """Refuse heads that a model does not have.

    Args:
        counts: layer name → number of its heads.

    Raises:
        ConfigurationError: a layer or head that is not there, and what is there.
    """
    for name, members in heads.items():
        site, layer = name.split(".")
        if name not in counts:
            layers = sum(other.startswith(f"{site}.") for other in counts)
            raise ConfigurationError(
                f"{short_name(name)} names layer {int(layer) + 1} of {site} attention, but the model has {layers} there"
            )
        for head in members:
            if head >= counts[name]:
                raise ConfigurationError(
                    f"{head_name(name, head)} names head {head + 1}, but {short_name(name)} has {counts[name]} heads"
                )


def short_name(name: str) -> str:
    """``encoder.0`` → ``E:1``"""
    site, layer = name.split(".")
    letter = next(letter for letter, other in LETTERS.items() if other == site)
    return f"{letter}:{int(layer) + 1}"


def head_name(name: str, head: int) -> str:
    """``encoder.0``, 2 → ``E:1:3``"""
    return f"{short_name(name)}:{head + 1}"


def in_model(name: str) -> Tuple[int, ...]:
    """Sorts names such as ``E:1:3`` in the order of :func:`in_order`."""
    letter, *numbers = name.split(":")
    return (list(LETTERS).index(letter), *map(int, numbers))


def describe(heads: Mapping[str, Iterable[int]]) -> str:
    """The descriptors of a set of heads, such that :func:`parse_heads` gives it back."""
    numbers = {name: ",".join(str(head + 1) for head in sorted(heads[name])) for name in in_order(heads)}
    return " ".join(f"{short_name(name)}:{members}" for name, members in numbers.items() if members)


def in_order(names: Iterable[str]) -> list:
    """Layer names in the order encoder, cross, decoder, from the first layer to the last."""
    return sorted(names, key=lambda name: (SITES.index(name.split(".")[0]), int(name.split(".")[1])))

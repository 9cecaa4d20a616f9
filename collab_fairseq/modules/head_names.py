"""Names of heads, in the notation of Michel, Levy and Neubig (2019, https://arxiv.org/abs/1905.10650).

``E:1:3,5`` are heads 3 and 5 of the encoder self-attention in layer 1; ``A`` is encoder–decoder attention, ``D``
decoder self-attention. Layers and heads count from 1. Several descriptors are separated by spaces.

In the code, a set of heads is a dictionary: layer ID (``encoder.0``, ``cross.3``) → heads; both count from 0.
"""

import re
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from fairseq_modern.errors import UserError

#: letter → site
LETTERS = {"E": "encoder", "A": "cross", "D": "decoder"}
_LETTER_OF = {site: letter for letter, site in LETTERS.items()}

Heads = Dict[str, Tuple[int, ...]]

_NUMBER = "0*[1-9][0-9]*"
_DESCRIPTOR = re.compile(f"([{''.join(LETTERS)}]):({_NUMBER}):({_NUMBER}(?:,{_NUMBER})*)")


def parse_heads(text: Optional[str]) -> Heads:
    """The heads that descriptors name; no heads for None or an empty text."""
    chosen: Dict[str, set] = {}
    for descriptor in (text or "").split():
        match = _DESCRIPTOR.fullmatch(descriptor)
        if match is None:
            raise UserError(
                f"{descriptor!r} does not name heads: expected E (encoder), A (encoder–decoder) or D (decoder), "
                "a layer and heads, counted from 1, such as E:1:3,5"
            )
        layer_id = f"{LETTERS[match[1]]}.{int(match[2]) - 1}"
        chosen.setdefault(layer_id, set()).update(int(number) - 1 for number in match[3].split(","))
    return {layer_id: tuple(sorted(chosen[layer_id])) for layer_id in in_model_order(chosen)}


def check_heads(heads: Mapping[str, Iterable[int]], counts: Mapping[str, int]) -> None:
    """Raise UserError unless all heads exist; ``counts``: layer ID → number of heads."""
    for layer_id, members in heads.items():
        layer_name = short_name(layer_id)
        if layer_id not in counts:
            raise UserError(f"{layer_name} names a layer that the model does not have")
        count = counts[layer_id]
        for head in members:
            if head >= count:
                raise UserError(
                    f"{head_name(layer_id, head)} names head {head + 1}, but {layer_name} has {count} heads"
                )


def short_name(layer_id: str) -> str:
    """``encoder.0`` → ``E:1``"""
    site, layer = layer_id.split(".")
    return f"{_LETTER_OF[site]}:{int(layer) + 1}"


def head_name(layer_id: str, head: int) -> str:
    """``encoder.0``, 2 → ``E:1:3``"""
    return f"{short_name(layer_id)}:{head + 1}"


def model_order(name: str) -> Tuple[int, ...]:
    """Sort key for names such as ``E:1:3``: the order of :func:`in_model_order`."""
    letter, *numbers = name.split(":")
    return (list(LETTERS).index(letter), *map(int, numbers))


def describe(heads: Mapping[str, Iterable[int]]) -> str:
    """The descriptors of a set of heads; the inverse of :func:`parse_heads`."""
    descriptors = []
    for layer_id in in_model_order(heads):
        numbers = ",".join(str(head + 1) for head in sorted(heads[layer_id]))
        if numbers:
            descriptors.append(f"{short_name(layer_id)}:{numbers}")
    return " ".join(descriptors)


def in_model_order(layer_ids: Iterable[str]) -> List[str]:
    """Layer IDs ordered by site (encoder, cross, decoder), then by layer."""
    return sorted(layer_ids, key=lambda layer_id: model_order(short_name(layer_id)))

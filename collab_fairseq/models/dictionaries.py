"""The dictionaries of a model: its settings have the SHA-256 of their symbols.

A dictionary of the same size with other symbols, or in another order, fits the parameters, but gives words the
embeddings of others. fairseq compares sizes only.
"""

import hashlib
from typing import Any, Dict, Mapping, Optional

from collab_fairseq.checkpoints import DICTIONARIES
from fairseq_modern.errors import UserError


def dictionary_digests(task: Any) -> Dict[str, Optional[str]]:
    """Setting → SHA-256 of the symbols of the task's dictionary, one per line.

    None for placeholders, with which a model is loaded without text.
    """
    digests: Dict[str, Optional[str]] = {}
    for name in DICTIONARIES:
        dictionary = getattr(task, name.removesuffix("_sha256"))
        symbols = [dictionary[index] for index in range(len(dictionary))]
        if any(not symbol.startswith("madeupword") for symbol in symbols[dictionary.nspecial :]):
            digests[name] = hashlib.sha256("\n".join(symbols).encode()).hexdigest()
        else:
            digests[name] = None
    return digests


def check_dictionaries(saved: Mapping[str, Any], current: Mapping[str, Any], origin: str) -> None:
    """Raise UserError if dictionaries differ. Earlier versions did not save their digests.

    Args:
        saved: settings of a trained model.
        current: settings of a model with the dictionaries in use, or :func:`dictionary_digests`.
        origin: of ``saved``, for the message.
    """
    for name in DICTIONARIES:
        expected, digest = saved.get(name), current.get(name)
        if None not in (expected, digest) and expected != digest:
            raise UserError(
                f"the {name.split('_')[0]} dictionary must have the symbols of the one that {origin} was trained with, "
                f"in the same order (SHA-256 {str(expected)[:12]}…); got another one ({str(digest)[:12]}…): it is the "
                "data of another model"
            )

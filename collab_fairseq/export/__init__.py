"""A trained model for those who use it: as a folder of its own, and for other engines.

One file a target, with ``export(source, output, …)``, which writes the folder whole or not at all, and ``check``, which
sees beforehand that the target has all that the model needs. UserError: what the target lacks or what does not fit,
by name, or the folder cannot be written. TranslationError: a package is missing.
"""

import importlib
from typing import Any

TARGETS = ("folder", "ctranslate2", "fairseq", "huggingface")


def write(source: Any, target: str, output: Any, **options: Any) -> None:
    """Export ``source`` (:class:`.source.Source`) to one of `TARGETS`.

    Raises:
        UserError, TranslationError: as above; a refusal names the targets that can take the model.
    """
    from .source import UnsupportedError

    def takes(name: str) -> bool:
        try:
            importlib.import_module(f"{__name__}.{name}").check(source)
        except UnsupportedError:
            return False
        return True

    try:
        importlib.import_module(f"{__name__}.{target}").export(source, output, **options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; take --to {' or '.join(filter(takes, TARGETS))}") from error

"""Export of trained models to model folders and other inference engines.

Each target is a module with ``check(source)``, which returns the attention layers to write or raises UserError if the
target cannot express the model, and ``export(source, layers, output, …)``, which writes the output folder atomically.
"""

import contextlib
import importlib
from typing import Any, List

from collab_fairseq.files import check_new_folder
from fairseq_modern.errors import UserError

#: target → its options
TARGETS = {"folder": ("half",), "ctranslate2": ("quantization",), "fairseq": ("half",), "huggingface": ()}


def write(source: Any, target: str, output: Any, **options: Any) -> None:
    """Export ``source`` (:class:`.source.Source`) to the new folder ``output``, for one of `TARGETS`.

    Raises:
        UserError: ``output`` exists and is not an empty folder, or the target cannot express the model; the message
            lists the targets that can.
    """
    check_new_folder(output)
    try:
        layers = _module(target).check(source)
    except UserError as error:
        raise UserError(f"{error}; use --to {' or '.join(_suitable(source))}") from error
    _module(target).export(source, layers, output, **options)


def _module(target: str) -> Any:
    return importlib.import_module(f"{__name__}.{target}")


def _suitable(source: Any) -> List[str]:
    """The targets that can express the model."""
    suitable = []
    for target in TARGETS:
        with contextlib.suppress(UserError):
            _module(target).check(source)
            suitable.append(target)
    return suitable

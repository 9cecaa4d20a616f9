"""Export of trained models to model folders and other inference engines.

Each target is a module with ``export(source, output, …)``, which writes the output folder atomically, and
``check(source)``, which raises :class:`.source.UnsupportedError` if the target cannot express the model.
"""

import importlib
from typing import Any

#: target → its options
TARGETS = {"folder": ("half",), "ctranslate2": ("quantization",), "fairseq": ("half",), "huggingface": ()}


def write(source: Any, target: str, output: Any, **options: Any) -> None:
    """Export ``source`` (:class:`.source.Source`) to the new folder ``output``, for one of `TARGETS`.

    Raises:
        UnsupportedError: the target cannot express the model; the message lists the targets that can.
    """
    from .source import UnsupportedError

    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in TARGETS}
    try:
        modules[target].export(source, output, **options)
    except UnsupportedError as error:
        suitable = []
        for name, module in modules.items():
            try:
                module.check(source)
                suitable.append(name)
            except UnsupportedError:
                continue
        raise UnsupportedError(f"{error}; use --to {' or '.join(suitable)}") from error

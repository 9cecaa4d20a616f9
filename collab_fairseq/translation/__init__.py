"""A trained translation model: text to text, whatever computes it; and, of fairseq's data-bins, loss and translations.

The names below are loaded when they are asked for: an engine without torch starts in a fraction of a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import Loss, evaluate, loss, score, test_splits, translate  # noqa: F401
    from .load import TrainedModel, load_model, with_state  # noqa: F401
    from .text import add_text, batches, splits  # noqa: F401
    from .tokenizer import TranslationError  # noqa: F401
    from .translator import Translation, Translator  # noqa: F401

_HOMES = {
    "evaluation": ("Loss", "evaluate", "loss", "score", "test_splits", "translate"),
    "load": ("TrainedModel", "load_model", "with_state"),
    "text": ("add_text", "batches", "splits"),
    "translator": ("Translation", "Translator"),
    "tokenizer": ("TranslationError",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(importlib.import_module(f".{home}", __name__), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

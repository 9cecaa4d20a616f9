"""Trained translation models: loading, translation, losses and scores.

Names are imported on first use, so that an engine without torch starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import Loss, check_references, check_test_splits, evaluate, loss, score, translate  # noqa: F401
    from .load import TrainedModel, load_model, with_state  # noqa: F401
    from .text import add_text, batches, splits  # noqa: F401
    from .translator import Translation, Translator  # noqa: F401

_MODULES = {
    "evaluation": ("Loss", "check_references", "check_test_splits", "evaluate", "loss", "score", "translate"),
    "load": ("TrainedModel", "load_model", "with_state"),
    "text": ("add_text", "batches", "splits"),
    "translator": ("Translation", "Translator"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""A trained translation model of fairseq, run on the text of a data-bin: loss, translations, batches."""

from .evaluate import Loss, Score, evaluate, loss, score, test_splits, translate
from .load import TrainedModel, TranslationError, load_model, with_state
from .text import add_text, batches, references, splits

__all__ = [
    "Loss",
    "Score",
    "TrainedModel",
    "TranslationError",
    "add_text",
    "batches",
    "evaluate",
    "load_model",
    "loss",
    "references",
    "score",
    "splits",
    "test_splits",
    "translate",
    "with_state",
]

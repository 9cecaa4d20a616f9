"""A trained translation model of fairseq, run on the text of a data-bin: loss, translations, batches."""

from .evaluate import Loss, bleu, loss, translate
from .load import TrainedModel, TranslationError, load_model, with_state
from .text import add_text, batches, references, splits

__all__ = [
    "Loss",
    "TrainedModel",
    "TranslationError",
    "add_text",
    "batches",
    "bleu",
    "load_model",
    "loss",
    "references",
    "splits",
    "translate",
    "with_state",
]

"""Trained Hugging Face models turned into collaborative ones: BERT, DistilBERT, ALBERT and Marian.

>>> from transformers import AutoModelForSequenceClassification
>>> from collab_fairseq.reparam.huggingface import from_pretrained, to_collaborative
>>> model = AutoModelForSequenceClassification.from_pretrained("my-bert")  # doctest: +SKIP
>>> smaller = to_collaborative(model, 384, calibration=batches)  # doctest: +SKIP
>>> smaller.save_pretrained("my-bert-384")  # doctest: +SKIP
>>> smaller = from_pretrained("my-bert-384")  # doctest: +SKIP

Importing this package also lets ``AutoConfig`` and ``AutoModelFor…`` load such models. It needs the extra
``huggingface``; nothing else of the project imports it.
"""

from .convert import calibrate, check_convertible, score_weights, to_collaborative
from .layers import CollaborativeHeads, Shape
from .models import (
    CONFIGS,
    CollaborativeModel,
    HeadPlace,
    attention_layers,
    collaborative_class,
    from_pretrained,
    head_places,
    register,
)

register()

__all__ = [
    "CONFIGS",
    "CollaborativeHeads",
    "CollaborativeModel",
    "HeadPlace",
    "Shape",
    "attention_layers",
    "calibrate",
    "check_convertible",
    "collaborative_class",
    "from_pretrained",
    "head_places",
    "score_weights",
    "to_collaborative",
]

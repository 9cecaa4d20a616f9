"""BERT, DistilBERT, ALBERT and Marian of ``transformers`` with collaborative heads, and where their heads are.

Importing this package also lets ``AutoConfig`` and ``AutoModelFor…`` load collaborative models. It needs the extra
``huggingface``. Models are converted by :mod:`collab_fairseq.reparam.huggingface`.
"""

from .layers import CollaborativeHeads, Shape
from .models import (
    CONFIGS,
    CollaborativeModel,
    HeadOutputs,
    attention_layers,
    check_convertible,
    collaborative_class,
    from_pretrained,
    head_layers,
    register,
    score_weights,
)

register()

__all__ = [
    "CONFIGS",
    "CollaborativeHeads",
    "CollaborativeModel",
    "HeadOutputs",
    "Shape",
    "attention_layers",
    "check_convertible",
    "collaborative_class",
    "from_pretrained",
    "head_layers",
    "score_weights",
]

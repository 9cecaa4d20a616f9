"""Collaborative heads for BERT, DistilBERT, ALBERT and Marian of ``transformers``, and access to their heads.

Importing this package registers collaborative models with ``AutoConfig`` and ``AutoModelFor…``. It needs the extra
``huggingface``. :mod:`collab_fairseq.reparam.huggingface` converts models.
"""

from .examples import check_labels, measured, read_examples  # noqa: F401
from .folders import check_tokens, load_folder, load_tokenizer, text_batches  # noqa: F401
from .layers import CollaborativeHeads, Shape  # noqa: F401
from .models import (  # noqa: F401
    CONFIGS,
    CollaborativeModel,
    HeadOutputs,
    attention_layers,
    check_convertible,
    check_loaded,
    collaborative_class,
    from_pretrained,
    head_layers,
    register,
    score_weights,
)

register()

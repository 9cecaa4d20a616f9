"""Check that a tokenizer knows the words of a text."""

import logging
from typing import Any, Iterable, Mapping

import torch
from torch import Tensor

from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

#: maximum share of unknown tokens: tokenizers without subwords lack rare words
_MAX_UNKNOWN = 0.25


def check_tokens(tokenizer: Any, batches: Iterable[Mapping[str, Tensor]], name: str) -> None:
    """Log the share of unknown tokens in a text; raise a UserError if it is more than a quarter.

    For a folder without the files of its tokenizer, ``transformers`` can return one that knows no words.

    Args:
        batches: outputs of the tokenizer, with ``input_ids`` and ``attention_mask``, (N, T).
        name: of the text, for messages.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    tokens = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in batches])
    share = int((tokens == unknown).sum()) / max(1, len(tokens))
    logger.info("%s: %.1f %% of the tokens are unknown to the model", name, 100 * share)
    if share > _MAX_UNKNOWN:
        raise UserError(
            f"{name}: at most {_MAX_UNKNOWN:.0%} of the tokens may be unknown to the model; got {share:.0%}: the "
            "folder of the model must contain the files of its tokenizer, and the text must be in its language"
        )

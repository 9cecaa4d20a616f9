"""Models and tokenizers in local folders, with errors in one sentence."""

import logging
import os
from typing import Any, Dict, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from collab_fairseq.checkpoints import check_finite
from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike

from .models import from_pretrained

logger = logging.getLogger(__name__)

#: maximum share of unknown tokens: tokenizers without subwords lack rare words
_MAX_UNKNOWN = 0.25


def load_folder(path: PathLike) -> PreTrainedModel:
    """The standard or collaborative model of a folder.

    Raises:
        UserError: the folder has no config that transformers supports, no weights, weights with NaN or infinity, or
            only an adapter.
        AttentionError: see :func:`.from_pretrained`.
    """
    name = os.fspath(path)
    if os.path.isfile(os.path.join(name, "adapter_config.json")):
        raise UserError(f"{name} must be a complete model; got an adapter: merge it into its model, or unload it")
    try:
        AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:  # there is no config.json, or none of transformers
        raise UserError(
            f"{name} must be a Hugging Face model folder with a config.json whose model_type transformers supports; "
            "pass a fairseq model as its checkpoint file, such as model.pt or checkpoint_best.pt"
        ) from error
    try:
        model = from_pretrained(name, local_files_only=True)
    except OSError as error:  # of several lines
        raise UserError(f"{name} must contain the weights of the model: {str(error).splitlines()[0]}") from error
    check_finite(dict(model.named_parameters()), name)
    return model


def load_tokenizer(path: PathLike) -> Any:
    """The tokenizer of a folder.

    Raises:
        UserError: its files are missing.
    """
    problem = f"{os.fspath(path)} must contain the files of the model's tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(problem) from error
    # without files, transformers can return a tokenizer that knows no words
    if not any(os.path.isfile(os.path.join(path, name)) for name in tokenizer.vocab_files_names.values()):
        raise UserError(problem)
    return tokenizer


def text_batches(
    model: Any, tokenizer: Any, texts: Sequence[Sequence[str]], size: int, names: Sequence[str] = ("text", "text_pair")
) -> Iterator[Dict[str, Tensor]]:
    """Batches of examples in order, on the device of the model; texts are cut to its positions.

    Args:
        names: arguments of the tokenizer for the first and the second text of each example.
    """
    longest = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    options = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
    for start in range(0, len(texts), size):
        columns = map(list, zip(*texts[start : start + size], strict=True))
        inputs = tokenizer(**dict(zip(names, columns, strict=False)), **options)
        yield {name: tensor.to(model.device) for name, tensor in inputs.items()}


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

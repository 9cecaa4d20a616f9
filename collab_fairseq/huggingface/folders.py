"""Models and tokenizers in local folders, with errors in one sentence."""

import os
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike

from .models import from_pretrained


def load_folder(path: PathLike) -> PreTrainedModel:
    """The standard or collaborative model of a folder.

    Raises:
        UserError: the folder has no config that transformers supports, no weights, or only an adapter.
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
        return from_pretrained(name, local_files_only=True)
    except OSError as error:  # of several lines
        raise UserError(f"{name} must contain the weights of the model: {str(error).splitlines()[0]}") from error


def load_tokenizer(path: PathLike) -> Any:
    """The tokenizer of a folder.

    Raises:
        UserError: its files are missing.
    """
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{os.fspath(path)} must contain the files of the model's tokenizer") from error

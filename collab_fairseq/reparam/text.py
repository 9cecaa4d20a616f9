"""Text for calibration and distillation: a split of the data-bin, or a text file that the model translates."""

import hashlib
import logging
import os
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from collab_fairseq import translation
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation import TrainedModel
from collab_fairseq.translation.text import dataset
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

_DEFAULT_SENTENCES = 400


def text_of(
    flag: str, trained: TrainedModel, max_tokens: int, *, option: str = "--calibration", seed: Optional[int] = None
) -> Tuple[str, Dict[str, Any]]:
    """Find a split, or read a text file and add its translation by the model as a split.

    Args:
        flag: value of ``option``: ``SPLIT:N`` or ``SOURCE``.
        max_tokens: tokens per batch.
        option: name of the option, for errors and the name of the new split.
        seed: read only the source side, and sample the translations from the model with this seed.

    Returns:
        The name of the split, and a description for records: ``text``, in words, and ``sentences``, the number of
        sentences from the start of the split.
    """
    name = option.lstrip("-")
    split, sentences = sentences_of(flag, trained, option)
    if not split:
        sources = read_lines(flag, f"the sentences of {option}")
        description = f"{sentences} sentences, {os.path.basename(flag)}"
    else:
        description = f"the first {sentences} sentences of {split}"
        if seed is None:
            return split, {"text": description, "sentences": sentences}
        sources = _sources(trained, split, sentences)
    translation.add_text(trained, name, sources, _translated(trained, sources, name, max_tokens, seed))
    description += " and its translation by the model" if seed is None else ", translations drawn from the model"
    return name, {"text": description, "sentences": len(sources)}


def sentences_of(flag: str, trained: TrainedModel, option: str) -> Tuple[str, int]:
    """The split of ``SPLIT:N``, or an empty name for ``SOURCE``, and the number of sentences."""
    if os.path.isfile(flag):
        return "", len(read_lines(flag, f"the sentences of {option}"))
    split, _, number = flag.partition(":")
    splits = translation.splits(trained)
    if split not in splits:
        known = ", ".join(splits) or "none"
        raise UserError(
            f"{option} must be SPLIT:N or SOURCE; got {flag}, which is neither a file nor a split of the data-bin "
            f"({known})"
        )
    if number and not (number.isdigit() and int(number) > 0):
        raise UserError(f"the number of sentences in {option} must be at least 1; got {flag}")
    return split, min(int(number) if number else _DEFAULT_SENTENCES, len(dataset(trained, split)))


def tokens_of(trained: TrainedModel, split: str, sentences: int) -> Iterable[Tensor]:
    """The tokens of source and target of the first sentences of a split."""
    data = dataset(trained, split)
    return (side[number] for number in range(min(sentences, len(data))) for side in (data.src, data.tgt))


def digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of integer tensors and their shapes."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(str(list(tensor.shape)).encode())
        result.update(tensor.cpu().long().numpy().tobytes())
    return result.hexdigest()


def _translated(
    trained: TrainedModel, sources: Sequence[str], name: str, max_tokens: int, seed: Optional[int]
) -> List[str]:
    """Translations in the model's tokens, sampled with the seed or else greedy."""
    translation.add_text(trained, f"{name} source", sources)
    # a sampled translation might never end
    search: Dict[str, Any] = {} if seed is None else {"sampling": True, "max_len_a": 2, "max_len_b": 10}
    search.update(beam=1, max_tokens=max_tokens, remove_bpe=None, unkpen=float("inf"))
    logger.info("translating %d sentences for %s", len(sources), name)
    with torch.random.fork_rng(devices=[trained.device] if trained.device.type == "cuda" else []):
        torch.manual_seed(seed or 0)
        return translation.translate(trained, f"{name} source", **search)


def _sources(trained: TrainedModel, split: str, sentences: int) -> List[str]:
    """The first sentences of a split, in the model's tokens, except those longer than the model's maximum."""
    data = dataset(trained, split)
    longest: int = trained.model.max_positions()[0]  # type: ignore[operator]
    first = (data.src[number] for number in range(sentences))
    return [data.src_dict.string(tokens) for tokens in first if len(tokens) <= longest]

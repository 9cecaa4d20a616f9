"""Text for calibration and distillation: a split of the data-bin or a text file, with the model's translations."""

import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from collab_fairseq import translation
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation import TrainedModel, TranslationError
from collab_fairseq.translation.text import dataset

logger = logging.getLogger(__name__)

_SENTENCES = 400


def text_of(
    flag: str, trained: TrainedModel, max_tokens: int, *, option: str = "--calibration", seed: Optional[int] = None
) -> Tuple[str, Dict[str, Any]]:
    """Find or read the text; sources without a translation are translated by the model.

    Args:
        flag: the value of ``option``: ``SPLIT:N`` or ``SOURCE``.
        seed: if given, only the source side is read, and the model draws the translations.

    Returns:
        The name of the split, in the model's tokens, and the setting of a record: ``text``, a description, and
        ``sentences``, the number of sentences from the start of the split.

    Raises:
        TranslationError: no such file or split. UserError: a file that cannot be read.
    """
    name = option.lstrip("-")
    if os.path.isfile(flag):
        sources = read_lines(flag, f"the sentences of {option}")
        description = f"{len(sources)} sentences, {os.path.basename(flag)}"
    else:
        split, _, number = flag.partition(":")
        splits = translation.splits(trained)
        if split not in splits:
            raise TranslationError(
                f"{option} must be SPLIT:N or SOURCE; there is no file {flag}, and the data-bin has no split "
                f"{split!r}: it has {', '.join(splits) or 'none'}"
            )
        if number and not (number.isdigit() and int(number) > 0):
            raise TranslationError(f"{option} {flag}: the number of sentences must be at least 1")
        sentences = int(number) if number else _SENTENCES
        description = f"the first {sentences} sentences of {split}"
        if seed is None:
            return split, {"text": description, "sentences": sentences}
        sources = _sources(trained, split, sentences)
    translation.add_text(trained, name, sources, _translated(trained, sources, name, max_tokens, seed))
    description += " and its translation by the model" if seed is None else ", translations drawn from the model"
    return name, {"text": description, "sentences": len(sources)}


def _translated(
    trained: TrainedModel, sources: Sequence[str], name: str, max_tokens: int, seed: Optional[int]
) -> List[str]:
    """The model's translations, drawn with a seed or else greedy; like the sources in the model's tokens."""
    translation.add_text(trained, f"{name} source", sources)
    # a drawn translation might never end
    search: Dict[str, Any] = {} if seed is None else {"sampling": True, "max_len_a": 2, "max_len_b": 10}
    search.update(beam=1, max_tokens=max_tokens, remove_bpe=None, unkpen=float("inf"))
    logger.info("translating %d sentences for %s", len(sources), name)
    with torch.random.fork_rng(devices=[trained.device] if trained.device.type == "cuda" else []):
        torch.manual_seed(seed or 0)
        return translation.translate(trained, f"{name} source", **search)


def _sources(trained: TrainedModel, split: str, sentences: int) -> List[str]:
    """The first sentences of a split, in the model's tokens, without those longer than its positions."""
    data = dataset(trained, split)
    longest: int = trained.model.max_positions()[0]  # type: ignore[operator]
    first = (data.src[number] for number in range(min(sentences, len(data.src))))
    return [data.src_dict.string(tokens) for tokens in first if len(tokens) <= longest]

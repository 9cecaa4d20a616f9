"""What text may be given as, a split of the data-bin or text files; and the model's own translations of a text."""

import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from collab_fairseq import translation
from collab_fairseq.translation import TrainedModel, TranslationError
from collab_fairseq.translation.text import dataset

logger = logging.getLogger(__name__)

_SENTENCES = 400
#: sentences whose loss tells the source from the target
_SOME = 50


def text_of(
    flag: str, trained: TrainedModel, max_tokens: int, *, option: str = "--calibration", seed: Optional[int] = None
) -> Tuple[str, Dict[str, Any]]:
    """Find or read the text; sources without a translation are translated by the model.

    Args:
        flag: as the value of ``option``: ``SPLIT:N``, ``SOURCE,TARGET`` or ``SOURCE``.
        seed: if given, the source side is all that is read, and the model draws the translations.

    Returns:
        The split that it is, in the model's units, and the setting of a record: ``text``, what it is for people, and
        ``sentences``, how many of the split, the first.

    Raises:
        TranslationError: no such file or split, or files of different lengths.
    """
    name, files = option.lstrip("-"), flag.split(",")
    if len(files) > 2:
        raise TranslationError(f"{option} must be SPLIT:N, SOURCE,TARGET or SOURCE, but is {flag!r}")
    if len(files) == 1 and not os.path.isfile(flag):
        split, _, number = flag.partition(":")
        there = translation.splits(trained)
        if split not in there:
            raise TranslationError(
                f"{option} {flag}: there is no file of that name, and the data-bin has no split {split!r}; "
                f"it has {', '.join(there) or 'none'}"
            )
        if number and not (number.isdigit() and int(number) > 0):
            raise TranslationError(f"{option} {flag}: the number of sentences must be at least 1")
        found = int(number) if number else _SENTENCES
        description = f"the first {found} sentences of {split}"
        if seed is None:
            return split, {"text": description, "sentences": found}
        lines = [_sources(trained, split, found)]
    else:
        lines = [_lines(file, option) for file in files]
        description = f"{len(lines[0])} sentences, {' and '.join(map(os.path.basename, files))}"
    if len(lines) == 1 or seed is not None:
        lines[1:] = [own_translations(trained, lines[0], name, max_tokens, seed)]
        description += " and its translation by the model" if seed is None else ", translations drawn from the model"
    translation.add_text(trained, name, *lines)
    if len(files) == 2 and seed is None:
        _check_order(trained, name, lines, max_tokens, option)
    return name, {"text": description, "sentences": len(lines[0])}


def own_translations(
    trained: TrainedModel, sources: Sequence[str], name: str, max_tokens: int, seed: Optional[int] = None
) -> List[str]:
    """The model's translations, in its own units as the sources are.

    Args:
        seed: the translations are drawn from the model; None: greedy search.
    """
    translation.add_text(trained, f"{name} source", sources)
    # what is drawn may never end
    search: Dict[str, Any] = {} if seed is None else {"sampling": True, "max_len_a": 2, "max_len_b": 10}
    search.update(beam=1, max_tokens=max_tokens, remove_bpe=None, unkpen=float("inf"))
    logger.info("translating %d sentences for %s", len(sources), name)
    with torch.random.fork_rng(devices=[trained.device] if trained.device.type == "cuda" else []):
        torch.manual_seed(seed or 0)
        return translation.translate(trained, f"{name} source", **search)


def _check_order(trained: TrainedModel, name: str, lines: Sequence[List[str]], max_tokens: int, option: str) -> None:
    """Refuse targets given as sources: with a dictionary of both languages nothing else would tell."""
    swapped = f"{name} swapped"
    try:
        translation.add_text(trained, swapped, *(side[:_SOME] for side in reversed(lines)))
    except TranslationError:  # dictionaries of their own
        return
    some = {"max_tokens": max_tokens, "sentences": _SOME}
    given, other = (translation.loss(trained, split, **some).nll_loss for split in (name, swapped))
    del trained.task.datasets[swapped]
    if other < given:
        raise TranslationError(
            f"{option} must be SOURCE,TARGET, but the model finds the first file likelier as the translation of the "
            f"second ({other:.2f} bits a token) than the other way round ({given:.2f})"
        )


def _sources(trained: TrainedModel, split: str, sentences: int) -> List[str]:
    """The first sentences of a split that the model is long enough for, in its units."""
    model, data = trained.model, dataset(trained, split)
    some = (data.src[number] for number in range(min(sentences, len(data.src))))
    longest: int = model.max_positions()[0]  # type: ignore[operator]
    return [data.src_dict.string(tokens) for tokens in some if len(tokens) <= longest]


def _lines(file: str, option: str) -> List[str]:
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as stream:
            return [line.removesuffix("\n") for line in stream]
    except UnicodeDecodeError as error:
        raise TranslationError(f"{option}: {file} is not UTF-8 text ({error.reason})") from error

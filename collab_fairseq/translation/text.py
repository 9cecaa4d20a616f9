"""Batches of the text of a data-bin."""

import logging
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy
import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, ListDataset, data_utils

from collab_fairseq.scoring.text import subword_marker

from .load import TrainedModel
from .tokenizer import TranslationError

logger = logging.getLogger(__name__)

#: the largest share of unknown tokens: subwords spell nearly every word, dictionaries of words miss the rare ones
_MOST_UNKNOWN = {"subwords": 0.05, "words": 0.25}
#: of so many sentences from the first
_LOOKED_AT = 1000


def splits(trained: TrainedModel) -> List[str]:
    """Names of the splits that the data-bin has: train, valid, test, test1, …"""
    source, target = trained.task.cfg.source_lang, trained.task.cfg.target_lang
    pattern = re.compile(rf"(.+)\.{source}-{target}\.{source}\.(?:idx|bin)")
    found = {match.group(1) for match in map(pattern.fullmatch, os.listdir(trained.cfg.task.data)) if match}
    return sorted(found, key=lambda name: (not name.startswith("train"), not name.startswith("valid"), name))


def dataset(trained: TrainedModel, split: str) -> Any:
    """fairseq's data set of a split, loaded once.

    Raises:
        TranslationError: there is no such split (the message lists those that are there), or its text is not in the
            model's tokens.
    """
    if split not in trained.task.datasets:
        there = splits(trained)
        if split not in there:
            raise TranslationError(
                f"{trained.cfg.task.data} has no split {split!r}; there are {', '.join(there) or 'none'}"
            )
        trained.task.load_dataset(split, combine=False, epoch=1)
        _check_tokens(trained.task.dataset(split), split)
    return trained.task.dataset(split)


def add_text(trained: TrainedModel, name: str, source: Sequence[str], target: Optional[Sequence[str]] = None) -> None:
    """Make text that is in no data-bin a split of this name.

    Args:
        source, target: lines in the model's own tokens, separated by blanks; without targets a split can only be
            translated.

    Raises:
        TranslationError: not as many targets as sources, no line, a name that is taken, or text in other tokens.
    """
    if name in trained.task.datasets or name in splits(trained):
        raise TranslationError(f"there is a split {name!r} already")
    if not source or (target is not None and len(source) != len(target)):
        lines = "none" if target is None else f"{len(source)} and {len(target)}"
        raise TranslationError(f"{name}: source and target must have equally many lines and at least one, got {lines}")
    task = trained.task.cfg

    def side(lines: Optional[Sequence[str]], dictionary: Any) -> List[Any]:
        if lines is None:
            return [None, None, dictionary]
        encoded = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
        return [ListDataset(encoded), numpy.array([len(tokens) for tokens in encoded]), dictionary]

    made = LanguagePairDataset(
        *side(source, trained.task.source_dictionary), *side(target, trained.task.target_dictionary),
        shuffle=False, left_pad_source=task.left_pad_source, left_pad_target=task.left_pad_target,
    )  # fmt: skip
    _check_tokens(made, name)
    trained.task.datasets[name] = made


def _check_tokens(data: Any, name: str) -> None:
    """Say which share of the tokens the dictionaries do not have; refuse text that is in other tokens."""
    for side, lines, dictionary in (("source", data.src, data.src_dict), ("target", data.tgt, data.tgt_dict)):
        if lines is None:
            continue
        tokens = torch.cat([lines[number] for number in range(min(len(lines), _LOOKED_AT))])
        tokens = tokens[tokens != dictionary.eos()]
        share = int((tokens == dictionary.unk()).sum()) / max(1, len(tokens))
        logger.info("%s: %.1f %% of the %s tokens are unknown to the model", name, 100 * share, side)
        kind = "subwords" if subword_units(dictionary) else "words"
        if share > _MOST_UNKNOWN[kind]:
            raise TranslationError(
                f"{name}: {share:.0%} of the {side} tokens are not among the model's {kind} (at most "
                f"{_MOST_UNKNOWN[kind]:.0%} may be); the text must be segmented as the training text was, with the "
                "same SentencePiece or BPE model where there is one"
            )


def subword_units(dictionary: Any) -> Optional[str]:
    """What fairseq's ``--remove-bpe`` is to be for a dictionary; None where it has words."""
    return {"▁": "sentencepiece", "@@": "@@ ", None: None}[subword_marker(dictionary.symbols)]


def batches(
    trained: TrainedModel, split: str, *, max_tokens: int = 4000, sentences: Optional[int] = None
) -> Iterator[Dict[str, Any]]:
    """fairseq's samples, on the model's device, in the same order every time: sorted by length.

    Args:
        split: train, valid, test, test1, …
        max_tokens: per batch, padding included.
        sentences: only so many, the first of the corpus.

    Raises:
        TranslationError: no such split, or a sentence that the model is too short for (in train these are left out).
    """
    data = dataset(trained, split)
    if sentences is not None and sentences < 1:
        raise TranslationError(f"at least one sentence is needed, got {sentences}")
    with data_utils.numpy_seed(trained.seed):
        order = data.ordered_indices()
    if sentences is not None:
        order = order[order < sentences]
    model: Any = trained.model
    longest = utils.resolve_max_positions(trained.task.max_positions(), model.max_positions())
    order, left_out = data.filter_indices_by_size(order, longest)
    if len(left_out) and not split.startswith("train"):
        raise TranslationError(
            f"{len(left_out)} sentences of {split} are longer than the {longest} positions of the model, "
            f"among them number {left_out[0]}"
        )
    chunks = data.batch_by_size(
        order, max_tokens=max_tokens, max_sentences=None,
        required_batch_size_multiple=trained.cfg.dataset.required_batch_size_multiple,
    )  # fmt: skip
    for chunk in chunks:
        sample = data.collater([data[index] for index in chunk])
        yield utils.apply_to_sample(lambda tensor: tensor.to(trained.device), sample)

"""Batches of text from a data-bin or from memory."""

import logging
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy
import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, ListDataset, data_utils

from collab_fairseq.scoring.text import subword_marker
from fairseq_modern.errors import UserError

from .load import TrainedModel
from .tokenizer import SUBWORD_FILES

logger = logging.getLogger(__name__)

#: maximum share of unknown tokens: subwords spell nearly every word, word dictionaries lack rare words
_MAX_UNKNOWN = {"subwords": 0.05, "words": 0.25}
#: number of sentences in which unknown tokens are counted
_SAMPLE = 1000
#: where to look for the SentencePiece model, relative to the data-bin
_SENTENCEPIECE_FILES = (SUBWORD_FILES["sentencepiece"], "sentencepiece.model", "../sentencepiece.model")


def splits(trained: TrainedModel) -> List[str]:
    """Names of the splits in the data-bin: train, valid, test, test1, …"""
    source, target = trained.task.cfg.source_lang, trained.task.cfg.target_lang
    source, target = re.escape(source), re.escape(target)
    pattern = re.compile(rf"(.+)\.{source}-{target}\.{source}\.(?:idx|bin)")
    names = {match.group(1) for match in map(pattern.fullmatch, os.listdir(trained.cfg.task.data)) if match}
    return sorted(names, key=lambda name: (not name.startswith("train"), not name.startswith("valid"), name))


def dataset(trained: TrainedModel, split: str) -> Any:
    """fairseq's data set of a split, loaded once."""
    if split not in trained.task.datasets:
        names = splits(trained)
        if split not in names:
            raise UserError(
                f"the split must be one of those in {trained.cfg.task.data}, {', '.join(names) or 'none'}; got {split}"
            )
        trained.task.load_dataset(split, combine=False, epoch=1)
        _check_tokens(trained.task.dataset(split), split)
    return trained.task.dataset(split)


def add_text(trained: TrainedModel, name: str, source: Sequence[str], target: Optional[Sequence[str]] = None) -> None:
    """Make text in memory a split of this name.

    Args:
        source: lines in the model's tokens, separated by spaces.
        target: translations, aligned with the source; None: the split can only be translated.
    """
    if name in trained.task.datasets or name in splits(trained):
        raise UserError(f"there is already a split {name!r}")
    if not source or (target is not None and len(source) != len(target)):
        lines = f"{len(source)} and {'none' if target is None else len(target)}"
        raise UserError(f"{name}: source and target must have the same number of lines, at least 1; got {lines}")
    task = trained.task.cfg

    def side(lines: Optional[Sequence[str]], dictionary: Any) -> List[Any]:
        if lines is None:
            return [None, None, dictionary]
        encoded = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
        return [ListDataset(encoded), numpy.array([len(tokens) for tokens in encoded]), dictionary]

    data = LanguagePairDataset(
        *side(source, trained.task.source_dictionary),
        *side(target, trained.task.target_dictionary),
        shuffle=False,
        left_pad_source=task.left_pad_source,
        left_pad_target=task.left_pad_target,
    )
    _check_tokens(data, name)
    trained.task.datasets[name] = data


def _check_tokens(data: Any, name: str) -> None:
    """Log the share of unknown tokens; raise an error for text that is in other tokens."""
    for side, lines, dictionary in (("source", data.src, data.src_dict), ("target", data.tgt, data.tgt_dict)):
        if lines is None:
            continue
        tokens = torch.cat([lines[number] for number in range(min(len(lines), _SAMPLE))])
        tokens = tokens[tokens != dictionary.eos()]
        share = int((tokens == dictionary.unk()).sum()) / max(1, len(tokens))
        logger.info("%s: %.1f %% of the %s tokens are unknown to the model", name, 100 * share, side)
        units = "subwords" if subword_units(dictionary) else "words"
        if share > _MAX_UNKNOWN[units]:
            raise UserError(
                f"{name}: {share:.0%} of the {side} tokens are unknown to the model, whose vocabulary has {units} "
                f"(limit: {_MAX_UNKNOWN[units]:.0%}): segment the text like the training text, with the same "
                "SentencePiece or BPE model if it has one"
            )


def subword_units(dictionary: Any) -> Optional[str]:
    """The value of fairseq's ``--remove-bpe`` for a dictionary, or a marker that has none; None if it has words."""
    units, marker = dictionary.symbols[dictionary.nspecial :], subword_marker(dictionary.symbols)
    if marker is None and "▁" in units and sum(len(unit) == 1 for unit in units) * 2 > len(units):
        marker = "▁"  # characters: one unit has the marker
    return {"▁": "sentencepiece", "@@": "@@ ", "##": " ##"}.get(marker or "", marker)


def byte_unit(dictionary: Any) -> Optional[str]:
    """A unit of SentencePiece that stands for a byte of UTF-8, such as ``<0x57>``; None if the dictionary has none."""
    return next((unit for unit in dictionary.symbols if re.fullmatch("<0x[0-9A-F]{2}>", unit)), None)


def sentencepiece_file(data: str) -> Optional[str]:
    """The SentencePiece model in a data-bin or in its parent folder, where data_prep puts it; None if there is none."""
    return next(filter(os.path.isfile, (os.path.join(data, name) for name in _SENTENCEPIECE_FILES)), None)


def batches(
    trained: TrainedModel, split: str, *, max_tokens: int = 4000, sentences: Optional[int] = None
) -> Iterator[Dict[str, Any]]:
    """fairseq's samples on the model's device, sorted by length, always in the same order.

    Args:
        split: train, valid, test, test1, …
        max_tokens: per batch, padding included; raised to the length of the longest sentence if that is greater.
        sentences: only the first N sentences of the corpus.

    Raises:
        UserError: no such split, or a sentence longer than the model's positions (in train it is omitted).
    """
    data = dataset(trained, split)
    with data_utils.numpy_seed(trained.seed):
        order = data.ordered_indices()
    if sentences is not None:
        order = order[order < sentences]
    model: Any = trained.model
    longest = utils.resolve_max_positions(trained.task.max_positions(), model.max_positions())
    order, too_long = data.filter_indices_by_size(order, longest)
    if len(too_long) and not split.startswith("train"):
        raise UserError(
            f"the sentences of {split} must have at most {longest} tokens, the model's positions; {len(too_long)} are "
            f"longer, such as number {too_long[0]}"
        )
    if len(order):
        max_tokens = max(max_tokens, int(data.num_tokens_vec(order).max()))
    chunks = data.batch_by_size(
        order,
        max_tokens=max_tokens,
        max_sentences=None,
        required_batch_size_multiple=trained.cfg.dataset.required_batch_size_multiple,
    )
    for chunk in chunks:
        sample = data.collater([data[index] for index in chunk])
        yield utils.apply_to_sample(lambda tensor: tensor.to(trained.device), sample)

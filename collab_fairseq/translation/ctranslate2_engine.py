"""Translating with CTranslate2, without torch."""

import itertools
import json
import math
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .tokenizer import PathLike, TranslationError, read_card, require
from .translator import Hypothesis, Search

PRECISIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip
#: what the export writes to config.json, with which translations are the model's
_CONFIG = {
    "add_source_bos": False, "add_source_eos": True, "bos_token": "<s>", "decoder_start_token": "</s>",
    "eos_token": "</s>", "unk_token": "<unk>",
}  # fmt: skip
#: what CTranslate2 raises for files that are damaged
_DAMAGED = (RuntimeError, ValueError, IndexError, MemoryError)


class CTranslate2Engine:
    """A folder of ``collab export --to ctranslate2``; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision not in PRECISIONS:
            raise TranslationError(f"CTranslate2 computes in {', '.join(PRECISIONS)}, but {precision} was asked for")
        self._folder = os.fspath(folder)
        _check_files(self._folder)
        kind, _, index = device.partition(":")
        options = {"device_index": int(index or 0), "compute_type": precision, "intra_threads": threads or 0}
        self._translator = self._call(require("ctranslate2").Translator, self._folder, device=kind, **options)

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The result of a function of CTranslate2, which finds some kinds of damage when it computes."""
        try:
            return function(*args, **options)
        except _DAMAGED as error:
            raise TranslationError(f"CTranslate2 cannot use {self._folder}: {error}") from error

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """See :class:`.translator.Engine`."""
        found = self._call(
            self._translator.translate_batch, [list(tokens) for tokens in sentences],
            beam_size=search.beam, num_hypotheses=search.beam,
            length_penalty=search.lenpen, max_decoding_length=search.max_length, max_input_length=0,
            return_scores=True, suppress_sequences=[["<blank>"]],  # fairseq's padding
        )  # fmt: skip
        ranked = [list(zip(best.scores, best.hypotheses, strict=True)) for best in found]
        # fairseq ends what is as long as it may be with </s>, and scores that; CTranslate2 cuts it off
        cut = [any(len(tokens) == search.max_length for _, tokens in best) for best in ranked]
        self._score(sentences, ranked, [row for row, there in enumerate(cut) if there], search)
        for row, best in enumerate(ranked):
            ranked[row] = sorted(best, key=lambda each: -each[0])[: search.nbest]
        if search.scores:  # the search divides out </s> where that may not be, fairseq does not
            self._score(sentences, ranked, [row for row, there in enumerate(cut) if not there], search)
        return [[Hypothesis(tokens, score / math.log(2)) for score, tokens in best] for best in ranked]

    def _score(self, sentences: Sequence[Sequence[str]], ranked: List[Any], rows: List[int], search: Search) -> None:
        """Put the model's own scores in the place of the search's, in these rows."""

        def length(pair: Tuple[int, int]) -> int:
            return len(ranked[pair[0]][pair[1]][1])

        pairs = ((row, number) for row in rows for number in range(len(ranked[row])))
        # where heads share keys and values, CTranslate2 takes only targets of one length at a time
        for _, group in itertools.groupby(sorted(pairs, key=length), key=length):
            alike = list(group)
            made = [ranked[row][number][1] for row, number in alike]
            sources = [list(sentences[row]) for row, _ in alike]
            scored = self._call(self._translator.score_batch, sources, made, max_input_length=0)
            for (row, number), tokens, each in zip(alike, made, scored, strict=True):
                ranked[row][number] = (sum(each.log_probs) / len(each.log_probs) ** search.lenpen, tokens)


def _check_files(folder: str) -> None:
    """See that a folder's files are what the export writes, as far as CTranslate2 does not see to it itself.

    Raises:
        TranslationError: a file is missing, or is not a regular file; other settings, or another vocabulary.
    """
    for name in ("model.bin", "config.json"):
        if not os.path.isfile(os.path.join(folder, name)):  # a device would be read without end
            raise TranslationError(f"{folder} has no file {name}")
    config = _read_json(os.path.join(folder, "config.json"))
    for name, expected in _CONFIG.items():
        found = config.get(name) if isinstance(config, dict) else None
        if found != expected:
            raise TranslationError(f"{os.path.join(folder, 'config.json')}: {name} must be {expected!r}; got {found!r}")
    card = read_card(folder)
    for side, lang in (("source", card.source_lang), ("target", card.target_lang)):
        paths = [os.path.join(folder, f"{name}_vocabulary.json") for name in (side, "shared")]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            raise TranslationError(f"{folder} must have a file {' or '.join(map(os.path.basename, paths))}")
        if _read_json(path) != _vocabulary(os.path.join(folder, f"dict.{lang}.txt")):
            raise TranslationError(f"{path} must have the entries of dict.{lang}.txt, but has others")


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise TranslationError(f"{path} cannot be read as JSON: {error}") from error


def _vocabulary(path: str) -> List[str]:
    """The entries of a dictionary of fairseq, as CTranslate2 names them."""
    entries = ["<s>", "<blank>", "</s>", "<unk>"]
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                entry, _ = line.rstrip().removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
                entries.append("<blank>" if entry == "<pad>" else entry)
    except (OSError, ValueError) as error:
        raise TranslationError(f"{path} must have a word and its count in every line ({error})") from error
    return entries

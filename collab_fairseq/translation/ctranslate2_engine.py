"""Translating with CTranslate2, without torch."""

import itertools
import math
import os
from typing import Any, List, Optional, Sequence, Tuple

from .tokenizer import PathLike, TranslationError, require
from .translator import Hypothesis, Search

PRECISIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip


class CTranslate2Engine:
    """A folder of ``collab export --to ctranslate2``; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision not in PRECISIONS:
            raise TranslationError(f"CTranslate2 computes in {', '.join(PRECISIONS)}, but {precision} was asked for")
        kind, _, index = device.partition(":")
        options = {"device_index": int(index or 0), "compute_type": precision, "intra_threads": threads or 0}
        try:
            self._translator = require("ctranslate2").Translator(os.fspath(folder), device=kind, **options)
        except (RuntimeError, ValueError) as error:
            raise TranslationError(f"CTranslate2 cannot use {os.fspath(folder)}: {error}") from error

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """See :class:`.translator.Engine`."""
        found = self._translator.translate_batch(
            [list(tokens) for tokens in sentences], beam_size=search.beam, num_hypotheses=search.beam,
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
            scored = self._translator.score_batch([list(sentences[row]) for row, _ in alike], made, max_input_length=0)
            for (row, number), tokens, each in zip(alike, made, scored, strict=True):
                ranked[row][number] = (sum(each.log_probs) / len(each.log_probs) ** search.lenpen, tokens)

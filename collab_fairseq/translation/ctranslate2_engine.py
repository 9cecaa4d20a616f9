"""Translating with CTranslate2, without torch."""

import math
import os
from typing import Any, List, Optional, Sequence

from .translator import Hypothesis, Search
from .units import PathLike, TranslationError, require

PRECISIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip


class CTranslate2Engine:
    """A converted folder.

    Args:
        folder: of ``collab export --to ctranslate2``.
        device: ``cpu``, ``cuda``, ``cuda:1``, or ``auto``.
        precision: one of :data:`PRECISIONS`, whatever the weights on the disk have.
        threads: of the CPU; None: CTranslate2's choice.

    Raises:
        TranslationError: no ctranslate2, a damaged folder, an unknown or unsupported precision.
    """

    def __init__(
        self, folder: PathLike, device: str = "auto", precision: str = "float32", threads: Optional[int] = None
    ) -> None:
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
            [list(units) for units in sentences], beam_size=search.beam, num_hypotheses=search.nbest,
            length_penalty=search.lenpen, max_decoding_length=search.max_length, max_input_length=0,
            return_scores=True,
        )  # fmt: skip
        scores = [score for best in found for score in best.scores]
        made = [units for best in found for units in best.hypotheses]
        source = [list(units) for units, best in zip(sentences, found, strict=True) for _ in best.hypotheses]
        alignments: List[Any] = [None] * len(made)
        if search.scores:
            # the search divides out </s> where that may not be; fairseq does not, and ends what is too long with </s>
            anew = self._translator.score_batch(source, made, max_input_length=0)
            scores = [sum(each.log_probs) / len(each.log_probs) ** search.lenpen for each in anew]
        if search.alignments:
            # in a beam search of several sentences those of the first units get mixed up
            again = self._translator.translate_batch(
                source, target_prefix=made, beam_size=1, max_decoding_length=max(map(len, made)) + 1,
                max_input_length=0, return_attention=True,
            )  # fmt: skip
            alignments = [
                [max(range(len(row)), key=row.__getitem__) for row in each.attention[0][: len(units)]]
                for each, units in zip(again, made, strict=True)
            ]
        hypotheses = map(Hypothesis, made, (score / math.log(2) for score in scores), alignments)
        return [[next(hypotheses) for _ in best.hypotheses] for best in found]

"""Translation with CTranslate2, without torch."""

import itertools
import math
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

from fairseq_modern.errors import UserError

from .tokenizer import PathLike, require
from .translator import Hypothesis, Search

PRECISIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
#: errors that CTranslate2 raises for damaged files
_DAMAGED = (RuntimeError, ValueError, IndexError, MemoryError)


class CTranslate2Engine:
    """A folder of ``collab export --to ctranslate2``; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"--precision of CTranslate2 must be one of {', '.join(PRECISIONS)}; got {precision}")
        self._folder = os.fspath(folder)
        if not os.path.isfile(os.path.join(self._folder, "model.bin")):  # reading a device would never end
            raise UserError(f"{self._folder} has no file model.bin")
        kind, _, index = device.partition(":")
        options = {"device_index": int(index or 0), "compute_type": precision, "intra_threads": threads or 0}
        self._translator = self._call(require("ctranslate2").Translator, self._folder, device=kind, **options)

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of CTranslate2, which detects some damage only while computing."""
        try:
            return function(*args, **options)
        except _DAMAGED as error:
            raise UserError(f"CTranslate2 cannot use {self._folder}: {error}") from error

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """See :class:`.translator.Engine`."""
        results = self._call(
            self._translator.translate_batch,
            [list(tokens) for tokens in sentences],
            beam_size=search.beam,
            num_hypotheses=search.beam,
            length_penalty=search.lenpen,
            max_decoding_length=search.max_length,
            max_input_length=0,
            return_scores=True,
            suppress_sequences=[["<blank>"]],  # fairseq's padding
        )
        ranked = [list(zip(best.scores, best.hypotheses, strict=True)) for best in results]
        rows = list(range(len(ranked)))  # unlike fairseq, the search renormalises where </s> is not allowed
        if not search.scores:
            # at the maximum length fairseq appends </s> and includes it in the score; CTranslate2 truncates
            rows = [row for row in rows if any(len(tokens) == search.max_length for _, tokens in ranked[row])]
        self._rescore(sentences, ranked, rows, search)
        for row, best in enumerate(ranked):
            ranked[row] = sorted(best, key=lambda scored: -scored[0])[: search.nbest]
        return [[Hypothesis(tokens, score / math.log(2)) for score, tokens in best] for best in ranked]

    def _rescore(self, sentences: Sequence[Sequence[str]], ranked: List[Any], rows: List[int], search: Search) -> None:
        """Replace the scores of the search in these rows by the model's own."""

        def length(pair: Tuple[int, int]) -> int:
            row, rank = pair
            return len(ranked[row][rank][1])

        pairs = sorted(((row, rank) for row in rows for rank in range(len(ranked[row]))), key=length)
        # with keys and values shared by heads, CTranslate2 needs targets of equal length in a batch
        for _, group in itertools.groupby(pairs, key=length):
            batch = list(group)
            targets = [ranked[row][rank][1] for row, rank in batch]
            sources = [list(sentences[row]) for row, _ in batch]
            scored = self._call(self._translator.score_batch, sources, targets, max_input_length=0)
            for (row, rank), tokens, result in zip(batch, targets, scored, strict=True):
                score = sum(result.log_probs) / len(result.log_probs) ** search.lenpen
                ranked[row][rank] = (score, tokens)

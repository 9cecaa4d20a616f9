"""Translation with CTranslate2, without torch."""

import itertools
import json
import math
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .tokenizer import PathLike, TranslationError, read_card, require
from .translator import Hypothesis, Search

PRECISIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)
#: settings in config.json as exported; others would change the translations
_CONFIG = {
    "add_source_bos": False,
    "add_source_eos": True,
    "bos_token": "<s>",
    "decoder_start_token": "</s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
#: errors that CTranslate2 raises for damaged files
_DAMAGED = (RuntimeError, ValueError, IndexError, MemoryError)


class CTranslate2Engine:
    """A folder of ``collab export --to ctranslate2``; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision not in PRECISIONS:
            raise TranslationError(
                f"--precision of CTranslate2 must be one of {', '.join(PRECISIONS)}; got {precision}"
            )
        self._folder = os.fspath(folder)
        _check_files(self._folder)
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda", "auto") or not (index or "0").isdecimal():
            raise TranslationError(f"device must be auto, cpu, cuda or cuda:N; got {device}")
        options = {"device_index": int(index or 0), "compute_type": precision, "intra_threads": threads or 0}
        self._translator = self._call(require("ctranslate2").Translator, self._folder, device=kind, **options)

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of CTranslate2, which detects some damage only while computing."""
        try:
            return function(*args, **options)
        except _DAMAGED as error:
            raise TranslationError(f"CTranslate2 cannot use {self._folder}: {error}") from error

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


def _check_files(folder: str) -> None:
    """Check that a folder's files are those of the export, as far as CTranslate2 does not check it itself."""
    for name in ("model.bin", "config.json"):
        if not os.path.isfile(os.path.join(folder, name)):  # reading a device would never end
            raise TranslationError(f"{folder} has no file {name}")
    path = os.path.join(folder, "config.json")
    config = _read_json(path)
    for name, expected in _CONFIG.items():
        value = config.get(name) if isinstance(config, dict) else None
        if value != expected:
            raise TranslationError(f"{path}: {name} must be {expected!r}; got {value!r}")
    card = read_card(folder)
    for side, lang in (("source", card.source_lang), ("target", card.target_lang)):
        names = (f"{side}_vocabulary.json", "shared_vocabulary.json")
        paths = [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)]
        if not paths:
            raise TranslationError(f"{folder} must have a file {' or '.join(names)}")
        if _read_json(paths[0]) != _vocabulary(os.path.join(folder, f"dict.{lang}.txt")):
            raise TranslationError(f"{paths[0]} must have the entries of dict.{lang}.txt; got others")


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise TranslationError(f"{path} cannot be read as JSON: {error}") from error


def _vocabulary(path: str) -> List[str]:
    """The entries of a fairseq dictionary as CTranslate2 names them."""
    entries = ["<s>", "<blank>", "</s>", "<unk>"]
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                entry, _ = line.rstrip().removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
                entries.append("<blank>" if entry == "<pad>" else entry)
    except (OSError, ValueError) as error:
        raise TranslationError(f"{path} must have a word and its count in every line ({error})") from error
    return entries

"""Translating test sets with some heads missing, and comparing with the whole model."""

import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.bootstrap import Comparison, paired_bootstrap, rows_of
from collab_fairseq.scoring import bleu, text
from collab_fairseq.translation import TrainedModel, translate

from .errors import HeadsError
from .taps import masked


@dataclass(frozen=True)
class Search:
    """Beam search, and how much text one batch has."""

    beam: int = 5
    lenpen: float = 1.0
    max_tokens: int = 4000


@dataclass(frozen=True)
class TestSet:
    """A split of the data-bin and its raw references, or the first so many sentences of both."""

    split: str
    references: Sequence[str]
    target_lang: Optional[str]
    sentences: Optional[int] = None


class Result(NamedTuple):
    """sacreBLEU, its signature, and sacrebleu's statistics as text (see :func:`.bootstrap.rows_of`)."""

    score: float
    signature: str
    statistics: str


def read_test_set(
    split: str, references: PathLike, target_lang: Optional[str], sentences: Optional[int] = None
) -> TestSet:
    """A test set from a file of references, one a line.

    Raises:
        HeadsError: the file cannot be read.
    """
    try:
        with open(references, encoding="utf-8-sig", newline="\n") as stream:
            lines = stream.read().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadsError(f"cannot read the references {os.fspath(references)}: {error}") from error
    return TestSet(split, [line.rstrip("\r") for line in lines[:sentences]], target_lang, sentences)


def evaluate(
    trained: TrainedModel, test: TestSet, search: Search, without: Optional[Mapping[str, Sequence[int]]] = None
) -> Result:
    """Translate and score, without the heads named.

    Raises:
        HeadsError: another number of references than sentences.
    """
    with masked(attention_layers(trained.model), without or {}):
        hypotheses = translate(
            trained, test.split, beam=search.beam, lenpen=search.lenpen, max_tokens=search.max_tokens,
            sentences=test.sentences,
        )  # fmt: skip
    if len(hypotheses) != len(test.references):
        raise HeadsError(
            f"{test.split} has {len(hypotheses)} sentences, but there are {len(test.references)} references: "
            "these are not the references of this test set"
        )
    if text.looks_tokenised(hypotheses):
        hypotheses = text.moses_detokenise(hypotheses, test.target_lang or "en")
    return score(hypotheses, test.references, test.target_lang)


def score(hypotheses: Sequence[str], references: Sequence[str], target_lang: Optional[str]) -> Result:
    """sacreBLEU of detokenised translations, with the statistics of every sentence."""
    found = bleu.sacrebleu(hypotheses, references, target_lang)
    rows = bleu.sentence_statistics(hypotheses, references, target_lang)
    return Result(found.score, found.signature, "; ".join(" ".join(map(str, row)) for row in rows))


def compare(system: Result, whole: Result, samples: int = 1000) -> Comparison:
    """sacrebleu's paired bootstrap of a model beside the whole one."""
    rows, baseline = (rows_of({"rows": result.statistics}) for result in (system, whole))
    return paired_bootstrap(rows, baseline, samples=samples)


def as_json(comparison: Comparison, score: float) -> Dict[str, Any]:
    """``bleu``, ``difference`` to the whole model, ``p_value``."""
    return {"bleu": score, "difference": comparison.difference, "p_value": comparison.p_value}

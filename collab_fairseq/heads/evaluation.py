"""Translating test sets with some heads missing, and comparing with the whole model."""

from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.records.bootstrap import paired_bootstrap, rows_of
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import read_references
from collab_fairseq.translation import TrainedModel, score

from .taps import layers_of, masked


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
    sentences: Optional[int] = None


class Result(NamedTuple):
    """sacreBLEU, its signature, and sacrebleu's statistics as text (see :func:`.bootstrap.rows_of`)."""

    score: float
    signature: str
    statistics: str


def read_test_set(split: str, references: PathLike, sentences: Optional[int] = None) -> TestSet:
    """A test set from a file of references, one a line.

    Raises:
        ScoringError: the file cannot be read.
    """
    return TestSet(split, read_references(references)[:sentences], sentences)


def evaluate(
    trained: TrainedModel, test: TestSet, search: Search, without: Optional[Mapping[str, Sequence[int]]] = None
) -> Result:
    """Translate and score, without the heads named.

    Raises:
        ScoringError: another number of references than sentences.
    """
    with masked(layers_of(trained), without or {}):
        found = score(trained, test.split, test.references, sentences=test.sentences, **asdict(search))
    return Result(found.score, found.signature, found.statistics)


def recorded(record: Record, split: str, measure: Callable[[], Result]) -> Result:
    """The result with all heads, under ``whole/SPLIT`` in the record."""
    return Result(**record.part(f"whole/{split}", lambda: measure()._asdict()))


def whole_model(trained: TrainedModel, test: TestSet, record: Record, search: Search) -> Result:
    """:func:`recorded` of a translation model of fairseq."""
    return recorded(record, test.split, lambda: evaluate(trained, test, search))


def compare(system: Result, whole: Result, samples: int = 1000) -> Dict[str, Any]:
    """``bleu``, ``difference`` to the whole model and ``p_value`` of sacrebleu's paired bootstrap."""
    rows, baseline = (rows_of({"rows": result.statistics}) for result in (system, whole))
    found = paired_bootstrap(rows, baseline, samples=samples)
    return {"bleu": system.score, "difference": found.difference, "p_value": found.p_value}

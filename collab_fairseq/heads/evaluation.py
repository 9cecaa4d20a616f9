"""Translating test sets with some heads missing, and comparing with the whole model."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.bootstrap import paired_bootstrap, rows_of
from collab_fairseq.records.record import Record
from collab_fairseq.translation import Score, TrainedModel, score

from .taps import masked


class TestSet(NamedTuple):
    """A split of the data-bin, the file of its raw references, and how it is translated.

    Attributes:
        search: ``beam``, ``lenpen``, ``max_tokens``, ``sentences``: see :func:`collab_fairseq.translation.score`.
    """

    split: str
    references: PathLike
    search: Mapping[str, Any]


def evaluate(
    trained: TrainedModel, test: TestSet, without: Optional[Mapping[str, Sequence[int]]] = None
) -> Dict[str, Any]:
    """:func:`result` of the model without the heads named.

    Raises:
        ScoringError: another number of references than sentences.
    """
    with masked(attention_layers(trained.model), without or {}):
        return result(score(trained, test.split, test.references, **test.search))


def result(scored: Score) -> Dict[str, Any]:
    """``score`` (sacreBLEU), ``signature`` and ``statistics``, as records have them."""
    return {name: getattr(scored, name) for name in ("score", "signature", "statistics")}


def whole_model(trained: TrainedModel, test: TestSet, record: Record) -> Dict[str, Any]:
    """:func:`evaluate` with all heads, ``whole/SPLIT`` in the record."""
    return record.part(f"whole/{test.split}", lambda: evaluate(trained, test))  # type: ignore[no-any-return]


def compare(system: Mapping[str, Any], whole: Mapping[str, Any], samples: int = 1000) -> Dict[str, Any]:
    """``bleu``, ``difference`` to the whole model and ``p_value`` of sacrebleu's paired bootstrap, of two results."""
    rows, baseline = (rows_of({"rows": found["statistics"]}) for found in (system, whole))
    found = paired_bootstrap(rows, baseline, samples=samples)
    return {"bleu": system["score"], "difference": found.difference, "p_value": found.p_value}

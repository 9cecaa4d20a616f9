"""Paired bootstrap resampling of two runs' sacreBLEU (Koehn 2004, https://aclanthology.org/W04-3250).

The test is sacrebleu's own; it is given the sentence statistics that records hold in place of the texts.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from collab_fairseq.records.record import RecordError

#: what a record's score may differ by from the one that its sentence statistics add up to
_ROUNDING = 1e-6


class Comparison(NamedTuple):
    """A system beside a baseline on one test set."""

    difference: float  # sacreBLEU of the system minus that of the baseline
    p_value: float  # of no difference in truth, two-sided
    signature: str  # sacrebleu's, with seed and number of resamples


def rows_of(statistics: Dict[str, Any]) -> List[List[int]]:
    """sacrebleu's sufficient statistics: both lengths, matched 1- to 4-grams, all 1- to 4-grams of the hypothesis."""
    rows = []
    for text in statistics["rows"].split("; "):
        length, *rest = (int(number) for number in text.split(" "))
        rows.append([length, *rest, *(max(0, length + 1 - order) for order in range(1, 5))])
    return rows


def compare(system: Dict[str, Any], baseline: Dict[str, Any], test: str) -> Optional[Comparison]:
    """Compare two records on one test set of both; None where one of them has no sentence statistics.

    Raises:
        RecordError: one has no sacreBLEU, the references or signatures differ, or a score is not that of its sentence
            statistics.
    """
    both = (system, baseline)
    statistics = [record["scores"][test].get("sentence_statistics") for record in both]
    if None in statistics:
        return None
    scores = [_sacrebleu_of(record, test) for record in both]
    for what, values in (
        ("references", [s["references_sha256"] for s in statistics]),
        ("signatures", [score["signature"] for score in scores]),
    ):
        if len(set(values)) > 1:
            names = f"{system['name']} and {baseline['name']}"
            raise RecordError(f"{test}: {names} have different {what}, {values[0]} and {values[1]}; only like compares")
    rows = [rows_of(s) for s in statistics]
    for record, score, own in zip(both, scores, rows, strict=True):
        total = _bleu_from_statistics()._compute_score_from_stats([sum(column) for column in zip(*own, strict=True)])
        if abs(total.score - score["score"]) > _ROUNDING:
            raise RecordError(
                f"{record['name']}: the sacreBLEU of {test} is {score['score']}, but its sentence statistics add up to "
                f"{total.score}"
            )
    return paired_bootstrap(rows[0], rows[1])


def _sacrebleu_of(record: Dict[str, Any], test: str) -> Dict[str, Any]:
    for score in record["scores"][test]["scores"]:
        if score["metric"] == "sacreBLEU":
            return score  # type: ignore[no-any-return]
    raise RecordError(f"{record['name']} has no sacreBLEU of {test}")


def paired_bootstrap(
    system: Sequence[Sequence[int]], baseline: Sequence[Sequence[int]], samples: int = 1000
) -> Comparison:
    """sacrebleu's `PairedTest` on sufficient statistics of two systems for the same sentences, as from `rows_of`.

    sacrebleu's random seed is 12345 unless the variable SACREBLEU_SEED says otherwise. Where there is no difference p
    is 1, for which sacrebleu, counting the resamples that differ by more than that, would give its least value.
    """
    from sacrebleu.significance import PairedTest

    systems: Any = [("baseline", baseline), ("system", system)]
    test = PairedTest(systems, {"BLEU": _bleu_from_statistics()}, None, test_type="bs", n_samples=samples)
    signatures, results = test()
    before: Any
    after: Any
    before, after = results["BLEU"]
    difference = float(after.score - before.score)
    return Comparison(difference, float(after.p_value) if difference else 1.0, str(signatures["BLEU"]))


def _bleu_from_statistics() -> Any:
    """sacrebleu's BLEU that takes rows of statistics where it would take sentences."""
    from sacrebleu.metrics import BLEU

    class BleuFromStatistics(BLEU):
        def _extract_corpus_statistics(self, hypotheses: Any, references: Any) -> Any:
            self.num_refs = 1
            return [list(row) for row in hypotheses]

    return BleuFromStatistics(force=True)

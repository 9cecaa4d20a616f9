"""Sufficient statistics of corpus-level metrics, per sentence.

Records store them for every sentence, for intervals and significance tests. Statistics (see `bleu`) and scores of
sacreBLEU, chrF++ and TER are computed by sacreBLEU. Counts that follow from lengths are not stored.
"""

from typing import Any, Callable, Dict, Sequence

import numpy
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

#: statistics of N corpora (N, K) → their scores (N)
Score = Callable[[numpy.ndarray], numpy.ndarray]


def dump(rows: Sequence[Sequence[Any]]) -> str:
    """Sentence statistics as one string, the form in records."""
    return "; ".join(" ".join(map(str, row)) for row in rows)


def load(rows: str, metric: str) -> numpy.ndarray:
    """Sentence statistics in the order in which sacreBLEU adds them up.

    Returns:
        (S, K) for S sentences. sacreBLEU, K = 10: lengths of hypothesis and reference, matched 1- to 4-grams,
        1- to 4-grams of the hypothesis. chrF++, K = 24: counts in the hypothesis, in the reference and in both, for
        n-grams of 1 to 6 characters, then of 1 and 2 words. All others, K = 2: numerator and denominator.
    """
    table = numpy.array([[float(number) for number in row.split(" ")] for row in rows.split("; ")])
    if metric == "sacreBLEU":
        return numpy.hstack([table, _ngrams(table[:, 0], 4)])
    if metric == "chrF++":
        hypothesis = numpy.hstack([_ngrams(table[:, 0], 6), _ngrams(table[:, 1], 2)])
        reference = numpy.hstack([_ngrams(table[:, 2], 6), _ngrams(table[:, 3], 2)])
        hypothesis *= reference > 0  # n-grams longer than the reference are not counted in the hypothesis
        return numpy.stack([hypothesis, reference, table[:, 4:]], axis=2).reshape(len(table), 24)
    return table


def _ngrams(length: numpy.ndarray, longest: int) -> numpy.ndarray:
    """Numbers of 1-grams, 2-grams, … in texts of these lengths: (S) → (S, longest)."""
    return numpy.maximum(0, length[:, None] - numpy.arange(longest))


def score_function(metric: Metric) -> Score:
    """The score as a function of sacreBLEU's statistics."""
    return lambda sums: numpy.array([metric._compute_score_from_stats(row).score for row in sums.tolist()])


def ratio(sums: numpy.ndarray) -> numpy.ndarray:
    """The score of metrics that are means."""
    return sums[:, 0] / sums[:, 1]


#: metric → its score from summed statistics
SCORES: Dict[str, Score] = {
    "sacreBLEU": score_function(BLEU()),
    "chrF++": score_function(CHRF(word_order=2)),
    "TER": score_function(TER()),
    "COMET": ratio,
    "NLL": ratio,
}

"""Do two systems differ by more than the choice of the test sentences explains: the paired bootstrap (Koehn 2004,
https://aclanthology.org/W04-3250).

For metrics that are a function of sums over the sentences, as BLEU is: a resample of the sentences is a row of weights,
and the weights times the matrix of the sentences' statistics are the sums of all resamples at once.
"""

import functools
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy
from sacrebleu.metrics import BLEU

from collab_fairseq.scoring.references import ScoringError

SAMPLES, SEED = 1000, 12345
#: how p and interval came about, for what stands beneath them
METHOD = "paired bootstrap over the sentences, centred and two-sided"
# what a score may differ by from the one that its sentence statistics add up to
_ROUNDING = 1e-6


class Comparison(NamedTuple):
    """One system beside another on the same sentences.

    Attributes:
        difference: score of the first minus that of the second.
        low, high: the 95 % interval of the difference; 0 is outside exactly where p is at most 0.05.
        p_value: of no difference in truth, two-sided.
    """

    difference: float
    low: float
    high: float
    p_value: float


def statistics_of(rows: str) -> numpy.ndarray:
    """The rows of `bleu.sentence_statistics`, in one string, as what BLEU sums up.

    Returns:
        (S, 10) for S sentences: lengths of hypothesis and reference, matched 1- to 4-grams, all 1- to 4-grams of the
        hypothesis.
    """
    table = numpy.array([[int(number) for number in row.split(" ")] for row in rows.split("; ")])
    return numpy.hstack([table, numpy.maximum(0, table[:, :1] + 1 - numpy.arange(1, 5))])


def corpus_bleu(sums: numpy.ndarray) -> numpy.ndarray:
    """sacreBLEU of N corpora from their sums (N, 10) of what `statistics_of` gives: (N)."""
    rows = numpy.rint(sums).astype(int).tolist()
    return numpy.array([
        BLEU.compute_bleu(correct=row[2:6], total=row[6:], sys_len=row[0], ref_len=row[1], smooth_method="exp").score
        for row in rows
    ])  # fmt: skip


@functools.lru_cache(maxsize=2)
def resamples(sentences: int, samples: int = SAMPLES, seed: int = SEED) -> numpy.ndarray:
    """How often each of S sentences is in each of B resamples of as many, drawn with replacement: (B, S), read-only."""
    even = numpy.full(sentences, 1 / sentences)
    weights = numpy.random.default_rng(seed).multinomial(sentences, even, size=samples).astype(float)
    weights.flags.writeable = False
    return weights


def paired_bootstrap(
    system: Any,
    baseline: Any,
    score: Callable[[numpy.ndarray], numpy.ndarray] = corpus_bleu,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compare two systems on the same sentences, in the same order.

    The differences of the resamples scatter around their mean as the measured one does around the truth. p is the share
    of them that are as far from their mean as the measured one from 0, itself counted: (#{|d_b − mean| ≥ |d|} + 1) /
    (samples + 1). The interval is the measured difference ± the distance from the mean that 5 % of them reach.

    Args:
        system, baseline: (S, K) statistics of S sentences, such as from `statistics_of`.
        score: of each row of sums, (N, K) → (N).
        samples: number of resamples; fewer than 19 can show nothing at the level of 5 %.

    Raises:
        ValueError: the two have different shapes.
    """
    rows = [numpy.asarray(each, dtype=float) for each in (system, baseline)]
    if rows[0].shape != rows[1].shape:
        raise ValueError(f"expected statistics of the same sentences, got shapes {rows[0].shape} and {rows[1].shape}")
    weights = resamples(len(rows[0]), samples, seed)
    whole, drawn = (
        numpy.subtract(*(score(sums @ each) for each in rows)) for sums in (numpy.ones((1, len(rows[0]))), weights)
    )
    difference = float(whole[0])
    scatter = numpy.sort(abs(drawn - drawn.mean()))[::-1]
    p_value = float((scatter >= abs(difference)).sum() + 1) / (samples + 1)
    half = float(scatter[max(0, (samples + 1) // 20 - 1)])
    return Comparison(difference, difference - half, difference + half, p_value)


def compare(system: Mapping[str, Any], baseline: Mapping[str, Any], names: Sequence[str]) -> Optional[Comparison]:
    """The sacreBLEU of two systems on one test set.

    Args:
        system, baseline: an `Evaluation` each as plain data, as records have it.
        names: of the two, for errors.

    Returns:
        None where one of them has no sentence statistics.

    Raises:
        ScoringError: one has no sacreBLEU, the references or signatures differ, or a score is not that of its sentence
            statistics.
    """
    both = (system, baseline)
    found: Any = [each.get("sentence_statistics") for each in both]
    if None in found:
        return None
    scores = [_sacrebleu_of(each, name) for each, name in zip(both, names, strict=True)]
    for what, values in (
        ("references", [statistics["references_sha256"] for statistics in found]),
        ("signatures", [score["signature"] for score in scores]),
    ):
        if len(set(values)) > 1:
            named = " and ".join(names)
            raise ScoringError(f"{named} have different {what}, {values[0]} and {values[1]}; only like compares")
    rows = [statistics_of(statistics["rows"]) for statistics in found]
    for name, score, own in zip(names, scores, rows, strict=True):
        total = float(corpus_bleu(own.sum(axis=0, keepdims=True))[0])
        if abs(total - score["score"]) > _ROUNDING:
            raise ScoringError(
                f"{name}: the sacreBLEU is {score['score']}, but its sentence statistics add up to {total}"
            )
    return paired_bootstrap(rows[0], rows[1])


def _sacrebleu_of(evaluation: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for score in evaluation["scores"]:
        if score["metric"] == "sacreBLEU":
            return score  # type: ignore[no-any-return]
    raise ScoringError(f"{name} has no sacreBLEU")

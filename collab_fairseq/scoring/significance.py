"""Intervals and tests of scores: over the sentences of the test set, and over the seeds of training.

For metrics that are a function of sums over the sentences, such as BLEU. Two systems are compared by the paired
bootstrap (Koehn 2004, https://aclanthology.org/W04-3250): a resample of the sentences is a row of weights, and the
weights times the matrix of the sentences' statistics are the sums of all resamples at once. Several seeds of training,
and the difference of two such rows, have an interval over seeds and sentences: see `interval`.
"""

import functools
import math
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.scoring.sufficient_statistics import SCORES, Score, load
from fairseq_modern.errors import UserError

SAMPLES, SEED = 1000, 12345
#: the method of p and interval of two systems, for notes below them
METHOD = "paired bootstrap over the sentences, centred and two-sided"
#: and of the interval of a row of seeds
OVER_SEEDS = "95 % intervals over the seeds (Student's t) and the sentences (jackknife)"
# largest difference of a score from that of its sentence statistics
_ROUNDING = 1e-4


class Comparison(NamedTuple):
    """Two systems compared on the same sentences.

    Attributes:
        difference: score of the first minus that of the second.
        low, high: the 95 % interval of the difference; 0 is outside exactly where p is at most 0.05.
        p_value: two-sided, of the hypothesis that there is no difference.
    """

    difference: float
    low: float
    high: float
    p_value: float


class Interval(NamedTuple):
    """The mean over the seeds, and the interval of the mean over all possible seeds and sentences."""

    mean: float
    low: float
    high: float


def jackknife(sums: numpy.ndarray, score: Score) -> numpy.ndarray:
    """The contribution of each of S sentences to the score of all, from their statistics (S, K): (S).

    These are the pseudovalues S · score(all) − (S − 1) · score(all but this one), whose mean is nearly the score.
    """
    whole, count = sums.sum(axis=0), len(sums)
    return count * score(whole[None]) - (count - 1) * score(whole - sums)


def interval(scores: numpy.ndarray, pseudovalues: Optional[numpy.ndarray] = None, level: float = 0.95) -> Interval:
    """The interval of the mean over seeds; seeds and sentences are samples of all possible ones.

    The mean varies for two reasons. Scores differ between seeds: that is the variance of the n scores, over n. And all
    seeds were scored on the same sentences, which may suit this row better than others would: that is the variance of
    the sentences' means over the seeds, over S, minus the part due to the scatter of single seeds. Both are those of a
    two-way analysis of variance, such as that of medical images with readers and cases instead of seeds and sentences
    (Hillis 2007, https://doi.org/10.1002/sim.2532). The first is estimated from few seeds and needs Student's quantile,
    the second from many sentences and needs the normal one: the quantile is their mean, weighted by the variances
    (Cochran and Cox, Experimental Designs, 1957).

    Args:
        scores: (n), of the seeds; differences if two rows are compared.
        pseudovalues: (n, S), from `jackknife`, of the same S sentences; None leaves the sentences' part out.

    Returns:
        For one seed, which has no interval, low and high are NaN.
    """
    from scipy import special

    count, mean = len(scores), float(scores.mean())
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    of_seeds, of_sentences = scores.var(ddof=1) / count, 0.0
    if pseudovalues is not None:
        sentences = pseudovalues.shape[1]
        means = pseudovalues.mean(axis=0)
        rest = pseudovalues - pseudovalues.mean(axis=1, keepdims=True) - (means - means.mean())
        of_single = (rest**2).sum() / ((count - 1) * (sentences - 1) * count)
        of_sentences = max(0.0, means.var(ddof=1) - of_single) / sentences
    student, normal = special.stdtrit(count - 1, (1 + level) / 2), special.ndtri((1 + level) / 2)
    half, variance = student * of_seeds**0.5, of_seeds + of_sentences
    if of_sentences:  # with two or three seeds the smaller quantile could outweigh the larger variance
        half = max(half, (student * of_seeds + normal * of_sentences) / variance**0.5)
    return Interval(mean, mean - float(half), mean + float(half))


@functools.lru_cache(maxsize=2)
def resamples(sentences: int, samples: int = SAMPLES, seed: int = SEED) -> numpy.ndarray:
    """How often each of S sentences is in each of B resamples of S, drawn with replacement: (B, S), read-only."""
    even = numpy.full(sentences, 1 / sentences)
    weights = numpy.random.default_rng(seed).multinomial(sentences, even, size=samples).astype(float)
    weights.flags.writeable = False
    return weights


def paired_bootstrap(
    system: Any,
    baseline: Any,
    score: Score = SCORES["sacreBLEU"],
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compare two systems on the same sentences, in the same order.

    The differences of the resamples scatter around their mean as the measured one does around the truth. p is the share
    of them that are as far from their mean as the measured one from 0, itself counted: (#{|d_b − mean| ≥ |d|} + 1) /
    (samples + 1). The interval is the measured difference ± the distance from the mean that 5 % of them reach.

    Args:
        system, baseline: (S, K) statistics of S sentences, for example from `load`.
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
        None if one of them has no sentence statistics.

    Raises:
        UserError: see `over_seeds`.
    """
    if any(_rows(evaluation, "sacreBLEU") is None for evaluation in (system, baseline)):
        return None
    _, (ours, theirs) = _check([system, baseline], "sacreBLEU", names)
    return paired_bootstrap(ours, theirs)


def over_seeds(*sides: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]) -> Tuple[Interval, bool]:
    """The interval of a metric on one test set, and whether the records have the sentence statistics for it.

    Args:
        sides: one row, or two rows, which gives the interval of their difference; a row has an `Evaluation` for each
            seed, as plain data. The interval is over the seeds alone if there are no sentence statistics of the metric,
            or if the seeds have different sentences, which then contribute to the scatter of the seeds.
        names: of all of them, one side after the other, for errors.

    Raises:
        UserError: one has no such metric, the references or signatures of one seed differ, or a score is not that of
            its sentence statistics.
    """
    seeds = len(sides[0])
    scores, contributions = [], []
    for number, evaluations in enumerate(zip(*sides, strict=True)):
        values, statistics = _check(evaluations, metric, names[number::seeds])
        scores.append(values[0] - sum(values[1:]))
        if statistics:
            pseudovalues = [jackknife(each, SCORES[metric]) for each in statistics]
            contributions.append(pseudovalues[0] - sum(pseudovalues[1:]))
    texts = {(evaluation.get("sentence_statistics") or {}).get("references_sha256") for evaluation in sides[0]}
    complete = len(contributions) == seeds
    sentences = numpy.stack(contributions) if complete and len(texts) == 1 else None
    return interval(numpy.array(scores), sentences), complete


def _rows(evaluation: Mapping[str, Any], metric: str) -> Optional[str]:
    """The sentence statistics of a metric as records have them; None if there are none."""
    statistics: Mapping[str, Any] = evaluation.get("sentence_statistics") or {"rows": {}}
    rows: Optional[str] = statistics["rows"].get(metric)
    return rows


def _check(
    evaluations: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]
) -> Tuple[List[float], List[numpy.ndarray]]:
    """The scores (n), and the sentences' statistics (S, K) of each; these are empty if one has none."""
    scores = [next((score for score in each["scores"] if score["metric"] == metric), None) for each in evaluations]
    if None in scores:
        raise UserError(f"{names[scores.index(None)]} has no {metric}")
    values = [float(score["score"]) for score in scores if score]
    rows = [_rows(each, metric) for each in evaluations]
    if None in rows:
        return values, []
    digests = [each["sentence_statistics"].get("references_sha256") for each in evaluations]
    signatures = [score.get("signature") for score in scores if score]
    for what, each_has in (("references", digests), ("signatures", signatures)):
        for name, value in zip(names, each_has, strict=True):
            if value != each_has[0]:
                both = f"{names[0]} and {name} have different {what}, {each_has[0]} and {value}"
                raise UserError(f"{both}; only like compares")
    statistics = [load(each, metric) for each in rows if each]
    for name, value, sums in zip(names, values, statistics, strict=True):
        total = float(SCORES[metric](sums.sum(axis=0, keepdims=True))[0])
        if abs(total - value) > _ROUNDING:
            raise UserError(f"{name}: the {metric} is {value}, but its sentence statistics add up to {total}")
    return values, statistics

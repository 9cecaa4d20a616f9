"""Confidence intervals over seeds and sentences; paired bootstrap tests of two systems.

For metrics that are functions of statistics summed over the sentences, such as BLEU. The paired bootstrap
(Koehn 2004, https://aclanthology.org/W04-3250) represents a resample of the sentences as a row of weights: the
weights times the matrix of sentence statistics are the sums of all resamples at once.
"""

import functools
import math
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.scoring.sufficient_statistics import SCORES, Score, load
from fairseq_modern.errors import UserError

SAMPLES, SEED = 1000, 12345
#: the test of two systems, for notes below results
METHOD = "paired bootstrap over the sentences, centred and two-sided"
# largest difference between a score and the score of its sentence statistics
_ROUNDING = 1e-4


class Comparison(NamedTuple):
    """Two systems compared on the same sentences.

    Attributes:
        difference: score of the first minus score of the second.
        low, high: 95 % interval of the difference; it excludes 0 if and only if p ≤ 0.05.
        p_value: two-sided, for the null hypothesis of no difference.
    """

    difference: float
    low: float
    high: float
    p_value: float


class Interval(NamedTuple):
    """Mean over the seeds with a confidence interval."""

    mean: float
    low: float
    high: float

    def text(self, decimals: int, sign: str = "") -> str:
        """`mean [low, high]`; with the sign "+", positive numbers have one."""
        mean, low, high = (f"{round(number, decimals) + 0.0:{sign}.{decimals}f}" for number in self)  # no -0.00
        return f"{mean} [{low}, {high}]"


def jackknife(sums: numpy.ndarray, score: Score) -> numpy.ndarray:
    """Contributions of S sentences to the corpus score, from their statistics: (S, K) → (S).

    These are the pseudovalues S · score(all) − (S − 1) · score(all but one). Their mean is close to the score.
    """
    total, count = sums.sum(axis=0), len(sums)
    return count * score(total[None]) - (count - 1) * score(total - sums)


def interval(scores: Sequence[float], pseudovalues: Optional[numpy.ndarray] = None, level: float = 0.95) -> Interval:
    """Confidence interval of the mean over seeds, where both seeds and sentences are samples.

    The variance of the mean has two parts. Seeds: the variance of the n scores, over n. Sentences: all seeds are
    scored on the same sentences, so their effect does not average out over seeds. It is the variance of the
    sentences' means over the seeds, over S, minus the part due to the scatter within single seeds. Both follow from a
    two-way analysis of variance, as used for medical images with readers and cases instead of seeds and sentences
    (Hillis 2007, https://doi.org/10.1002/sim.2532). Seeds are few and need Student's quantile, sentences are many and
    need the normal one: the quantile is their mean, weighted by the variances (Cochran and Cox, Experimental Designs,
    1957).

    Args:
        scores: (n), one per seed, or differences of two systems.
        pseudovalues: (n, S), from `jackknife`, of the same S sentences; None omits the sentences' part.

    Returns:
        low and high are NaN for a single seed.
    """
    from scipy import special

    values = numpy.asarray(scores)
    count, mean = len(values), float(values.mean())
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    seeds_variance, sentences_variance = values.var(ddof=1) / count, 0.0
    if pseudovalues is not None:
        sentences = pseudovalues.shape[1]
        means = pseudovalues.mean(axis=0)
        residuals = pseudovalues - pseudovalues.mean(axis=1, keepdims=True) - (means - means.mean())
        within_seeds = (residuals**2).sum() / ((count - 1) * (sentences - 1) * count)
        sentences_variance = max(0.0, means.var(ddof=1) - within_seeds) / sentences
    student, normal = special.stdtrit(count - 1, (1 + level) / 2), special.ndtri((1 + level) / 2)
    half, variance = student * seeds_variance**0.5, seeds_variance + sentences_variance
    if sentences_variance:  # with two or three seeds the smaller quantile could outweigh the larger variance
        half = max(half, (student * seeds_variance + normal * sentences_variance) / variance**0.5)
    return Interval(mean, mean - float(half), mean + float(half))


@functools.lru_cache(maxsize=2)
def resamples(sentences: int, samples: int = SAMPLES, seed: int = SEED) -> numpy.ndarray:
    """Counts of each of S sentences in B resamples of size S, drawn with replacement: (B, S), read-only."""
    even = numpy.full(sentences, 1 / sentences)
    weights = numpy.random.default_rng(seed).multinomial(sentences, even, size=samples).astype(float)
    weights.flags.writeable = False
    return weights


def bootstrap_interval(statistics: Any, score: Score) -> Tuple[float, float]:
    """95 % interval of a score over S sentences, from their statistics (S, K): percentiles of the resamples."""
    rows = numpy.asarray(statistics, dtype=float)
    low, high = numpy.percentile(score(resamples(len(rows)) @ rows), (2.5, 97.5))
    return float(low), float(high)


def paired_bootstrap(system: Any, baseline: Any, samples: int = SAMPLES, seed: int = SEED) -> Comparison:
    """Compare the sacreBLEU of two systems on the same sentences, in the same order.

    The differences d_b of the resamples scatter around their mean as the measured difference d scatters around the true
    one. The p-value is (#{|d_b − mean| ≥ |d|} + 1) / (samples + 1). The interval is d ± c, where 5 % of the d_b are at
    least c away from their mean.

    Args:
        system, baseline: (S, K) statistics of S sentences, from `load`.
        samples: number of resamples; at least 19 for a test at the 5 % level.
    """
    ours, theirs = (numpy.asarray(statistics, dtype=float) for statistics in (system, baseline))
    if ours.shape != theirs.shape:
        raise ValueError(f"both statistics must have the same shape; got {ours.shape} and {theirs.shape}")
    weights, score = resamples(len(ours), samples, seed), SCORES["sacreBLEU"]
    everything = numpy.ones((1, len(ours)))
    difference = float((score(everything @ ours) - score(everything @ theirs))[0])
    drawn = score(weights @ ours) - score(weights @ theirs)
    scatter = numpy.sort(abs(drawn - drawn.mean()))[::-1]
    p_value = float((scatter >= abs(difference)).sum() + 1) / (samples + 1)
    half = float(scatter[max(0, (samples + 1) // 20 - 1)])
    return Comparison(difference, difference - half, difference + half, p_value)


def compare(system: Mapping[str, Any], baseline: Mapping[str, Any], names: Sequence[str]) -> Optional[Comparison]:
    """Compare the sacreBLEU of two systems on one test set.

    Args:
        system, baseline: an `Evaluation` each, as a dictionary.
        names: of the two, for errors.

    Returns:
        None if either lacks sentence statistics.
    """
    if any(_rows(evaluation, "sacreBLEU") is None for evaluation in (system, baseline)):
        return None
    _check_signatures([system, baseline], "sacreBLEU", names)
    _, (ours, theirs) = _check([system, baseline], "sacreBLEU", names)
    return paired_bootstrap(ours, theirs)


def over_seeds(*sides: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]) -> Tuple[Interval, bool]:
    """Confidence interval of a metric on one test set, and whether it is also over the sentences.

    Args:
        sides: one system, or two for the interval of their difference; for each seed an `Evaluation` as a dictionary.
            The interval is over the seeds only if there are no sentence statistics of the metric, or if the seeds have
            different sentences, which then contribute to the scatter of the seeds.
        names: of all evaluations, one side after the other, for errors.

    Raises:
        UserError: an evaluation lacks the metric, signatures differ, references differ within a seed, or a score
            differs from that of its sentence statistics.
    """
    seeds = len(sides[0])
    _check_signatures([evaluation for side in sides for evaluation in side], metric, names)
    scores, contributions = [], []
    for number, evaluations in enumerate(zip(*sides, strict=True)):
        values, statistics = _check(evaluations, metric, names[number::seeds])
        scores.append(values[0] - sum(values[1:]))
        if statistics:
            pseudovalues = [jackknife(sums, SCORES[metric]) for sums in statistics]
            contributions.append(pseudovalues[0] - sum(pseudovalues[1:]))
    texts = {(evaluation.get("sentence_statistics") or {}).get("references_sha256") for evaluation in sides[0]}
    complete = len(contributions) == seeds and len(texts) == 1
    return interval(scores, numpy.stack(contributions) if complete else None), complete


def _rows(evaluation: Mapping[str, Any], metric: str) -> Optional[str]:
    """The sentence statistics of a metric in the form of records, or None."""
    statistics: Mapping[str, Any] = evaluation.get("sentence_statistics") or {"rows": {}}
    rows: Optional[str] = statistics["rows"].get(metric)
    return rows


def _check(
    evaluations: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]
) -> Tuple[List[float], List[numpy.ndarray]]:
    """Comparable scores of n evaluations: scores (n), statistics (S, K) of each, or none if one lacks them."""
    values = [float(_entry(*each, metric)["score"]) for each in zip(evaluations, names, strict=True)]
    digests = [(each.get("sentence_statistics") or {}).get("references_sha256") for each in evaluations]
    _check_equal("references", [(name, digest) for name, digest in zip(names, digests, strict=True) if digest])
    rows = [_rows(each, metric) for each in evaluations]
    if None in rows:
        return values, []
    statistics = [load(each, metric) for each in rows if each]
    for name, value, sums in zip(names, values, statistics, strict=True):
        total = float(SCORES[metric](sums.sum(axis=0, keepdims=True))[0])
        if abs(total - value) > _ROUNDING:
            raise UserError(f"{name}: {metric} must be the score of its sentence statistics, {total}; got {value}")
    return values, statistics


def _entry(evaluation: Mapping[str, Any], name: str, metric: str) -> Mapping[str, Any]:
    """The score of a metric."""
    scores: Sequence[Mapping[str, Any]] = evaluation["scores"]
    for score in scores:
        if score["metric"] == metric:
            return score
    raise UserError(f"{name} has no {metric}")


def _check_signatures(evaluations: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]) -> None:
    entries = [_entry(*each, metric) for each in zip(evaluations, names, strict=True)]
    signatures = [entry.get("signature") for entry in entries]
    if metric in ("tokenised BLEU", "compound-split BLEU"):  # the signature does not cover the tokenisation
        signatures = [entry.get("compared", "").partition("; references")[0] for entry in entries]
    _check_equal("signatures", list(zip(names, signatures, strict=True)))


def _check_equal(property_name: str, named: Sequence[Tuple[str, Any]]) -> None:
    """Check that pairs of a name and a value all have the same value."""
    for name, value in named:
        first_name, first = named[0]
        if value != first:
            raise UserError(f"{first_name} and {name} must have the same {property_name}; got {first} and {value}")

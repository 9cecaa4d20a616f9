"""Paired bootstrap and intervals, against sacreBLEU and in simulations."""

import hashlib
import json

import numpy
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from scipy import stats

from collab_fairseq.scoring import bleu
from collab_fairseq.scoring.significance import (
    compare,
    interval,
    jackknife,
    over_seeds,
    paired_bootstrap,
    resamples,
)
from collab_fairseq.scoring.sufficient_statistics import SCORES, load
from fairseq_modern.errors import UserError
from tests.common import ROOT
from tests.records.cases import sentences, translate

corpus_bleu = SCORES["sacreBLEU"]

#: resamples in simulations; 20 k − 1, so that the 5 % level can be met exactly
SAMPLES = 99


def statistics(hypotheses, references):
    return load(bleu.sacrebleu(hypotheses, references)[1], "sacreBLEU")


def p_of_sacrebleu(differences, difference):
    """The p-value of sacreBLEU, which counts |d_b| − mean |d_b| > |d|."""
    size = abs(differences)
    return ((size - size.mean() > abs(difference)).sum() + 1) / (len(size) + 1)


def test_scores_of_resamples_equal_sacrebleu():
    references = sentences(40)
    system, baseline = (translate(references, noise, 5) for noise in (0.2, 0.3))
    rows = [statistics(side, references) for side in (system, baseline)]
    weights = resamples(40, 50)
    assert (weights.sum(axis=1) == 40).all()
    assert weights.var() == pytest.approx(39 / 40, abs=0.1)
    drawn = []
    for row in weights.astype(int):
        chosen = [number for number, times in enumerate(row) for _ in range(times)]
        picked = [[side[number] for number in chosen] for side in (system, baseline, references)]
        one, other = (BLEU().corpus_score(side, [picked[2]]).score for side in picked[:2])
        drawn.append(one - other)
    assert corpus_bleu(weights @ rows[0]) - corpus_bleu(weights @ rows[1]) == pytest.approx(drawn, abs=1e-9)
    scores = [BLEU().corpus_score(side, [references]).score for side in (system, baseline)]
    result = paired_bootstrap(*rows, samples=50)
    assert result.difference == pytest.approx(scores[0] - scores[1], abs=1e-9)
    scatter = sorted((abs(d - sum(drawn) / 50) for d in drawn), reverse=True)
    assert result.p_value == (sum(each >= abs(result.difference) for each in scatter) + 1) / 51
    # 5 % of 51 is two: the second largest
    assert (result.low, result.high) == pytest.approx([result.difference + s * scatter[1] for s in (-1, 1)], abs=1e-9)


def test_swapped_systems_negate_and_seed_determines_the_result():
    references = sentences()
    rows = [statistics(translate(references, noise, 3), references) for noise in (0.2, 0.22)]
    one, other = paired_bootstrap(*rows), paired_bootstrap(*reversed(rows))
    assert other == pytest.approx((-one.difference, -one.high, -one.low, one.p_value))
    assert paired_bootstrap(*rows) == one != paired_bootstrap(*rows, seed=1)
    assert paired_bootstrap(rows[0], rows[0]) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="must have the same shape"):
        paired_bootstrap(rows[0], rows[1][:-1])


@pytest.fixture(scope="module")
def pool():
    """Statistics of two different systems for 300 sentences."""
    references = sentences(300)
    return [statistics(translate(references, noise, seed), references) for noise, seed in ((0.25, 1), (0.35, 2))]


def test_five_percent_of_equal_systems_differ_significantly(pool):
    """Randomly swapped sentences of both systems have one distribution. sacreBLEU's p-value is the control."""
    chance = numpy.random.default_rng(11)
    ours, control = [], []
    for seed in range(1500):
        chosen, swap = chance.integers(300, size=100), chance.integers(2, size=(100, 1))
        one, other = (numpy.where(swap == side, pool[0][chosen], pool[1][chosen]) for side in (0, 1))
        ours.append(paired_bootstrap(one, other, samples=SAMPLES, seed=seed))
        weights = resamples(100, SAMPLES, seed)
        drawn = corpus_bleu(weights @ one) - corpus_bleu(weights @ other)
        control.append(p_of_sacrebleu(drawn, ours[-1].difference))
    rejected = numpy.mean([each.p_value <= 0.05 for each in ours])
    assert 0.04 < rejected < 0.06
    assert numpy.mean([not each.low <= 0 <= each.high for each in ours]) == rejected
    assert 0.08 < numpy.mean(numpy.array(control) <= 0.05) < 0.13


def test_detects_true_difference(pool):
    truth = float(numpy.subtract(*(corpus_bleu(rows.sum(axis=0, keepdims=True)) for rows in pool))[0])
    assert truth > 5
    drawn = numpy.random.default_rng(11).integers(300, size=(100, 100))
    ours = [paired_bootstrap(pool[0][chosen], pool[1][chosen], samples=SAMPLES) for chosen in drawn]
    assert 0.88 < numpy.mean([each.p_value <= 0.05 for each in ours]) < 0.98
    assert 0.88 < numpy.mean([each.low <= truth <= each.high for each in ours]) < 0.99


SCORERS = {"sacreBLEU": BLEU(), "chrF++": CHRF(word_order=2), "TER": TER()}


@pytest.mark.parametrize("metric", SCORERS)
def test_scores_of_sums_equal_sacrebleu(metric):
    """For all sentences, single ones and small sets: without matches, short, with punctuation at both ends."""
    scorer = SCORERS[metric]
    references = [*sentences(30), "Ja.", '(ein) "Hund"!', "- 3,5 ?", "a b c d e"]
    hypotheses = [*translate(sentences(30), 0.4, 5), "", "ein (Hund)", "... 3,5", "x y z"]
    rows = {"sacreBLEU": bleu.sacrebleu(hypotheses, references)[1], **bleu.other_metrics(hypotheses, references)[1]}
    sums = load(rows[metric], metric)
    chosen = [range(34), *([n] for n in range(34)), (3, 30), (29, 31, 33), (0, 32, 33)]
    expected = [scorer.corpus_score([hypotheses[n] for n in c], [[references[n] for n in c]]).score for c in chosen]
    scores = SCORES[metric](numpy.stack([sums[list(c)].sum(axis=0) for c in chosen]))
    assert scores == pytest.approx(expected, abs=1e-9)
    assert len(set(expected)) > 15


def test_jackknife_has_the_variance_of_the_bootstrap():
    references = sentences(300)
    one, other = (statistics(translate(references, noise, seed), references) for noise, seed in ((0.2, 1), (0.3, 2)))
    values = jackknife(one, corpus_bleu) - jackknife(other, corpus_bleu)
    drawn = numpy.subtract(*(corpus_bleu(resamples(300) @ each) for each in (one, other)))
    assert values.std(ddof=1) / 300**0.5 == pytest.approx(drawn.std(ddof=1), rel=0.1)
    left_out = corpus_bleu(one[1:].sum(axis=0, keepdims=True))[0]
    assert jackknife(one, corpus_bleu)[0] == pytest.approx(300 * corpus_bleu(one.sum(axis=0)[None])[0] - 299 * left_out)


def test_interval_over_seeds_is_students_t():
    scores = numpy.array([37.1, 36.4, 37.9])
    expected = stats.ttest_1samp(scores, 0).confidence_interval(0.95)
    assert interval(scores) == pytest.approx((scores.mean(), expected.low, expected.high))
    # if all seeds are equal, only the sentences contribute
    values = numpy.tile(numpy.random.default_rng(1).normal(30, 20, 500), (3, 1))
    result, half = interval(numpy.full(3, 30.0), values), 1.95996 * values[0].std(ddof=1) / 500**0.5
    assert (result.low, result.high) == pytest.approx((30 - half, 30 + half))
    assert interval(scores[:1]) == pytest.approx((37.1, numpy.nan, numpy.nan), nan_ok=True)


def test_rejects_different_references_and_inconsistent_scores(by_name):
    names = ["none-32-s1", "none-None-s1"]
    evaluations = [by_name[name]["scores"]["test_a"] for name in names]
    stored = evaluations[1]["sentence_statistics"]
    digest, rows = stored["references_sha256"], stored["rows"]["sacreBLEU"].split("; ")
    assert digest == hashlib.sha256("".join(f"{line}\n" for line in sentences()).encode()).hexdigest()
    stored["references_sha256"] = "0" * 64
    sides = [[evaluation] * 2 for evaluation in evaluations]
    for kept in (stored["rows"], {}):
        stored["rows"] = kept
        with pytest.raises(UserError, match="none-32-s1 and none-None-s1 must have the same references"):
            over_seeds(*sides, metric="sacreBLEU", names=[names[0], names[0], names[1], names[1]])
    stored.update(references_sha256=digest, rows={"sacreBLEU": "; ".join([*rows[:-1], "4 4 4 3 2 1"])})
    with pytest.raises(UserError, match="none-None-s1: sacreBLEU must be the score of its sentence statistics"):
        compare(*evaluations, names)
    del evaluations[1]["sentence_statistics"]
    assert compare(*evaluations, names) is None


@pytest.fixture(scope="module")
def contributions():
    """Centred contributions of 1,000 sentences to the BLEU of nine real models: (9, 1000)."""
    names = [f"none-dk128-s{seed}" for seed in (1, 2, 3)]
    names += [f"encoder_cross_decoder-dk32-{kind}-s{seed}" for kind in ("blocks", "blocks8") for seed in (1, 2, 3)]
    records = [json.loads((ROOT / f"results/runs/multi30k-{name}-u4000.json").read_text()) for name in names]
    scored = [record["parts"]["scores"]["test_2016_flickr"] for record in records]
    rows = [load(each["sentence_statistics"]["rows"]["sacreBLEU"], "sacreBLEU") for each in scored]
    values = numpy.stack([jackknife(each, corpus_bleu) for each in rows])
    return values - values.mean(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("seeds", "shared", "least"),
    [
        (3, 0.4, 0.02),
        (6, 0.03, 0.04),
        pytest.param(3, 0.03, 0.04, marks=pytest.mark.slow),
        pytest.param(6, 0.4, 0.02, marks=pytest.mark.slow),
    ],
)
def test_at_most_five_percent_of_equal_rows_differ(contributions, seeds, shared, least):
    """Two equal rows: random models' translations of random sentences, with a seed effect of 0.3 BLEU.

    All seeds of a row agree on a share of the sentences, since its models are similar (on up to 3 % in the real rows).
    Controls: 1.96 standard errors of the mean over seeds, as in a bootstrap over few seeds; sentences only; and, if the
    seeds agree more often, Student's t over the seeds only.
    """
    chance, outside = numpy.random.default_rng(3), []
    models, sentences = contributions.shape
    for _ in range(5000):
        chosen = chance.integers(models, size=(2, seeds, sentences))
        agreed = round(shared * sentences)
        chosen[:, :, :agreed] = chance.integers(models, size=(2, 1, agreed))
        values = contributions[chosen, chance.integers(sentences, size=sentences)]
        one, other = values + chance.normal(0, 0.3, size=(2, seeds, 1))
        values = one - other
        scores = values.mean(axis=1)
        both, alone, mean = interval(scores, values), interval(scores), abs(scores.mean())
        naive = (scores.std(ddof=1) / seeds**0.5, values.mean(axis=0).std(ddof=1) / sentences**0.5)
        outside.append(
            (both.low > 0 or both.high < 0, alone.low > 0 or alone.high < 0, *(mean > 1.96 * s for s in naive))
        )
    rejected, of_seeds, *naive = numpy.mean(outside, axis=0)
    assert least <= rejected <= 0.06
    assert min(naive) > 0.08
    assert (of_seeds > 0.075) == (shared > 0.1)

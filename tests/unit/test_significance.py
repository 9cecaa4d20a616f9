"""The paired bootstrap, against sacrebleu on resampled sentences and against what must happen by chance."""

import numpy
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from collab_fairseq.scoring import bleu
from collab_fairseq.scoring.significance import corpus_bleu, paired_bootstrap, resamples, statistics_of
from tests.unit.conftest import sentences, translate

#: of a simulation; a multiple of 20 less 1, so that the level of 5 % can be met exactly
SAMPLES = 99


def statistics(hypotheses, references):
    rows = bleu.sentence_statistics(hypotheses, references)
    return statistics_of("; ".join(" ".join(map(str, row)) for row in rows))


def p_of_sacrebleu(differences, difference):
    """Its formula: counts |d_b| − mean |d_b| > |d|."""
    size = abs(differences)
    return ((size - size.mean() > abs(difference)).sum() + 1) / (len(size) + 1)


def test_resamples_have_the_scores_that_sacrebleu_gives_them():
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
    whole = [BLEU().corpus_score(side, [references]).score for side in (system, baseline)]
    found = paired_bootstrap(*rows, samples=50)
    assert found.difference == pytest.approx(whole[0] - whole[1], abs=1e-9)
    scatter = sorted((abs(d - sum(drawn) / 50) for d in drawn), reverse=True)
    assert found.p_value == (sum(each >= abs(found.difference) for each in scatter) + 1) / 51
    # 5 % of 51 are two: the second largest
    assert (found.low, found.high) == pytest.approx([found.difference + s * scatter[1] for s in (-1, 1)], abs=1e-9)


def test_the_order_of_the_systems_is_the_sign_and_the_seed_the_result():
    references = sentences()
    rows = [statistics(translate(references, noise, 3), references) for noise in (0.2, 0.22)]
    one, other = paired_bootstrap(*rows), paired_bootstrap(*reversed(rows))
    assert other == pytest.approx((-one.difference, -one.high, -one.low, one.p_value))
    assert paired_bootstrap(*rows) == one != paired_bootstrap(*rows, seed=1)
    assert paired_bootstrap(rows[0], rows[0]) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match=r"the same sentences, got shapes \(120, 10\) and \(119, 10\)"):
        paired_bootstrap(rows[0], rows[1][:-1])


def simulated(rows, repetitions, sentences, swapped):
    """Comparisons of two systems on sentences drawn from a pool, each side's swapped at random or not; p of either."""
    chance = numpy.random.default_rng(11)
    ours, theirs = [], []
    for seed in range(repetitions):
        chosen = chance.integers(len(rows[0]), size=sentences)
        swap = swapped * chance.integers(2, size=(sentences, 1))
        one, other = (numpy.where(swap == side, rows[0][chosen], rows[1][chosen]) for side in (0, 1))
        ours.append(paired_bootstrap(one, other, samples=SAMPLES, seed=seed))
        weights = resamples(sentences, SAMPLES, seed)
        drawn = corpus_bleu(weights @ one) - corpus_bleu(weights @ other) if swapped else numpy.zeros(1)
        theirs.append(p_of_sacrebleu(drawn, ours[-1].difference))
    return ours, numpy.array(theirs)


@pytest.fixture(scope="module")
def pool():
    """Statistics of two systems that differ, for 300 sentences."""
    references = sentences(300)
    return [statistics(translate(references, noise, seed), references) for noise, seed in ((0.25, 1), (0.35, 2))]


def test_where_there_is_no_difference_one_in_twenty_is_found(pool):
    """Swapped at random the sentences of both come from one distribution. sacrebleu's p is the control."""
    ours, theirs = simulated(pool, 1500, 100, swapped=True)
    rejected = numpy.mean([each.p_value <= 0.05 for each in ours])
    assert 0.04 < rejected < 0.06
    assert numpy.mean([not each.low <= 0 <= each.high for each in ours]) == rejected
    assert 0.08 < (theirs <= 0.05).mean() < 0.13


def test_a_difference_that_is_there_is_found(pool):
    truth = float(numpy.subtract(*(corpus_bleu(rows.sum(axis=0, keepdims=True)) for rows in pool))[0])
    assert truth > 5
    ours, _ = simulated(pool, 100, 100, swapped=False)
    assert numpy.mean([each.p_value <= 0.05 for each in ours]) > 0.8
    assert 0.88 < numpy.mean([each.low <= truth <= each.high for each in ours]) <= 1


def test_the_control_is_what_sacrebleu_does(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    references = sentences()
    texts = [translate(references, noise, 3) for noise in (0.2, 0.22)]
    systems = [("baseline", texts[0]), ("system", texts[1])]
    _, results = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=SAMPLES)()
    before, after = results["BLEU"]
    drawn = numpy.random.default_rng(7).choice(len(references), size=(SAMPLES, len(references)), replace=True)
    rows = [statistics(side, references)[drawn].sum(axis=1) for side in texts]
    differences = corpus_bleu(rows[1]) - corpus_bleu(rows[0])
    assert p_of_sacrebleu(differences, after.score - before.score) == after.p_value

"""What sacreBLEU, chrF++ and TER sum up over the sentences of a test set, and the scores of such sums.

Records keep these statistics of each sentence, so that scores have intervals. They are sacrebleu's, as are the scores.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

Score = Callable[[numpy.ndarray], numpy.ndarray]


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], target_lang: Optional[str] = None) -> str:
    """Of sacreBLEU, a row for each sentence: lengths of hypothesis and reference, and the matched 1- to 4-grams.

    The numbers of k-grams in the hypothesis are left out: they follow from its length.
    """
    bleu = BLEU(trg_lang=target_lang or "", force=True)
    return dump([row[:6] for row in _extract(bleu, hypotheses, references)])


def other_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> Dict[str, str]:
    """Of chrF++: characters and words of the hypothesis and of the reference, matched 1- to 6-grams of characters, and
    1- and 2-grams of words. Of TER: edits, words of the reference.
    """
    # of sacrebleu: hypothesis, reference and matches of 1 to 6 characters, then of 1 and 2 words
    chrf = [[row[at] for at in (0, 18, 1, 19, *range(2, 24, 3))]
            for row in _extract(CHRF(word_order=2), hypotheses, references)]  # fmt: skip
    return {"chrF++": dump(chrf), "TER": dump(_extract(TER(), hypotheses, references))}


def _extract(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> List[List[int]]:
    """What a metric of sacrebleu sums up over the sentences, a row for each."""
    found = metric._extract_corpus_statistics(hypotheses, [references])
    return [[int(number) for number in row] for row in found]


def dump(rows: Sequence[Sequence[Any]]) -> str:
    """Sentence statistics in the one string in which records keep them."""
    return "; ".join(" ".join(map(str, row)) for row in rows)


def load(rows: str, metric: str) -> numpy.ndarray:
    """Sentence statistics as what the metric sums up.

    Returns:
        (S, K) for S sentences. K = 10 for sacreBLEU: lengths of hypothesis and reference, matched 1- to 4-grams, all 1-
        to 4-grams of the hypothesis. K = 24 for chrF++: the n-grams of the hypothesis, those of the reference and the
        matched ones, each of 1 to 6 characters, then of 1 and 2 words. Else K = 2: a sum, and what it is divided by.
    """
    table = numpy.array([[float(number) for number in row.split(" ")] for row in rows.split("; ")])
    if metric == "sacreBLEU":
        return numpy.hstack([table, _ngrams(table[:, :1], 4)])
    if metric == "chrF++":
        ours, theirs = (numpy.hstack([_ngrams(table[:, [i]], 6), _ngrams(table[:, [i + 1]], 2)]) for i in (0, 2))
        # n-grams longer than the reference are not counted in the hypothesis
        return numpy.hstack([ours * (theirs > 0), theirs, table[:, 4:]])
    return table


def _ngrams(length: numpy.ndarray, longest: int) -> numpy.ndarray:
    """How many 1-, 2-, …-grams texts of these lengths (S, 1) have: (S, longest)."""
    return numpy.maximum(0, length - numpy.arange(longest))


def corpus_bleu(sums: numpy.ndarray) -> numpy.ndarray:
    """sacreBLEU of N corpora from their sums (N, 10) of what `load` gives: (N)."""
    length, reference, correct, total = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:]
    with numpy.errstate(divide="ignore", invalid="ignore"):
        # exp smoothing: the k-th order that has no match counts as 1 / 2^k of a match
        smoothed = numpy.where(correct > 0, correct, 0.5 ** numpy.cumsum(correct == 0, axis=1))
        brevity = numpy.minimum(0, 1 - reference / length)
        score = 100 * numpy.exp(numpy.log(smoothed / total).mean(axis=1) + brevity)
    return numpy.where((correct > 0).any(axis=1) & (total > 0).all(axis=1), score, 0.0)


def corpus_chrf(sums: numpy.ndarray) -> numpy.ndarray:
    """chrF++ of N corpora from their sums (N, 24) of what `load` gives: (N)."""
    ours, theirs, matched = numpy.split(sums, 3, axis=1)
    used = (ours > 0) & (theirs > 0)
    orders = numpy.maximum(1, used.sum(axis=1))
    precision, recall = ((matched * used / numpy.maximum(side, 1)).sum(axis=1) / orders for side in (ours, theirs))
    return 500 * precision * recall / numpy.maximum(4 * precision + recall, 1e-16)  # F with recall twice as important


#: metric → its score from sums
SCORES: Dict[str, Score] = {
    "sacreBLEU": corpus_bleu,
    "chrF++": corpus_chrf,
    "TER": lambda sums: 100 * sums[:, 0] / sums[:, 1],
    "COMET": lambda sums: sums[:, 0] / sums[:, 1],
    "nll": lambda sums: sums[:, 0] / sums[:, 1],
}

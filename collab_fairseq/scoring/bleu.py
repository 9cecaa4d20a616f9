"""BLEU in three forms, chrF, chrF++ and TER, all computed by sacreBLEU.

- tokenised BLEU: without smoothing, on the white-space tokens of tokenised text, as in multi-bleu.perl and
  fairseq-generate;
- compound-split BLEU: the same after a compound split, as in Vaswani et al. (2017) and papers that
  compare with it; German only;
- sacreBLEU (Post 2018, https://aclanthology.org/W18-6319): detokenised text against raw references,
  with a signature. Only this form is comparable across papers;
- chrF (Popović 2015, https://aclanthology.org/W15-3049): F2 score of character n-grams of the same text;
- chrF++ (Popović 2017, https://aclanthology.org/W17-4770): chrF with word unigrams and bigrams;
- TER (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25): edits per reference word, in per
  cent, case-insensitive as in the original; lower is better.
"""

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from collab_fairseq.scoring.significance import bootstrap_interval
from collab_fairseq.scoring.sufficient_statistics import dump, score_function
from collab_fairseq.scoring.text import base_language
from fairseq_modern.errors import UserError

# over bytes, where a no-break space is not white space, as in the scripts that define the protocol
_HYPHEN = re.compile(rb"(\S)-(\S)")
# white space in Python and sacreBLEU, but not in the byte-wise scripts that define tokenised BLEU: U+00A0, ...
_OTHER_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
_PRIVATE_USE = 0xF0000


@dataclass
class Score:
    """One score of a corpus.

    Attributes:
        metric: "tokenised BLEU", "compound-split BLEU", "sacreBLEU", "chrF", "chrF++", "TER" or "COMET".
        score: between 0 and 100; TER can exceed 100.
        precisions: of 1- to 4-grams, in per cent; BLEU only.
        brevity_penalty: between 0 and 1; BLEU only.
        hyp_len, ref_len: lengths in tokens of the metric; BLEU only.
        signature: sacreBLEU's. For tokenised and compound-split BLEU it does not cover the tokenisation.
        compared: form of the text and source of the references.
        interval: 95 % bootstrap interval over the sentences.
    """

    metric: str
    score: float
    precisions: Optional[List[float]] = None
    brevity_penalty: Optional[float] = None
    hyp_len: Optional[int] = None
    ref_len: Optional[int] = None
    signature: str = ""
    compared: str = ""
    interval: Optional[Tuple[float, float]] = None

    def line(self) -> str:
        """The score in fairseq's format: `29.29, 60.3/35.0/22.8/15.3 (BP=1.000, ratio=1.004, syslen=…, …)`."""
        if self.precisions is None or self.ref_len is None:
            return f"{self.score:.2f}"
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = (self.hyp_len or 0) / self.ref_len if self.ref_len else 0.0
        return (
            f"{self.score:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"syslen={self.hyp_len}, reflen={self.ref_len})"
        )


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], metric: str = "tokenised BLEU") -> Score:
    """BLEU without smoothing, on tokens separated by ASCII white space; a no-break space is part of a token."""
    hypotheses, references = ([_keep_other_spaces(text) for text in side] for side in (hypotheses, references))
    score, _ = _score(metric, BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)
    return score


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Tokenised BLEU after a compound split of both sides, for German. Often higher, as more n-grams match."""
    hypotheses, references = ([split_compounds(text) for text in side] for side in (hypotheses, references))
    return tokenised_bleu(hypotheses, references, "compound-split BLEU")


def split_compounds(text: str) -> str:
    """The compound split of tensor2tensor and fairseq: each hyphen between non-space bytes becomes ` ##AT##-##AT## `.

    Matches do not overlap: `A-B-C` becomes `A ##AT##-##AT## B-C`, because B belongs to the first match.
    """
    split = _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode("utf-8", "surrogateescape"))
    return split.decode("utf-8", "surrogateescape")


def sacrebleu(
    hypotheses: Sequence[str], references: Sequence[str], target_lang: Optional[str] = None
) -> Tuple[Score, str]:
    """sacreBLEU of detokenised text with default settings, and its sentence statistics.

    Statistics: lengths of hypothesis and reference, matched 1- to 4-grams.

    Raises:
        UserError: see :func:`sacrebleu_scorer`.
    """
    score, rows = _score("sacreBLEU", sacrebleu_scorer(target_lang), hypotheses, references)
    return score, dump([row[:6] for row in rows])


def sacrebleu_scorer(target_lang: Optional[str] = None) -> BLEU:
    """sacreBLEU with default settings, and the tokeniser of the language.

    Raises:
        UserError: the tokeniser is not installed.
    """
    try:
        return BLEU(trg_lang=base_language(target_lang or ""), force=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"sacreBLEU cannot tokenise {target_lang}: {reason}") from error


def other_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> Tuple[List[Score], Dict[str, str]]:
    """chrF, chrF++ and TER of detokenised text with sacreBLEU's default settings; sentence statistics of the last two.

    Statistics of chrF++: characters and words of the hypothesis, then of the reference; matched 1- to 6-grams of
    characters; matched 1- and 2-grams of words. TER: edits; words of the reference.
    """
    chrf, _ = _score("chrF", CHRF(), hypotheses, references)
    chrf_with_words, matches = _score("chrF++", CHRF(word_order=2), hypotheses, references)
    ter, edits = _score("TER", TER(), hypotheses, references)
    stored = (0, 18, 1, 19, *range(2, 24, 3))
    statistics = {"chrF++": dump([[row[column] for column in stored] for row in matches]), "TER": dump(edits)}
    return [chrf, chrf_with_words, ter], statistics


def _keep_other_spaces(text: str) -> str:
    return _OTHER_SPACE.sub(lambda match: chr(_PRIVATE_USE + ord(match.group())), text)


def _score(
    metric: str, scorer: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> Tuple[Score, List[List[int]]]:
    """The score, and sacreBLEU's statistics of each sentence."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"there must be {len(references)} hypotheses, as many as references, and at least 1; got {len(hypotheses)}"
        )
    # the two steps of scorer.corpus_score, which does not return the statistics
    rows = scorer._extract_corpus_statistics(hypotheses, [references])
    result = scorer._aggregate_and_compute(rows)
    score = Score(metric, float(result.score), signature=str(scorer.get_signature()))
    score.interval = bootstrap_interval(rows, score_function(scorer))
    if isinstance(scorer, BLEU):
        score.precisions = [float(precision) for precision in result.precisions]
        score.brevity_penalty = float(result.bp)
        score.hyp_len = int(result.sys_len)
        score.ref_len = int(result.ref_len)
    return score, [[int(number) for number in row] for row in rows]

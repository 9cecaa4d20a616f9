"""BLEU in the three forms in which translation papers report it, chrF, chrF++ and TER. The arithmetic is sacrebleu's.

- tokenised BLEU: unsmoothed, on the white-space tokens of tokenised text, as multi-bleu.perl and fairseq-generate do;
- compound-split BLEU: the same after the compound split, as in Vaswani et al. (2017) and papers that compare with it;
  German only;
- sacreBLEU (Post 2018, https://aclanthology.org/W18-6319): detokenised text against raw references, with a signature.
  The only one that can be compared across papers;
- chrF (Popović 2015, https://aclanthology.org/W15-3049): F2 of character n-grams, of the same text, with a signature;
- chrF++ (Popović 2017, https://aclanthology.org/W17-4770): the same of words and pairs of words, too;
- TER (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25): edits per word of the reference, in per cent:
  less is better. Lower-cased, as its authors have it.
"""

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

# over bytes, where a no-break space is no white space, as in the scripts that define the protocol
_HYPHEN = re.compile(rb"(\S)-(\S)")
# white space to Python and so to sacrebleu, but not to the byte-wise scripts that define tokenised BLEU: U+00A0, ...
_OTHER_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
_PRIVATE_USE = 0xF0000


@dataclass
class Score:
    """One score of a corpus.

    Attributes:
        metric: "tokenised BLEU", "compound-split BLEU", "sacreBLEU", "chrF", "chrF++", "TER" or "COMET".
        score: between 0 and 100; TER may be above. The next attributes, up to the lengths, are of BLEU alone.
        precisions: of 1- to 4-grams, in per cent.
        brevity_penalty: between 0 and 1.
        hyp_len, ref_len: lengths in tokens of the metric.
        signature: sacrebleu's; for the first two it describes the arithmetic, not how the text was tokenised.
        compared: the form of the text and its references, in words.
    """

    metric: str
    score: float
    precisions: Optional[List[float]]
    brevity_penalty: Optional[float]
    hyp_len: Optional[int]
    ref_len: Optional[int]
    signature: str
    compared: str = ""

    def line(self) -> str:
        """The score in the form of fairseq: `29.29, 60.3/35.0/22.8/15.3 (BP=1.000, ratio=1.004, syslen=…, …)`."""
        if self.precisions is None or self.ref_len is None:
            return f"{self.score:.2f}"
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = (self.hyp_len or 0) / self.ref_len if self.ref_len else 0.0
        return (
            f"{self.score:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"syslen={self.hyp_len}, reflen={self.ref_len})"
        )


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], metric: str = "tokenised BLEU") -> Score:
    """Unsmoothed BLEU on tokens separated by ASCII white space; a no-break space is part of a token."""
    hypotheses, references = ([_keep_other_spaces(text) for text in side] for side in (hypotheses, references))
    return _score(metric, BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Tokenised BLEU after the compound split of both sides: flatters German, means nothing for other languages."""
    hypotheses, references = ([split_compounds(text) for text in side] for side in (hypotheses, references))
    return tokenised_bleu(hypotheses, references, "compound-split BLEU")


def split_compounds(text: str) -> str:
    """The compound split of tensor2tensor and fairseq: each hyphen between two non-space bytes is ` ##AT##-##AT## `.

    Matches do not overlap: `A-B-C` becomes `A ##AT##-##AT## B-C`, where B belongs to the first.
    """
    split = _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode("utf-8", "surrogateescape"))
    return split.decode("utf-8", "surrogateescape")


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str], target_lang: Optional[str] = None) -> Score:
    """sacreBLEU with its defaults. Both sides are detokenised text."""
    return _score("sacreBLEU", BLEU(trg_lang=target_lang or "", force=True), hypotheses, references)


def other_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> List[Score]:
    """chrF, chrF++ and TER with sacrebleu's defaults. Both sides are detokenised text."""
    scorers = (("chrF", CHRF()), ("chrF++", CHRF(word_order=2)), ("TER", TER()))
    return [_score(metric, scorer, hypotheses, references) for metric, scorer in scorers]


def _keep_other_spaces(text: str) -> str:
    return _OTHER_SPACE.sub(lambda match: chr(_PRIVATE_USE + ord(match.group())), text)


def _score(metric: str, scorer: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"expected as many references as hypotheses, got {len(references)} and {len(hypotheses)}")
    result = scorer.corpus_score(hypotheses, [references])
    ngrams = isinstance(scorer, BLEU)
    return Score(
        metric=metric,
        score=float(result.score),
        precisions=[float(precision) for precision in result.precisions] if ngrams else None,
        brevity_penalty=float(result.bp) if ngrams else None,
        hyp_len=int(result.sys_len) if ngrams else None,
        ref_len=int(result.ref_len) if ngrams else None,
        signature=str(scorer.get_signature()),
    )

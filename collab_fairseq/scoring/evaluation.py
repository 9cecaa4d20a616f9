"""A generate log and, where there is one, a raw reference, to every BLEU that they allow."""

import hashlib
import importlib.metadata
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.scoring import bleu, text
from collab_fairseq.scoring.errors import ScoringError
from collab_fairseq.scoring.generate_log import GenerateLog, read_generate_log
from collab_fairseq.scoring.references import PathLike, check_number, read_references, score_raw

# below it two texts are not the same test set; different sentences have about 0.1 of their words in common
_SAME_TEXT = 0.5


@dataclass
class Evaluation:
    """Scores of one test set and how they came about.

    Attributes:
        sentences: number of hypotheses.
        tokenised: whether the log's text is tokenised.
        assumed: whether that was guessed from the text.
        scores: each with a sentence on what was compared with what.
        remarks: what was left out, and why.
        files: name and SHA-256 of every file that was read.
        sentence_statistics: of sacreBLEU, for the paired bootstrap, where there is a sacreBLEU: its rows (see
            `bleu.sentence_statistics`) in one string, and the SHA-256 of the references, one per line.
    """

    sentences: int
    tokenised: bool
    assumed: bool
    target_lang: str
    scores: List[Tuple[bleu.Score, str]] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    files: List[Dict[str, str]] = field(default_factory=list)
    sentence_statistics: Optional[Dict[str, str]] = None

    def as_json(self) -> Dict[str, Any]:
        """Plain data for a record."""
        return {
            "sentences": self.sentences,
            "tokenised": self.tokenised,
            "tokenised_assumed": self.assumed,
            "target_lang": self.target_lang,
            "scores": [{**asdict(score), "compared": compared} for score, compared in self.scores],
            "remarks": self.remarks,
            "files": self.files,
            "sentence_statistics": self.sentence_statistics,
        }


@dataclass
class _Reference:
    """Raw references and the name of their file."""

    lines: List[str]
    name: str


def evaluate(
    logs: Sequence[PathLike],
    reference: Optional[PathLike] = None,
    target_lang: str = "de",
    tokenised: Optional[bool] = None,
) -> Evaluation:
    """Score the translations of one test set.

    Tokenised and compound-split BLEU compare the hypotheses with the log's own references (`T-` lines), or with
    `reference` where the log has none. Raw text is Moses-tokenised first, both sides alike. sacreBLEU compares raw text
    with `reference`; tokenised hypotheses are detokenised for it, and without `reference` it is left out for them.

    Args:
        logs: the log of fairseq-generate, or its shards.
        reference: raw text, line i for id i.
        target_lang: language code for Moses; the compound split is for "de" only.
        tokenised: whether the log's text is tokenised; None guesses from its punctuation.

    Raises:
        ScoringError: the log or the reference does not allow it; see `read_generate_log`.
    """
    log = read_generate_log(logs)
    _check_words(logs, log)
    raw = None if reference is None else _read_reference(reference, log)
    if log.references is None and raw is None:
        raise ScoringError(f"{_names(logs)}: there are no references (T- lines) in the log; give them with --reference")
    assumed = tokenised is None
    if tokenised is None:
        tokenised = text.looks_tokenised(log.references or log.hypotheses)
    result = Evaluation(len(log.hypotheses), tokenised, assumed, target_lang)
    result.files = [_file(path) for path in [*logs, *([] if reference is None else [reference])]]
    _add_tokenised(result, log, raw)
    _add_sacrebleu(result, log, raw)
    return result


def _add_tokenised(result: Evaluation, log: GenerateLog, raw: Optional[_Reference]) -> None:
    hypotheses, references = log.hypotheses, log.references
    source = "the log's T- lines"
    moses = f"Moses-tokenised for {result.target_lang} by sacremoses {importlib.metadata.version('sacremoses')}"
    if result.tokenised:
        how = "tokens as in the log"
        if references is None and raw is not None:
            tokenise = text.moses_tokeniser(result.target_lang, escape=text.has_escapes(hypotheses))
            references, source = tokenise(raw.lines), f"{raw.name}, {moses}"
    else:
        how = moses
        if references is None and raw is not None:
            references, source = raw.lines, raw.name
        tokenise = text.moses_tokeniser(result.target_lang)
        hypotheses, references = tokenise(hypotheses), tokenise(references or [])
    compared = f"{how}; references: {source}"
    result.scores.append((bleu.tokenised_bleu(hypotheses, references or []), compared))
    if result.target_lang == "de":
        note = "flatters German, to be compared with compound-split BLEU only"
        result.scores.append((bleu.compound_split_bleu(hypotheses, references or []), f"{compared}; {note}"))
    else:
        result.remarks.append(f"no compound-split BLEU: it is defined for German, not for {result.target_lang}")


def _add_sacrebleu(result: Evaluation, log: GenerateLog, raw: Optional[_Reference]) -> None:
    if raw is None and result.tokenised:
        result.remarks.append(
            "no sacreBLEU: the log's text is tokenised and sacreBLEU is for raw text; "
            "give the raw references with --reference"
        )
        return
    if raw is None:
        note = "the log's T- lines (subword models may normalise them: --reference is better)"
        raw = _Reference(log.references or [], note)
    how = "detokenised by sacremoses" if result.tokenised else "raw text"
    score, rows = score_raw(log.hypotheses, raw.lines, result.target_lang, result.tokenised)
    result.scores.append((score, f"{how}; references: {raw.name}"))
    result.sentence_statistics = {
        "metric": score.metric,
        "references_sha256": hashlib.sha256("".join(f"{line}\n" for line in raw.lines).encode()).hexdigest(),
        "rows": rows,
    }


def _check_words(logs: Sequence[PathLike], log: GenerateLog) -> None:
    marker = text.subword_marker(log.hypotheses)
    if marker:
        flag = "--remove-bpe" if marker == "@@" else "--remove-bpe sentencepiece"
        raise ScoringError(
            f"{_names(logs)}: the hypotheses are still in subword units (marker {marker}), BLEU needs words; "
            f"run fairseq-generate with {flag}"
        )


def _read_reference(path: PathLike, log: GenerateLog) -> _Reference:
    name = os.fspath(path)
    lines = read_references(path)
    check_number(lines, log.hypotheses, name)
    if log.references is not None:
        overlap = text.word_overlap(lines, log.references)
        if overlap < _SAME_TEXT:
            raise ScoringError(
                f"{name} has other sentences than the log's references (T- lines; {100 * overlap:.0f} % of the words "
                "in common): another test set or another order"
            )
    return _Reference(lines, os.path.basename(name))


def _names(paths: Sequence[PathLike]) -> str:
    return ", ".join(os.fspath(path) for path in paths)


def _file(path: PathLike) -> Dict[str, str]:
    with open(path, "rb") as stream:
        return {"file": os.path.basename(os.fspath(path)), "sha256": hashlib.sha256(stream.read()).hexdigest()}

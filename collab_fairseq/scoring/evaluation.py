"""Score a generate log or plain text by every metric that the text and an optional raw reference allow."""

import hashlib
import importlib.metadata
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from collab_fairseq.scoring import bleu, text
from collab_fairseq.scoring.comet import comet as comet_score
from collab_fairseq.scoring.generate_log import GenerateLog, read_translations
from collab_fairseq.scoring.references import PathLike, check_number, check_references, read_lines, score_raw
from collab_fairseq.scoring.sufficient_statistics import other_statistics
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256

# two texts with less overlap are different test sets; different sentences have about 0.1 of their words in common
_SAME_TEXT = 0.5


@dataclass
class Evaluation:
    """Scores of one test set and how they were computed; `dataclasses.asdict` makes plain data of it for a record.

    Attributes:
        sentences: number of hypotheses.
        tokenised: whether the log's text is tokenised.
        tokenised_assumed: whether that was guessed from the text.
        remarks: scores that were left out, and why.
        files: name and SHA-256 of every file that was read.
        sentence_statistics: for intervals, if there is a sacreBLEU: `rows`, metric → statistics of it, of chrF++, TER
            and COMET (see `sufficient_statistics`), and `references_sha256` of the references, one per line.
    """

    sentences: int
    tokenised: bool
    tokenised_assumed: bool
    target_lang: str
    scores: List[bleu.Score] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    files: List[Dict[str, str]] = field(default_factory=list)
    sentence_statistics: Optional[Dict[str, Any]] = None


def evaluate(
    logs: Sequence[PathLike],
    reference: Optional[PathLike] = None,
    target_lang: Optional[str] = None,
    tokenised: Optional[bool] = None,
    source: Optional[PathLike] = None,
    comet: Optional[str] = None,
) -> Evaluation:
    """Score the translations of one test set.

    Tokenised and compound-split BLEU compare the hypotheses with the log's own references (`T-` lines), or with
    `reference` where the log has none. Raw text is Moses-tokenised first, both sides alike. sacreBLEU, chrF, chrF++ and
    TER compare raw text with `reference`; tokenised hypotheses are detokenised for them, and without it they are left
    out.

    Args:
        logs: the log of fairseq-generate, or its shards, or one file of plain text with a translation a line.
        reference: raw text, line i for id i.
        target_lang: language code for Moses; the compound split is for "de" only. None: that of the log, else the
            ending of the reference's name.
        tokenised: whether the log's text is tokenised; None guesses from its punctuation.
        comet: also score with this model of COMET, see `comet.comet`, which reads `source`, raw text as well.

    Raises:
        UserError: the log or the reference does not allow it; see `read_translations`.
    """
    log, names = read_translations(logs), ", ".join(os.fspath(path) for path in logs)
    marker = text.subword_marker(log.hypotheses)
    if marker:
        flag = "--remove-bpe" if marker == "@@" else "--remove-bpe sentencepiece"
        raise UserError(
            f"{names}: the hypotheses are still in subword units (marker {marker}), BLEU needs words; "
            f"run fairseq-generate with {flag}"
        )
    raw = None if reference is None else _read_reference(reference, log)
    if log.references is None and raw is None:
        raise UserError(f"{names}: there are no references (T- lines of a log); give them with --reference")
    language = target_lang or log.target_lang or _language_of(reference)
    if language is None:
        raise UserError(
            f"cannot infer the language of the translations from {names} or "
            f"{'a reference' if reference is None else os.fspath(reference)}: give it with --target-lang"
        )
    guess = text.looks_tokenised(log.references or log.hypotheses)
    result = Evaluation(len(log.hypotheses), guess if tokenised is None else tokenised, tokenised is None, language)
    files = [Path(path) for path in [*logs, *([] if reference is None else [reference])]]
    result.files = [{"file": path.name, "sha256": sha256(path)} for path in files]
    name = "" if reference is None else files[-1].name
    _add_tokenised(result, log, raw, name)
    hypotheses = _add_sacrebleu(result, log, raw, name)
    if comet is not None:
        if raw is None or source is None:
            raise UserError("COMET needs the raw --reference, and its --source")
        sources = read_lines(source, "the source")
        check_number(sources, hypotheses, os.fspath(source))
        score, rows = comet_score(hypotheses, raw, sources, comet)
        result.scores.append(replace(score, compared=f"raw text; references: {name}"))
        (result.sentence_statistics or {})["rows"][score.metric] = rows
    return result


def _language_of(reference: Optional[PathLike]) -> Optional[str]:
    """The ending of a file's name if it is a language of two letters, such as `test.de` or `test.pt_BR.gz`."""
    ending = "" if reference is None else Path(reference).name.removesuffix(".gz").rpartition(".")[2]
    return ending if re.fullmatch(r"[a-z]{2}([_-]\w+)?", ending) else None


def _add_tokenised(result: Evaluation, log: GenerateLog, raw: Optional[List[str]], source: str) -> None:
    language = result.target_lang
    moses = f"Moses-tokenised for {language} by sacremoses {importlib.metadata.version('sacremoses')}"
    hypotheses, references = log.hypotheses, log.references or raw or []
    if log.references is not None:
        source = "the log's T- lines"
    if not result.tokenised:
        how, tokenise = moses, text.moses_tokeniser(language)
        hypotheses, references = tokenise(hypotheses), tokenise(references)
    else:
        how = "tokens as in the log"
        if log.references is None:
            references = text.moses_tokeniser(language, escape=text.has_escapes(hypotheses))(references)
            source = f"{source}, {moses}"
    compared = f"{how}; references: {source}"
    result.scores.append(replace(bleu.tokenised_bleu(hypotheses, references), compared=compared))
    if language == "de":
        compared += "; flatters German, to be compared with compound-split BLEU only"
        result.scores.append(replace(bleu.compound_split_bleu(hypotheses, references), compared=compared))
    else:
        result.remarks.append(f"no compound-split BLEU: it is defined for German, not for {language}")


def _add_sacrebleu(result: Evaluation, log: GenerateLog, raw: Optional[List[str]], source: str) -> Sequence[str]:
    """Returns the hypotheses as raw text."""
    if raw is None and result.tokenised:
        result.remarks.append(
            "no sacreBLEU: the log's text is tokenised and sacreBLEU is for raw text; "
            "give the raw references with --reference"
        )
        return log.hypotheses
    if raw is None:
        raw = log.references or []
        source = "the log's T- lines (subword models may normalise them: --reference is better)"
    how = "detokenised by sacremoses" if result.tokenised else "raw text"
    score, rows, hypotheses = score_raw(log.hypotheses, raw, result.target_lang, result.tokenised, source)
    scores = [score, *bleu.other_metrics(hypotheses, raw)]
    result.scores += [replace(each, compared=f"{how}; references: {source}") for each in scores]
    if text.lower_cased(log.hypotheses, raw):
        result.remarks.append(
            "hardly a hypothesis has a capital letter, but most references have: TER alone ignores case"
        )
    digest = hashlib.sha256("".join(f"{line}\n" for line in raw).encode()).hexdigest()
    statistics = {score.metric: rows, **other_statistics(hypotheses, raw)}
    result.sentence_statistics = {"references_sha256": digest, "rows": statistics}
    return hypotheses


def _read_reference(path: PathLike, log: GenerateLog) -> List[str]:
    name = os.fspath(path)
    lines = read_lines(path)
    check_references(lines, log.hypotheses, name)
    if log.references is not None:
        overlap = text.word_overlap(lines, log.references)
        if overlap < _SAME_TEXT:
            raise UserError(
                f"{name} has other sentences than the log's references (T- lines; {100 * overlap:.0f} % of the words "
                "in common): another test set or another order"
            )
    return lines

"""Score a generate log or plain text with all metrics that the text and an optional raw reference allow."""

import hashlib
import importlib.metadata
import os
import re
import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from collab_fairseq.scoring import bleu, text
from collab_fairseq.scoring.comet import comet as comet_score
from collab_fairseq.scoring.generate_log import GenerateLog, read_translations
from collab_fairseq.scoring.references import (
    PathLike,
    check_aligned,
    check_number,
    check_references,
    read_lines,
    score_raw,
)
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256


@dataclass
class Evaluation:
    """Scores of one test set and how they were computed; records store `dataclasses.asdict` of it.

    Attributes:
        sentences: number of hypotheses.
        tokenised: whether the hypotheses are tokenised.
        tokenised_assumed: whether that was inferred from the text.
        remarks: omitted scores and the reasons; doubtful text.
        files: name and SHA-256 of every text that was read; the raw references are last.
        sentence_statistics: for intervals, if sacreBLEU was computed: `rows`, metric → statistics of sacreBLEU,
            chrF++, TER and COMET (see `sufficient_statistics`), and `references_sha256`, of one reference per line.
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

    Tokenised and compound-split BLEU compare the hypotheses with the log's references (`T-` lines), or with
    `reference` if the log has none. Raw text is first Moses-tokenised on both sides. sacreBLEU, chrF, chrF++ and
    TER compare raw text with `reference`. Tokenised hypotheses are detokenised for them; without a reference these
    metrics are omitted.

    Args:
        logs: the log of fairseq-generate, or its shards, or one plain-text file with one translation per line.
        reference: raw text; line i belongs to id i.
        target_lang: language code for Moses; only "de" has a compound split. None: that of the log, else the suffix of
            the reference's file name.
        tokenised: whether the hypotheses are tokenised; None infers it from the punctuation.
        source: raw source text for COMET.
        comet: a COMET model to score with, see `comet.comet`.

    Raises:
        UserError: a file cannot be read, the texts do not belong together, the hypotheses are subword units, or the
            tokeniser of the language is not installed.
    """
    log = read_translations(logs)
    names = ", ".join(os.fspath(path) for path in logs)
    marker = text.subword_marker(log.hypotheses)
    if marker:
        flags = {"@@": "--remove-bpe", "▁": "--remove-bpe sentencepiece", "##": "--remove-bpe ' ##'"}
        remedy = f"run fairseq-generate with {flags[marker]}" if marker in flags else "join them first"
        raise UserError(f"{names}: hypotheses must be words; got subword units (marker {marker}): {remedy}")
    raw = None if reference is None else _read_reference(reference, log)
    references = None if log.references is None else text.decode_marks(log.references, raw)
    log = log._replace(hypotheses=text.decode_marks(log.hypotheses, raw), references=references)
    if log.references is None and raw is None:
        raise UserError(f"{names}: no references (T- lines of a log): give them with --reference")
    sources: List[str] = []
    if comet is not None:
        if raw is None or source is None:
            raise UserError("COMET needs the raw --reference and --source")
        sources = read_lines(source, "the source")
        check_number(sources, log.hypotheses, os.fspath(source))
        if log.sources is not None:
            texts = text.decode_marks(log.sources, sources)
            check_aligned(sources, texts, os.fspath(source), "the log's sources (S- lines)")
    language = target_lang or log.target_lang or _language_of(reference)
    if language is None:
        reference_name = "a reference" if reference is None else os.fspath(reference)
        raise UserError(
            f"cannot infer the language of the translations from {names} or {reference_name}: "
            "give it with --target-lang"
        )
    if tokenised_assumed := tokenised is None:
        tokenised = text.looks_tokenised(log.references or log.hypotheses)
    inputs = (*logs, source if comet else None, reference)
    files = [Path(path) for path in inputs if path is not None]
    evaluation = Evaluation(len(log.hypotheses), bool(tokenised), tokenised_assumed, language)
    evaluation.files = [{"file": path.name, "sha256": sha256(path)} for path in files]
    name = "" if reference is None else files[-1].name
    _add_tokenised(evaluation, log, raw, name)
    hypotheses = _add_sacrebleu(evaluation, log, raw, name)
    if comet is not None:
        score, rows = comet_score(hypotheses, raw or [], sources, comet)
        evaluation.scores.append(replace(score, compared=f"raw text; references: {name}"))
        (evaluation.sentence_statistics or {})["rows"][score.metric] = rows
    return evaluation


def _language_of(reference: Optional[PathLike]) -> Optional[str]:
    """The suffix of a file name if it is a language of two letters, such as `test.de` or `test.pt_BR.gz`."""
    suffix = "" if reference is None else Path(reference).name.removesuffix(".gz").rpartition(".")[2]
    return suffix if re.fullmatch(r"[a-z]{2}([_-]([A-Z]{2}|[A-Z][a-z]{3}|\d{3}))?", suffix) else None  # not en-de


def _add_tokenised(evaluation: Evaluation, log: GenerateLog, raw: Optional[List[str]], name: str) -> None:
    """Add tokenised and compound-split BLEU; ``name`` is the file name of the raw references."""
    language = evaluation.target_lang
    moses = f"Moses-tokenised for {language} by sacremoses {importlib.metadata.version('sacremoses')}"
    hypotheses = log.hypotheses
    references = log.references or raw or []
    origin = name if log.references is None else "the log's T- lines"
    if not evaluation.tokenised:
        form = moses
        tokenise = text.moses_tokeniser(language)
        hypotheses, references = (tokenise(text.join_dashes(side, raw)) for side in (hypotheses, references))
    else:
        form = "tokens as in the log"
        if log.references is None:
            split = text.splits_dashes(hypotheses)
            tokenise = text.moses_tokeniser(language, text.has_escapes(hypotheses), split_dashes=split)
            references = tokenise(references)
            origin = f"{origin}, {moses}" + (", hyphenated words split (-a)" if split else "")
    compared = f"{form}; references: {origin}"
    evaluation.scores.append(replace(bleu.tokenised_bleu(hypotheses, references), compared=compared))
    if text.base_language(language) == "de":
        compared += "; comparable with other compound-split BLEU only"
        hypotheses, references = text.join_dashes(hypotheses), text.join_dashes(references)
        evaluation.scores.append(replace(bleu.compound_split_bleu(hypotheses, references), compared=compared))
    else:
        evaluation.remarks.append(f"no compound-split BLEU: it is defined for German, not for {language}")


def _add_sacrebleu(evaluation: Evaluation, log: GenerateLog, raw: Optional[List[str]], name: str) -> Sequence[str]:
    """Add the metrics of raw text; return the hypotheses as raw text."""
    if raw is None and evaluation.tokenised:
        evaluation.remarks.append(
            "no sacreBLEU: it needs raw text, but the log's text is tokenised: give raw references with --reference"
        )
        return log.hypotheses
    if raw is None:
        hypotheses, raw = text.mark_unknown(log.hypotheses, log.references or [])
        log = log._replace(hypotheses=hypotheses)
        name = "the log's T- lines (subword models may normalise them: --reference is better)"
    form = "detokenised by sacremoses" if evaluation.tokenised else "raw text"
    score, rows, hypotheses = score_raw(log.hypotheses, raw, evaluation.target_lang, evaluation.tokenised, name)
    others, other_rows = bleu.other_metrics(hypotheses, raw)
    evaluation.scores += [replace(each, compared=f"{form}; references: {name}") for each in (score, *others)]
    if text.looks_tokenised(raw):
        evaluation.remarks.append(
            f"{name} must be raw text for sacreBLEU, chrF, chrF++ and TER; got text that looks tokenised"
        )
    if any(
        unicodedata.is_normalized("NFC", line) < unicodedata.is_normalized("NFC", hypothesis)
        for line, hypothesis in zip(raw, hypotheses, strict=True)
    ):
        evaluation.remarks.append(f"{name} is not in Unicode NFC, the hypotheses are: equal letters count as different")
    if text.lower_cased(log.hypotheses, raw):
        evaluation.remarks.append(
            "hardly any hypothesis has a capital letter, but most references do: only TER ignores case"
        )
    digest = hashlib.sha256("".join(f"{line}\n" for line in raw).encode()).hexdigest()
    statistics = {score.metric: rows, **other_rows}
    evaluation.sentence_statistics = {"references_sha256": digest, "rows": statistics}
    return hypotheses


def _read_reference(path: PathLike, log: GenerateLog) -> List[str]:
    name = os.fspath(path)
    lines = read_lines(path)
    check_references(lines, log.hypotheses, name)
    if log.references is not None:
        check_aligned(lines, text.decode_marks(log.references, lines), name, "the log's references (T- lines)")
    return lines

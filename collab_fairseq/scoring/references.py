"""Hypotheses against raw references: the only way in which this project scores text."""

import codecs
import gzip
import io
import os
import zlib
from typing import List, NamedTuple, Optional, Sequence, Sized

from collab_fairseq.scoring import bleu, text
from collab_fairseq.scoring.sufficient_statistics import bleu_statistics
from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike

#: a gzipped file is unpacked to at most this many times its size, or to this many bytes, whichever is more
_MOST_TIMES, _LEAST_LIMIT = 20, 1 << 30


class RawScore(NamedTuple):
    """sacreBLEU, its `bleu_statistics` for the paired bootstrap, and the hypotheses as raw text."""

    bleu: bleu.Score
    statistics: str
    hypotheses: List[str]


def read_content(path: PathLike, what: str) -> bytes:
    """A file's bytes, decompressed if gzipped; errors call them ``what``."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if content.startswith(b"\x1f\x8b"):
            most = max(_LEAST_LIMIT, _MOST_TIMES * len(content))
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
            if len(content) > most:
                raise UserError(f"{what} {os.fspath(path)} must unpack to at most {most:,} bytes, but are larger")
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {what} {os.fspath(path)}: {why}") from error
    return content.removeprefix(codecs.BOM_UTF8)


def read_lines(path: PathLike, what: str = "the references") -> List[str]:
    """Texts, one per line; the file may be gzipped. Errors call them ``what``.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        # only "\n" ends a line: sentences may hold other characters that str.splitlines() would split at
        content = read_content(path, what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {os.fspath(path)} are not UTF-8 text ({error.reason})") from error
    return [line.rstrip("\r") for line in content.removesuffix("\n").split("\n")] if content else []


def check_number(references: Sized, hypotheses: Sized, name: str) -> None:
    """Raise UserError unless there is a reference for every hypothesis; the error calls them ``name``."""
    if len(references) != len(hypotheses):
        raise UserError(
            f"{name} has {len(references)} lines, expected {len(hypotheses)}, one for each hypothesis: "
            "these are not the references of this test set"
        )


def check_references(references: Sequence[str], hypotheses: Sequence[str], name: str) -> None:
    """Check that references are raw text, one line for each hypothesis.

    Args:
        name: of the references, in errors.

    Raises:
        UserError: another number of lines, subword units, or lower-cased although the hypotheses are not.
    """
    check_number(references, hypotheses, name)
    marker = text.subword_marker(references)
    if marker:
        raise UserError(f"{name} is in subword units (marker {marker}), expected raw text: the corpus as it came")
    if text.lower_cased(references, hypotheses):
        raise UserError(
            f"{name} has hardly a capital letter, but most hypotheses have: it is lower-cased, expected raw text, as "
            "the corpus came"
        )


def score_raw(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target_lang: Optional[str] = None,
    tokenised: Optional[bool] = None,
    name: str = "the reference",
) -> RawScore:
    """sacreBLEU of hypotheses against raw references.

    Args:
        target_lang: language code for sacreBLEU and for Moses, which takes English without one.
        tokenised: whether the hypotheses are, and are detokenised first; None guesses from their punctuation.
        name: of the references, in errors.

    Raises:
        UserError: see `check_references`.
    """
    check_references(references, hypotheses, name)
    if text.looks_tokenised(hypotheses) if tokenised is None else tokenised:
        hypotheses = text.moses_detokenise(hypotheses, target_lang or "en")
    statistics = bleu_statistics(hypotheses, references, target_lang)
    return RawScore(bleu.sacrebleu(hypotheses, references, target_lang), statistics, list(hypotheses))

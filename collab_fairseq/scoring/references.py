"""Reading of text files, checks of references, and sacreBLEU against raw references."""

import codecs
import gzip
import os
import zlib
from typing import List, NamedTuple, Optional, Sequence, Sized

from collab_fairseq.scoring import bleu, text
from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike

#: number of bytes that show the encoding
_START = 4096
#: UTF-32 before UTF-16, whose mark it begins with
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class RawScore(NamedTuple):
    """sacreBLEU, its sentence statistics, and the hypotheses as raw text."""

    bleu: bleu.Score
    statistics: str
    hypotheses: List[str]


def check_encoding(start: bytes, name: str) -> None:
    """Raise UserError if a text starts like UTF-16 or UTF-32, parts of which are valid UTF-8; ``name`` names it."""
    encoding = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
    if encoding is None and b"\0" in start:
        encoding = "zero bytes, as in UTF-16"
    if encoding is not None:
        raise UserError(f"{name} must be UTF-8 text; got {encoding}: convert it with iconv")


def read_content(path: PathLike, what: str) -> bytes:
    """The bytes of a UTF-8 text, decompressed if gzipped; ``what`` names its content in errors."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(f"{what} {os.fspath(path)} must be a regular file (it is read twice); got a pipe or device")
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {what} {os.fspath(path)}: {reason}") from error
    check_encoding(content[:_START], f"{what} {os.fspath(path)}")
    return content.removeprefix(codecs.BOM_UTF8)


def read_lines(path: PathLike, what: str = "the references") -> List[str]:
    """The lines of a UTF-8 text file, which may be gzipped; ``what`` names its content in errors."""
    data = read_content(path, what)
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        name, line = f"{what} {os.fspath(path)}", data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name} must be UTF-8 text; got other bytes in line {line}: convert it with iconv") from error
    if not content:
        return []
    # only "\n" ends a line: str.splitlines() would split at other characters that sentences may contain
    return [line.rstrip("\r") for line in content.removesuffix("\n").split("\n")]


def check_number(lines: Sized, hypotheses: Sized, name: str) -> None:
    """Raise UserError unless there is one line (a reference or a source) per hypothesis; ``name`` names the lines."""
    if len(lines) != len(hypotheses):
        raise UserError(
            f"{name} must have {len(hypotheses)} lines, one per hypothesis; got {len(lines)}: lines are missing, "
            "or it belongs to a different test set"
        )


def check_references(references: Sequence[str], hypotheses: Sequence[str], name: str) -> None:
    """Check that references are raw text with one line per hypothesis; ``name`` names them in errors."""
    check_number(references, hypotheses, name)
    marker = text.subword_marker(references)
    if marker:
        raise UserError(f"{name} must be raw text; got subword units (marker {marker})")
    if text.lower_cased(references, hypotheses):
        raise UserError(f"{name} must be raw text; got lower-cased text, although the hypotheses have capitals")


def check_aligned(lines: Sequence[str], texts: Sequence[str], name: str, origin: str) -> None:
    """Raise UserError unless each line has the sentence of its text; ``name`` and ``origin`` name both in errors."""
    number = text.first_misaligned(texts, lines)
    if number is not None:
        raise UserError(
            f"{name} must have the sentences of {origin}; got {lines[number][:80]!r} in line {number + 1} for "
            f"{texts[number][:80]!r}: a different test set or a different order"
        )


def score_raw(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target_lang: Optional[str] = None,
    tokenised: Optional[bool] = None,
    name: str = "the reference",
) -> RawScore:
    """sacreBLEU of hypotheses against raw references, after :func:`.text.decode_marks`.

    Args:
        target_lang: language code for sacreBLEU and Moses (default of Moses: English).
        tokenised: whether to detokenise the hypotheses first; None infers it from their punctuation.
        name: of the references, in errors.
    """
    check_references(references, hypotheses, name)
    if tokenised is None:
        tokenised = text.looks_tokenised(hypotheses)
    hypotheses = text.decode_marks(hypotheses, references)
    if tokenised:
        hypotheses = text.moses_detokenise(hypotheses, target_lang or "en")
    else:
        hypotheses = text.join_dashes(hypotheses, references)
    score, statistics = bleu.sacrebleu(hypotheses, references, target_lang)
    return RawScore(score, statistics, list(hypotheses))

"""Hypotheses against raw references, the one way in which this project scores text of its own."""

import os
from typing import List, NamedTuple, Optional, Sequence, Sized, Union

from collab_fairseq.scoring import bleu, text

PathLike = Union[str, "os.PathLike[str]"]


class ScoringError(ValueError):
    """A log or a reference cannot be scored. The message is one sentence: the file, what is wrong, what is expected."""

    user_error = True  # shown to users without a traceback


class RawScore(NamedTuple):
    """sacreBLEU, chrF, and for the paired bootstrap `bleu.sentence_statistics` in one string."""

    bleu: bleu.Score
    chrf: bleu.Score
    statistics: str


def read_references(path: PathLike) -> List[str]:
    """Raw references, one a line.

    Raises:
        ScoringError: the file cannot be read, or is not UTF-8.
    """
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as stream:
            content = stream.read()
    except OSError as error:
        raise ScoringError(f"cannot read the references {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScoringError(f"the references {name} are not UTF-8 text ({error.reason})") from error
    return [line.rstrip("\r") for line in content.removesuffix("\n").split("\n")] if content else []


def check_number(references: Sequence[str], hypotheses: Sized, name: str) -> None:
    """Raise ScoringError unless there is a reference for every hypothesis; ``name`` is what the error calls them."""
    if len(references) != len(hypotheses):
        raise ScoringError(
            f"{name} has {len(references)} lines, expected {len(hypotheses)}, one for each hypothesis: "
            "these are not the references of this test set"
        )


def score_raw(
    hypotheses: Sequence[str],
    references: Union[PathLike, Sequence[str]],
    target_lang: Optional[str] = None,
    tokenised: Optional[bool] = None,
    name: str = "the reference",
) -> RawScore:
    """sacreBLEU and chrF of hypotheses against raw references, a file or its lines.

    Args:
        target_lang: language code for sacreBLEU and for Moses, which takes English without one.
        tokenised: whether the hypotheses are, and are detokenised first; None guesses from their punctuation.
        name: what errors call references that are no file.

    Raises:
        ScoringError: the file cannot be read, or another number of lines.
    """
    named = isinstance(references, (str, os.PathLike))
    lines = read_references(references) if named else list(references)  # type: ignore[arg-type]
    check_number(lines, hypotheses, os.fspath(references) if named else name)  # type: ignore[arg-type]
    if text.looks_tokenised(hypotheses) if tokenised is None else tokenised:
        hypotheses = text.moses_detokenise(hypotheses, target_lang or "en")
    rows = bleu.sentence_statistics(hypotheses, lines, target_lang)
    statistics = "; ".join(" ".join(map(str, row)) for row in rows)
    return RawScore(bleu.sacrebleu(hypotheses, lines, target_lang), bleu.chrf(hypotheses, lines), statistics)

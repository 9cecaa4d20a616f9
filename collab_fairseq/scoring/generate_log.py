"""Read the output of fairseq-generate and fairseq-interactive.

Of interest are the lines `S-id<tab>source`, `T-id<tab>reference`, `H-id<tab>score<tab>hypothesis` and
`D-id<tab>score<tab>hypothesis`, the last after fairseq's own detokenisation. They may come in any order, from several
files (shards), between other log lines.
"""

import codecs
import os
import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

from collab_fairseq.scoring.errors import ScoringError

PathLike = Union[str, "os.PathLike[str]"]

_LINE = re.compile(rb"([STHD])-(\d+)\t")


@dataclass
class GenerateLog:
    """Translations in the order of their ids.

    Attributes:
        hypotheses: the best hypothesis of each sentence, `D-` lines where there are any, else `H-` lines.
        references: the `T-` lines; None where the log has none (fairseq-interactive, test sets without a target side).
        kind: "D" or "H", the lines that the hypotheses were taken from.
    """

    hypotheses: List[str]
    references: Optional[List[str]]
    kind: str


@dataclass
class _Sentence:
    plain: Dict[str, List[str]] = field(default_factory=lambda: {"S": [], "T": []})
    scored: Dict[str, List[Tuple[float, str]]] = field(default_factory=lambda: {"H": [], "D": []})


def read_generate_log(paths: Sequence[PathLike]) -> GenerateLog:
    """Parse one log, or the shards of one.

    Raises:
        ScoringError: a file cannot be read; there are no hypotheses; ids are missing; an id was translated twice with
            different results, as in the logs of two test sets or models put together; a line is cut off or not UTF-8.
    """
    sentences: Dict[int, _Sentence] = {}
    for path in paths:
        _read(os.fspath(path), sentences)
    where = ", ".join(os.fspath(path) for path in paths)
    kind = "D" if any(sentence.scored["D"] for sentence in sentences.values()) else "H"
    if not any(sentence.scored[kind] for sentence in sentences.values()):
        raise ScoringError(
            f"{where}: no hypotheses, expected the output of fairseq-generate with lines H-0, D-0, ... "
            "(was it run with --quiet?)"
        )
    _require_all(where, f"{kind}- lines", [n for n, s in sentences.items() if s.scored[kind]], sentences)
    has_references = any(sentence.plain["T"] for sentence in sentences.values())
    if has_references:
        _require_all(where, "T- lines", [n for n, s in sentences.items() if s.plain["T"]], sentences)
    ordered = sorted(sentences.items())
    for number, sentence in ordered:
        _check_one_translation(where, number, sentence, kind)
    return GenerateLog(
        hypotheses=[max(sentence.scored[kind], key=lambda pair: pair[0])[1] for _, sentence in ordered],
        references=[sentence.plain["T"][0] for _, sentence in ordered] if has_references else None,
        kind=kind,
    )


def _read(path: str, sentences: Dict[int, _Sentence]) -> None:
    try:
        with open(path, "rb") as stream:
            content = stream.read().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ScoringError(f"cannot read the log {path}: {error.strerror}") from error
    # only "\n" ends a line: sentences may hold other characters that str.splitlines() would split at
    for line_number, raw in enumerate(content.split(b"\n"), start=1):
        match = _LINE.match(raw)
        if not match:
            continue
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ScoringError(f"{path}, line {line_number}: not UTF-8 ({error.reason})") from error
        kind, number = match.group(1).decode(), int(match.group(2))
        sentence = sentences.setdefault(number, _Sentence())
        if kind in "ST":
            sentence.plain[kind].append(line.split("\t", 1)[1])
            continue
        fields = line.split("\t", 2)
        try:
            sentence.scored[kind].append((float(fields[1]), fields[2]))
        except (ValueError, IndexError):
            raise ScoringError(
                f"{path}, line {line_number}: expected `{kind}-{number}<tab>score<tab>text`, got {line[:80]!r}"
            ) from None


def _require_all(where: str, what: str, present: List[int], sentences: Iterable[int]) -> None:
    missing = sorted(set(range(max(sentences) + 1)) - set(present))
    if missing:
        shown = ", ".join(str(number) for number in missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ScoringError(
            f"{where}: {len(missing)} of {len(missing) + len(present)} sentences have no {what} (ids {shown}); "
            "the log is incomplete, or further shards of it must be given too"
        )


def _check_one_translation(where: str, number: int, sentence: _Sentence, kind: str) -> None:
    for letter, texts in sentence.plain.items():
        if len(set(texts)) > 1:
            raise ScoringError(
                f"{where}: id {number} has two different {letter}- lines, {texts[0][:60]!r} and "
                f"{next(t for t in texts if t != texts[0])[:60]!r}; give the logs of one test set only"
            )
    # n-best lists repeat H- and D- lines, but S- and T- lines appear once per translation of the sentence
    times = max(1, len(sentence.plain["S"]), len(sentence.plain["T"]))
    hypotheses = sentence.scored[kind]
    if times > 1 and len(set(hypotheses)) * times != len(hypotheses):
        raise ScoringError(
            f"{where}: id {number} was translated {times} times with different results; give the log of one run only"
        )

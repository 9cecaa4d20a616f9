"""Output of fairseq-generate and fairseq-interactive.

Lines are `S-id<tab>source`, `T-id<tab>reference`, `H-id<tab>score<tab>hypothesis` and
`D-id<tab>score<tab>hypothesis`, the last after fairseq's own detokenisation; `P-id` has the scores of the tokens. They
may come in any order, from several files (shards), and between other log lines.
"""

import os
import re
from collections import defaultdict
from typing import Any, DefaultDict, Dict, List, NamedTuple, Optional, Sequence, Set

from collab_fairseq.scoring.references import PathLike, read_content, read_lines
from fairseq_modern.errors import UserError

_LINE = re.compile(rb"([STHDP])-(\d+)\t")
#: lines that occur in logs but not in plain text
_LOG = re.compile(rb"^([STHDP]-\d+\t|Generate .* with beam=|.* \| INFO \| fairseq)", re.MULTILINE)
#: the target language among the logged settings; the logged dictionaries, source before target
_TARGET, _DICTIONARY = re.compile(rb"'target_lang': '([^']+)'"), re.compile(rb"\| \[([\w-]+)\] dictionary: \d+ types")
#: letter → lines of one sentence: text, or for H and D (score, text)
_Sentence = Dict[str, List[Any]]


class GenerateLog(NamedTuple):
    """Translations in the order of their ids.

    Attributes:
        hypotheses: the best hypothesis of each sentence, from `D-` lines if there are any, else from `H-` lines.
        references: the `T-` lines; None if there are none (fairseq-interactive, test sets without a target side).
        target_lang: None unless fairseq's messages are part of the log (`2>&1`).
        sources: the `S-` lines; None unless all sentences have one.
    """

    hypotheses: List[str]
    references: Optional[List[str]]
    target_lang: Optional[str] = None
    sources: Optional[List[str]] = None


def read_translations(paths: Sequence[PathLike]) -> GenerateLog:
    """Read a log, its shards, or plain text with one translation per line; files may be gzipped.

    Raises:
        UserError: a file cannot be read; no hypotheses; missing ids; different translations of one id, as in
            concatenated logs of two test sets or models; a truncated line or log; text that is not UTF-8; several
            files of plain text.
    """
    contents = {os.fspath(path): read_content(path, "the translations") for path in paths}
    names = ", ".join(contents)
    plain = [name for name, content in contents.items() if content.strip() and not _LOG.search(content)]
    if plain and len(contents) > 1:
        raise UserError(
            f"several files must be shards of one log of fairseq-generate; got plain text in {plain[0]}: "
            "plain text must be in one file; give another system with --baseline"
        )
    if plain:
        return GenerateLog(read_lines(plain[0], "the translations"), None)
    sentences: DefaultDict[int, _Sentence] = defaultdict(lambda: {letter: [] for letter in "STHDP"})
    languages = {language for name, content in contents.items() for language in _read(name, content, sentences)}
    present = {letter: [n for n, sentence in sentences.items() if sentence[letter]] for letter in "THDP"}
    kind = "D" if present["D"] else "H"
    if not present[kind]:
        raise UserError(
            f"{names}: no hypotheses; expected the output of fairseq-generate with lines H-0, D-0, ... "
            "(was it run with --quiet?)"
        )
    # P- lines come last: without one, the D- line before it may be cut
    for letter in (kind, *(letter for letter in "TP" if present[letter])):
        missing = sorted(set(range(max(sentences) + 1)) - set(present[letter]))
        if missing:
            shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise UserError(
                f"{names}: {len(missing)} of {max(sentences) + 1} sentences have no {letter}- lines (ids {shown}); "
                "the log is incomplete, or other shards are missing"
            )
    ordered = sorted(sentences.items())
    for number, sentence in ordered:
        _check_one_translation(f"{names}: id {number}", sentence, kind)
    return GenerateLog(
        hypotheses=[max(sentence[kind], key=lambda pair: pair[0])[1] for _, sentence in ordered],
        references=[sentence["T"][0] for _, sentence in ordered] if present["T"] else None,
        target_lang=languages.pop() if len(languages) == 1 else None,
        sources=[sentence["S"][0] for _, sentence in ordered]
        if all(sentence["S"] for _, sentence in ordered)
        else None,
    )


def _read(name: str, content: bytes, sentences: DefaultDict[int, _Sentence]) -> Set[str]:
    """Add the lines of a log to the sentences; return the target languages in it."""
    languages: List[bytes] = []
    dictionaries: List[bytes] = []
    last_line = content[content.rfind(b"\n") + 1 :]
    if _LINE.match(last_line):
        raise UserError(
            f"{name}: the last line must have a line end; got {last_line[:80].decode(errors='replace')!r}: the log was "
            "cut there"
        )
    # only "\n" ends a line: str.splitlines() would split at other characters that sentences may contain
    for line_number, raw in enumerate(content.split(b"\n"), start=1):
        match = _LINE.match(raw)
        if not match:
            languages += _TARGET.findall(raw)
            dictionaries += _DICTIONARY.findall(raw)
            continue
        letter, number = match.group(1).decode(), int(match.group(2))
        if letter == "P":
            sentences[number][letter].append(None)
            continue
        try:
            text = raw[match.end() :].decode("utf-8")
            if letter in "HD":
                score, text = text.split("\t", 1)
                sentences[number][letter].append((float(score), text))
            else:
                sentences[number][letter].append(text)
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {line_number}: must be UTF-8 ({error.reason})") from error
        except ValueError:
            raise UserError(
                f"{name}, line {line_number}: must be `{letter}-{number}<tab>score<tab>text`; got {raw.decode()[:80]!r}"
            ) from None
    if not languages and len(dictionaries) == 2:
        languages = dictionaries[1:]
    return {language.decode() for language in languages}


def _check_one_translation(where: str, sentence: _Sentence, kind: str) -> None:
    for letter in "ST":
        texts = sentence[letter]
        other = next((text for text in texts if text != texts[0]), None)
        if other is not None:
            raise UserError(
                f"{where} has two different {letter}- lines, {texts[0][:60]!r} and {other[:60]!r}; "
                "give the logs of one test set only"
            )
    # n-best lists repeat H- and D- lines, but S- and T- lines appear once per translation of the sentence
    times = max(1, len(sentence["S"]), len(sentence["T"]))
    hypotheses = sentence[kind]
    if times > 1 and len(set(hypotheses)) * times != len(hypotheses):
        raise UserError(f"{where} was translated {times} times with different results; give the log of one run only")

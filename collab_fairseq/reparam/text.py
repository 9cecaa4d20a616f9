"""What calibration text may be given as: a split of the data-bin, or text files."""

import os
from typing import Any, Dict, List, NamedTuple

from collab_fairseq import translation
from collab_fairseq.translation import TrainedModel, TranslationError

_SENTENCES = 400
_NAME = "calibration"


class Text(NamedTuple):
    """Text in the model's units.

    Attributes:
        split: its name for :func:`collab_fairseq.translation.batches`.
        sentences: how many of its first sentences are meant.
        description: for people.
    """

    split: str
    sentences: int
    description: str

    def setting(self) -> Dict[str, Any]:
        """What a record says of it."""
        return {"text": self.description, "sentences": self.sentences}


def text_of(flag: str, trained: TrainedModel, max_tokens: int) -> Text:
    """Find or read the text; sources without a translation are translated by the model.

    Raises:
        TranslationError: no such file or split, or files of different lengths.
    """
    files = flag.split(",")
    if len(files) > 2:
        raise TranslationError(f"--calibration must be SPLIT:N, SOURCE,TARGET or SOURCE, but is {flag!r}")
    if len(files) == 1 and not os.path.isfile(flag):
        split, _, number = flag.partition(":")
        there = translation.splits(trained)
        if split not in there:
            raise TranslationError(
                f"--calibration {flag}: there is no file of that name, and the data-bin has no split {split!r}; "
                f"it has {', '.join(there) or 'none'}"
            )
        if number and not (number.isdigit() and int(number) > 0):
            raise TranslationError(f"--calibration {flag}: the number of sentences must be at least 1")
        found = int(number) if number else _SENTENCES
        return Text(split, found, f"the first {found} sentences of {split}")
    lines = [_lines(file) for file in files]
    description = " and ".join(os.path.basename(file) for file in files)
    if len(files) == 1:
        translation.add_text(trained, f"{_NAME} source", lines[0])
        search: Dict[str, Any] = {"beam": 1, "max_tokens": max_tokens, "remove_bpe": None, "unkpen": float("inf")}
        lines.append(translation.translate(trained, f"{_NAME} source", **search))
        description += " and its translation by the model"
    translation.add_text(trained, _NAME, lines[0], lines[1])
    return Text(_NAME, len(lines[0]), f"{len(lines[0])} sentences, {description}")


def _lines(file: str) -> List[str]:
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as stream:
            content = stream.read()
    except UnicodeDecodeError as error:
        raise TranslationError(f"--calibration: {file} is not UTF-8 text ({error.reason})") from error
    return content.removesuffix("\n").split("\n") if content else []

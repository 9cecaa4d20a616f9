"""Text to text with an exported model: batches of like length, the order of the lines, what cannot be translated."""

import importlib
import itertools
import sys
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from .tokenizer import Card, PathLike, Tokenizer, TranslationError, read_card

#: tokens of a batch, padding included
MAX_TOKENS = 4000
#: what a folder may be made for → the class that computes it, in a file of its own
_ENGINES = {"torch": "TorchEngine", "ctranslate2": "CTranslate2Engine"}


class Search(NamedTuple):
    """How translations are looked for.

    Attributes:
        beam: hypotheses kept at every step. nbest: of them, so many are returned, best first.
        lenpen: the log-probability of a hypothesis is divided by its length, </s> included, to this power.
        max_length: tokens of the longest translation, at most what the decoder has positions for.
        scores: exact; without, an engine that would compute them again says what its search has found.
    """

    beam: int = 5
    nbest: int = 1
    lenpen: float = 1.0
    max_length: int = 200
    scores: bool = True


class Hypothesis(NamedTuple):
    """What an engine finds: tokens without </s>, and the score as in :class:`Translation`."""

    tokens: List[str]
    score: float


class Engine(Protocol):
    """Computes translations of tokens. Engines are made with the arguments of :func:`collab_fairseq.load`.

    A damaged folder, a precision or device that it cannot compute in, a package that is missing: TranslationError.
    """

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """The best hypotheses of each sentence of a batch, which is not empty and has no empty sentence."""


class Translation(NamedTuple):
    """A translation and how it came about.

    Attributes:
        text: raw text.
        score: log-probability, base 2, divided by (length with </s>) ** lenpen: fairseq-generate's.
        source, target: tokens of both sides.
    """

    text: str
    score: float = 0.0
    source: Sequence[str] = ()
    target: Sequence[str] = ()


class Translator:
    """A trained model that translates raw text (:func:`collab_fairseq.load`).

    Args:
        engine: what computes. tokenizer: text to tokens and back. card: of the model's folder.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, card: Card) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.card = card

    def translate(self, sentences: Sequence[str], *, progress: Optional[bool] = None, **search: object) -> List[str]:
        """The best translation of every sentence, in order; an empty sentence stays empty.

        Args:
            sentences: raw text, a line break counting as a blank.
            progress: show it; default: on a terminal, of a hundred sentences or more.
            search: fields of :class:`Search`, such as ``beam=4``.

        Raises:
            TranslationError: a sentence longer than the model's positions; nothing is translated then.
        """
        return [found[0].text for found in self.search(sentences, progress=progress, **{"scores": False, **search})]

    def search(
        self, sentences: Sequence[str], *, progress: Optional[bool] = None, **search: object
    ) -> List[List[Translation]]:
        """The best translations of every sentence with their scores, best first; for the arguments see `translate`."""
        if isinstance(sentences, str):
            raise TranslationError("expected a list of sentences, got one string: put it into a list")
        how = self._how(search)
        for number, line in enumerate(sentences, start=1):
            if not isinstance(line, str):
                raise TranslationError(f"sentence {number} must be a string, but is {line!r}")
        split = [self._split(line) for line in sentences]
        for number, tokens in enumerate(split, start=1):
            if self._too_long(tokens):
                raise TranslationError(f"sentence {number}: {self._too_long(tokens)}")
        if progress is None:
            progress = len(split) >= 100 and sys.stderr.isatty()
        from tqdm import tqdm

        with tqdm(total=len(split), unit="sentence", disable=not progress) as bar:
            return self._translate(split, how, bar.update)

    def stream(
        self, lines: Iterable[str], refuse: Callable[[int, str], None], *, buffer: int = 256, **search: object
    ) -> Iterator[List[List[Translation]]]:
        """The best translations of a text of any length, a buffer at a time, in order.

        Args:
            lines: raw text.
            refuse: told the number, from 1, of each line that is too long, and why; its translation is empty.
            buffer: lines that are read, sorted by length and translated together.
            search: fields of :class:`Search`.
        """
        how, done, source = self._how(search), 0, iter(lines)
        while chunk := list(itertools.islice(source, buffer)):
            split = [self._split(line) for line in chunk]
            for number, tokens in enumerate(split):
                if reason := self._too_long(tokens):
                    refuse(done + number + 1, reason)
                    split[number] = []
            yield self._translate(split, how)
            done += len(chunk)

    def _how(self, given: Dict[str, object]) -> Search:
        """The settings of a search, in which no translation is longer than the decoder's positions."""
        search, longest = check_search(**given), self.card.longest_target
        return search if longest is None else search._replace(max_length=min(search.max_length, longest - 1))

    def _split(self, line: str) -> List[str]:
        return self.tokenizer.split(" ".join(line.split()) if "\n" in line or "\r" in line else line)

    def _too_long(self, tokens: Sequence[str]) -> str:
        if len(tokens) < self.card.longest:
            return ""
        return f"it has {len(tokens)} tokens, but the model takes at most {self.card.longest - 1}"

    def _translate(
        self, split: Sequence[List[str]], how: Search, done: Callable[[int], object] = lambda number: None
    ) -> List[List[Translation]]:
        found: List[List[Translation]] = [[Translation("")] for _ in split]
        done(sum(not tokens for tokens in split))
        for rows in batches([len(tokens) for tokens in split]):
            hypotheses = self.engine.search([split[row] for row in rows], how)
            for row, best in zip(rows, hypotheses, strict=True):
                found[row] = [Translation(self.tokenizer.join(h.tokens), h.score, split[row], h.tokens) for h in best]
            done(len(rows))
        return found


def open_folder(folder: PathLike, device: str, precision: str, threads: Optional[int] = None) -> Translator:
    """See :func:`collab_fairseq.load`; what computes is imported here, so that CTranslate2 works without torch."""
    if threads is not None and threads < 1:
        raise TranslationError(f"threads must be at least 1, but are {threads}")
    card = read_card(folder)
    if card.engine not in _ENGINES:
        raise TranslationError(f"{folder} is for {card.engine}, which does not translate here")
    engine = getattr(importlib.import_module(f".{card.engine}_engine", __package__), _ENGINES[card.engine])
    return Translator(engine(folder, device, precision, threads), Tokenizer(folder, card), card)


def check_search(**given: object) -> Search:
    """The settings of a search.

    Raises:
        TranslationError: names that are none, or numbers that cannot be.
    """
    unknown = given.keys() - set(Search._fields)
    if unknown:
        raise TranslationError(f"a search has {', '.join(Search._fields)}, but {', '.join(sorted(unknown))} was given")
    search = Search(**given)  # type: ignore[arg-type]
    if search.beam < 1 or search.max_length < 1 or not 1 <= search.nbest <= search.beam:
        raise TranslationError(
            "beam and max_length must be at least 1, and nbest between 1 and beam, "
            f"but they are {search.beam}, {search.max_length} and {search.nbest}"
        )
    return search


def batches(lengths: Sequence[int], max_tokens: int = MAX_TOKENS) -> Iterator[Tuple[int, ...]]:
    """Rows of like length, longest first, so that memory does not run out late; empty ones are left out."""
    rows: List[int] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * (lengths[rows[0]] + 1) > max_tokens:
            yield tuple(rows)
            rows = []
        rows.append(row)
    if rows:
        yield tuple(rows)

"""Text-to-text translation with an exported model: batches of similar length, in input order."""

import importlib
import itertools
import logging
import re
import sys
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from fairseq_modern.errors import UserError

from .tokenizer import Card, PathLike, Tokenizer, read_card

logger = logging.getLogger(__name__)

#: tokens of a batch, padding included
MAX_TOKENS = 4000
#: engine of a card → its class, in the module ENGINE_engine
_ENGINES = {"torch": "TorchEngine", "ctranslate2": "CTranslate2Engine"}


class Search(NamedTuple):
    """Settings of the beam search.

    Attributes:
        beam: hypotheses kept at every step.
        nbest: hypotheses returned per sentence, best first.
        lenpen: the log-probability of a hypothesis is divided by its length, </s> included, to this power.
        max_length: maximum length of a translation in tokens, limited by the positions of the decoder. Translations
            that reach it are reported as a warning.
        scores: return exact scores and rank by them; False allows an engine to use its search's, which is faster.
    """

    beam: int = 5
    nbest: int = 1
    lenpen: float = 1.0
    max_length: int = 200
    scores: bool = True


class Hypothesis(NamedTuple):
    """Tokens without </s>, and their score as in :class:`Translation`."""

    tokens: List[str]
    score: float


class Engine(Protocol):
    """Translates tokens. Constructors have the arguments of :func:`collab_fairseq.load`.

    They raise UserError for a damaged folder, an unsupported precision, or a missing package.
    """

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """The best hypotheses of each sentence of a batch; neither the batch nor its sentences may be empty."""


class Translation(NamedTuple):
    """A translation.

    Attributes:
        text: raw text.
        score: log-probability, base 2, divided by (length with </s>) ** lenpen, as in fairseq-generate.
        source, target: tokens of both sides.
    """

    text: str
    score: float = 0.0
    source: Sequence[str] = ()
    target: Sequence[str] = ()


class Translator:
    """A trained model that translates raw text (:func:`collab_fairseq.load`).

    Args:
        engine: translates tokens.
        tokenizer: converts text to tokens and back.
        card: of the model's folder.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, card: Card) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.card = card

    def translate(self, sentences: Iterable[str], *, progress: Optional[bool] = None, **search: object) -> List[str]:
        """The best translation of every sentence, in order; an empty sentence stays empty.

        Args:
            sentences: raw text; line breaks count as spaces.
            progress: show a progress bar; default: on a terminal, for at least a hundred sentences.
            search: fields of :class:`Search`, such as ``beam=4``.

        Raises:
            UserError: a sentence is longer than the model's positions, or a search setting is invalid. Nothing
                is translated.
        """
        return [best[0].text for best in self.search(sentences, progress=progress, **{"scores": False, **search})]

    def search(
        self, sentences: Iterable[str], *, progress: Optional[bool] = None, **search: object
    ) -> List[List[Translation]]:
        """The best translations of every sentence with scores, best first; for the arguments see `translate`."""
        if isinstance(sentences, str):
            raise UserError("sentences must be a list of strings; got one string")
        sentences = list(sentences)
        settings = self._settings(search)
        for number, line in enumerate(sentences, start=1):
            if not isinstance(line, str):
                raise UserError(f"sentence {number} must be a string; got {line!r}")
        tokenised = [self._split(line) for line in sentences]
        for number, tokens in enumerate(tokenised, start=1):
            if problem := self._too_long(tokens):
                raise UserError(f"sentence {number}: {problem}")
        if progress is None:
            progress = len(tokenised) >= 100 and sys.stderr.isatty()
        from tqdm import tqdm

        with tqdm(total=len(tokenised), unit="sentence", disable=not progress) as bar:
            return self._translate(tokenised, settings, advance=bar.update)

    def stream(
        self, lines: Iterable[str], report: Callable[[int, str], None], *, buffer: int = 256, **search: object
    ) -> Iterator[List[List[Translation]]]:
        """The best translations of a text of any length, one buffer at a time, in order.

        Args:
            lines: raw text.
            report: called with the number, from 1, of each line that is too long and the reason; its translation is
                empty.
            buffer: number of lines that are read, sorted by length and translated together.
            search: fields of :class:`Search`.
        """
        if buffer < 1 or isinstance(lines, str):
            got = f"buffer {buffer}" if buffer < 1 else "a string"
            raise UserError(f"the text must be lines, in buffers of at least 1; got {got}")
        settings, done, source = self._settings(search), 0, iter(lines)
        while chunk := list(itertools.islice(source, buffer)):
            tokenised = [self._split(line) for line in chunk]
            for number, tokens in enumerate(tokenised):
                if problem := self._too_long(tokens):
                    report(done + number + 1, problem)
                    tokenised[number] = []
            yield self._translate(tokenised, settings, done)
            done += len(chunk)

    def _settings(self, options: Dict[str, object]) -> Search:
        """The settings, with translations limited to the positions of the decoder. UserError: they are invalid."""
        search = Search(**options)  # type: ignore[arg-type]
        if search.beam < 1 or search.max_length < 1 or not 1 <= search.nbest <= search.beam:
            raise UserError(
                "beam and max_length must be at least 1, and nbest between 1 and beam; "
                f"got {search.beam}, {search.max_length} and {search.nbest}"
            )
        longest = self.card.longest_target
        return search if longest is None else search._replace(max_length=min(search.max_length, longest - 1))

    def _split(self, line: str) -> List[str]:
        return self.tokenizer.split(re.sub(r"[\r\n]+", " ", line.strip("\r\n")))

    def _too_long(self, tokens: Sequence[str]) -> str:
        if len(tokens) < self.card.longest:
            return ""
        return f"it must have at most {self.card.longest - 1} tokens; got {len(tokens)}"

    def _translate(
        self,
        tokenised: Sequence[List[str]],
        settings: Search,
        done: int = 0,
        advance: Callable[[int], object] = lambda number: None,
    ) -> List[List[Translation]]:
        """Translate sentences after ``done`` others."""
        translations: List[List[Translation]] = [[Translation("")] for _ in tokenised]
        advance(sum(not tokens for tokens in tokenised))
        for rows in batches([len(tokens) for tokens in tokenised]):
            hypotheses = self.engine.search([tokenised[row] for row in rows], settings)
            for row, best in zip(rows, hypotheses, strict=True):
                translations[row] = [
                    Translation(self.tokenizer.join(h.tokens), h.score, tokenised[row], h.tokens) for h in best
                ]
            advance(len(rows))
        cut = [done + n for n, best in enumerate(translations, 1) if len(best[0].target) >= settings.max_length]
        if cut:
            shown = ", ".join(map(str, cut[:5])) + (", …" if len(cut) > 5 else "")
            logger.warning("translations of sentences %s end at the maximum length, %d", shown, settings.max_length)
        return translations


def open_folder(folder: PathLike, device: str, precision: str, threads: Optional[int] = None) -> Translator:
    """See :func:`collab_fairseq.load`. Imports only the folder's engine, so that CTranslate2 works without torch."""
    card = read_card(folder)
    if card.engine not in _ENGINES:
        raise UserError(f"{folder} must be a folder for {' or '.join(_ENGINES)}; got one for {card.engine}")
    engine = getattr(importlib.import_module(f".{card.engine}_engine", __package__), _ENGINES[card.engine])
    return Translator(engine(folder, device, precision, threads), Tokenizer(folder, card), card)


def batches(lengths: Sequence[int], max_tokens: int = MAX_TOKENS) -> Iterator[Tuple[int, ...]]:
    """Rows of similar length without empty ones, longest first, so that memory cannot run out late."""
    rows: List[int] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * (lengths[rows[0]] + 1) > max_tokens:
            yield tuple(rows)
            rows = []
        rows.append(row)
    if rows:
        yield tuple(rows)

"""From raw text to the tokens of a model's dictionary and back, as the folder of an exported model says.

Such a folder has a ``translation.json``, its :class:`Card`, beside dictionaries, subword model and weights.
"""

import importlib
import json
import os
import re
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Sequence

from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike
from fairseq_modern.files import sha256 as sha256_of

#: the card's file; the subword models' have the names under which fairseq finds them by itself
CARD = "translation.json"
SUBWORD_FILES = {"sentencepiece": "sentencepiece.bpe.model", "subword_nmt": "bpecodes"}
ENGINES = ("torch", "ctranslate2", "huggingface")
_NONE = type(None)
#: a language in the names of files: no separators, no leading dot
_LANGUAGE = re.compile(r"[\w@+-][\w.@+-]*")


class TranslationError(UserError):
    """A model, its data or its text cannot be used. The message is one sentence."""


def require(package: str, extra: str = "serve") -> Any:
    """An optional package, imported.

    Raises:
        TranslationError: it is not there, or too old; the message says how it can be installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        wanted = f"pip install 'collab_fairseq[{extra}]'"
        raise TranslationError(f"{package} cannot be imported ({error}): {wanted}") from error


@dataclass(frozen=True)
class Card:
    """What an exported folder says of itself.

    Attributes:
        engine: what computes it: ``torch``, ``ctranslate2`` or ``huggingface``.
        source_lang, target_lang: from and to.
        subwords: ``sentencepiece``, ``subword_nmt`` (BPE codes), or None: words.
        moses: text is tokenised as Moses does, with dashes split off and special characters escaped.
        lowercase: the source is lower-cased first.
        longest: tokens of the longest source sentence, </s> included.
        made_from: the checkpoint: file, sha256, num_updates.
        files: name → SHA-256 of dictionaries and subword model, which are all there is to name.
        longest_target: as ``longest``, of a translation; None: an older folder, which does not say.
        licence: of the model, in the words of those who exported it.
    """

    engine: str
    source_lang: str
    target_lang: str
    subwords: Optional[str]
    moses: bool
    lowercase: bool
    longest: int
    made_from: Dict[str, Any] = field(default_factory=dict)
    files: Dict[str, str] = field(default_factory=dict)
    longest_target: Optional[int] = None
    licence: Optional[str] = None


def check_language(*names: Any) -> None:
    """See that languages can be parts of a file's name.

    Raises:
        TranslationError: one cannot, as ``../en``.
    """
    for name in names:
        if not (isinstance(name, str) and _LANGUAGE.fullmatch(name)):
            raise TranslationError(f"a language must be a name such as en or zh-CN, but is {name!r}")


def _check_card(card: Card) -> None:
    """See that a card names nothing but what an exported folder holds: it may come from anywhere."""
    if card.engine not in ENGINES:
        raise TranslationError(f"the engine must be one of {', '.join(ENGINES)}; got {card.engine!r}")
    check_language(card.source_lang, card.target_lang)
    if card.subwords is not None and card.subwords not in tuple(SUBWORD_FILES):
        raise TranslationError(f"subwords must be one of {', '.join(SUBWORD_FILES)}, or null, but is {card.subwords!r}")
    expected = {f"dict.{lang}.txt" for lang in (card.source_lang, card.target_lang)}
    expected |= {SUBWORD_FILES[card.subwords]} if card.subwords else set()
    if not isinstance(card.files, dict) or set(card.files) != expected:
        raise TranslationError(f"files must be {', '.join(sorted(expected))}, but are {', '.join(card.files)}")
    numbers = [card.longest] if card.longest_target is None else [card.longest, card.longest_target]
    if not all(type(number) is int and number > 1 for number in numbers):
        raise TranslationError(f"the longest sentences must have at least 2 tokens, but have {numbers}")
    for name, kinds in {"moses": (bool,), "lowercase": (bool,), "made_from": (dict,), "licence": (str, _NONE)}.items():
        if not isinstance(getattr(card, name), kinds):
            raise TranslationError(f"{name} cannot be {getattr(card, name)!r}")


def read_card(folder: PathLike) -> Card:
    """The card of an exported folder.

    Raises:
        TranslationError: there is no such folder, it is no exported one, it names other files than its own, or its
            dictionaries or subword model are missing or another model's.
    """
    name = os.fspath(folder)
    path = os.path.join(name, CARD)
    if not os.path.isfile(path):
        missing = f"has no {CARD}" if os.path.isdir(name) else "is a file" if os.path.exists(name) else "is not there"
        raise TranslationError(f"{name} {missing}: expected a folder that `collab export CHECKPOINT --to folder` made")
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
        known = {f.name for f in fields(Card)}
        card = Card(**{key: value for key, value in content.items() if key in known})
        _check_card(card)
    except (TranslationError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TranslationError(f"{path} does not describe an exported model: {error}") from error
    for file, expected in card.files.items():
        if not os.path.isfile(os.path.join(name, file)):
            raise TranslationError(f"{name} has no {file}, which its {CARD} names")
        if sha256_of(os.path.join(name, file)) != expected:
            raise TranslationError(f"{name}: {file} is not the file that the model was exported with")
    return card


class Tokenizer:
    """Splits lines into a model's tokens and joins its tokens to lines.

    Args:
        folder: that of the card, with the subword model.
    """

    def __init__(self, folder: PathLike, card: Card) -> None:
        self.card = card
        if card.subwords is not None:
            self._file = os.path.join(os.fspath(folder), SUBWORD_FILES[card.subwords])
        if card.subwords == "sentencepiece":
            self._pieces = read_sentencepiece(self._file)
        elif card.subwords == "subword_nmt":
            codes = require("subword_nmt.apply_bpe")
            try:
                with open(self._file, encoding="utf-8") as stream:
                    self._bpe = codes.BPE(stream)
            except (ValueError, SystemExit) as error:  # it ends the program
                raise TranslationError(f"{self._file} has no BPE codes of subword-nmt") from error
        if card.moses:
            from sacremoses import MosesDetokenizer, MosesTokenizer

            self._moses = MosesTokenizer(card.source_lang), MosesDetokenizer(card.target_lang)

    def split(self, line: str) -> List[str]:
        """The tokens of a line of raw text; none of one that has only blanks."""
        if self.card.lowercase:
            line = line.lower()
        if self.card.moses:
            line = self._moses[0].tokenize(line, aggressive_dash_splits=True, escape=True, return_str=True)
        if self.card.subwords == "sentencepiece":
            line = " ".join(self._pieces.encode(line, out_type=str))
        elif self.card.subwords == "subword_nmt":
            line = self._bpe.process_line(line)
        return line.split()

    def join(self, tokens: Sequence[str]) -> str:
        """Raw text of tokens; a model that generates <s> means nothing by it."""
        tokens = [token for token in tokens if token != "<s>"]
        if self.card.subwords == "sentencepiece":
            line = "".join(tokens).replace("▁", " ").strip()
        elif self.card.subwords == "subword_nmt":
            line = f"{' '.join(tokens)} ".replace("@@ ", "").rstrip()
        else:
            line = " ".join(tokens)
        return str(self._moses[1].detokenize(line.split())) if self.card.moses else line


def read_sentencepiece(path: PathLike) -> Any:
    """SentencePiece's processor of a model file."""
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))
    except (OSError, RuntimeError) as error:
        raise TranslationError(f"{os.fspath(path)} is no SentencePiece model ({str(error).splitlines()[0]})") from error

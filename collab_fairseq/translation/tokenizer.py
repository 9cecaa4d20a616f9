"""Raw text to the tokens of a model and back, and the card (``translation.json``) of an exported model."""

import contextlib
import importlib
import io
import json
import os
import re
import sys
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from collab_fairseq.scoring.text import HYPHENS, base_language
from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike, sha256

#: file name of the card
CARD = "translation.json"
#: file names of subword models, where fairseq finds them by itself
SUBWORD_FILES = {"sentencepiece": "sentencepiece.bpe.model", "subword_nmt": "bpecodes"}
ENGINES = ("torch", "ctranslate2", "huggingface")
#: a language as part of a file name: no separators, no leading dot
_LANGUAGE = re.compile(r"[\w@+-][\w.@+-]*")


def require(package: str, extra: str = "serve") -> Any:
    """Import an optional package; the error says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        wanted = f"pip install 'collab_fairseq[{extra}]'"
        if extra == "huggingface" and sys.version_info < (3, 11):
            wanted = "it needs Python 3.11 or newer"
        raise UserError(f"{package} cannot be imported ({error}): {wanted}") from error


@dataclass(frozen=True)
class Card:
    """Description of an exported model.

    Attributes:
        engine: ``torch``, ``ctranslate2`` or ``huggingface``.
        source_lang, target_lang: languages.
        subwords: ``sentencepiece``, ``subword_nmt`` (BPE codes), or None for words.
        moses: whether text is tokenised like Moses does.
        lowercase: whether the source is lower-cased.
        longest: maximum length of a source sentence in tokens, </s> included.
        made_from: the checkpoint: file, sha256, num_updates.
        files: name → SHA-256 of all files that the engine reads, of the dictionaries and of the subword model.
        longest_target: like ``longest``, for translations; None: unknown.
        licence: of the model, as given at export.
        datasets: names of the training data on the Hugging Face Hub, as given at export.
        moses_no_dash_splits: whether Moses leaves hyphenated words whole; as fairseq's flag.
        moses_no_escape: whether Moses leaves special characters as they are; as fairseq's flag.
        hyphen: one of `HYPHENS`, in split words.
        lowercase_last: whether the source is lower-cased after Moses, as in fairseq's examples. Earlier versions did
            that first, which changes where Moses finds the ends of sentences.
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
    moses_no_dash_splits: bool = False
    moses_no_escape: bool = False
    hyphen: str = HYPHENS[0]
    lowercase_last: bool = False
    datasets: Sequence[str] = ()


def check_language(*names: Any) -> None:
    """Raise UserError unless languages can be parts of a file name, unlike ``../en``."""
    for name in names:
        if not (isinstance(name, str) and _LANGUAGE.fullmatch(name)):
            raise UserError(f"a language must be a name such as en or zh-CN; got {name!r}")


def text_files(card: Card) -> List[str]:
    """Names of the dictionaries and the subword model."""
    dictionaries = {f"dict.{lang}.txt" for lang in (card.source_lang, card.target_lang)}
    return sorted(dictionaries) + ([SUBWORD_FILES[card.subwords]] if card.subwords else [])


def _check_card(card: Card) -> None:
    """Check all fields of a card, which may come from anywhere; it must name files of the folder only."""
    if card.engine not in ENGINES:
        raise UserError(f"the engine must be one of {', '.join(ENGINES)}; got {card.engine!r}")
    check_language(card.source_lang, card.target_lang)
    if card.subwords is not None and card.subwords not in tuple(SUBWORD_FILES):
        raise UserError(f"subwords must be one of {', '.join(SUBWORD_FILES)}, or null; got {card.subwords!r}")
    expected = text_files(card)
    if not isinstance(card.files, dict) or not set(expected) <= set(card.files):
        raise UserError(f"files must contain {', '.join(expected)}; got {', '.join(card.files)}")
    for name in card.files:
        if name in (os.curdir, os.pardir) or os.path.basename(name) != name:
            raise UserError(f"files must be in the folder; got {name!r}")
    lengths = [card.longest] if card.longest_target is None else [card.longest, card.longest_target]
    if not all(type(length) is int and length > 1 for length in lengths):
        raise UserError(f"the longest sentences must have at least 2 tokens; got {lengths}")
    if card.hyphen not in HYPHENS:
        raise UserError(f"hyphen must be one of {', '.join(HYPHENS)}; got {card.hyphen!r}")
    switches = ("moses", "lowercase", "moses_no_dash_splits", "moses_no_escape", "lowercase_last")
    types: Sequence[Tuple[str, Any, str]] = (
        *((name, bool, "true or false") for name in switches),
        ("made_from", dict, "an object"),
        ("licence", (str, type(None)), "a string or null"),
        ("datasets", (list, tuple), "a list"),
    )
    for name, allowed, description in types:
        if not isinstance(getattr(card, name), allowed):
            raise UserError(f"{name} must be {description}; got {getattr(card, name)!r}")


def read_card(folder: PathLike) -> Card:
    """Read the card of an exported folder, and verify the checksums of its files.

    Raises:
        UserError: not an exported folder, an invalid card, or missing or modified files.
    """
    name = os.fspath(folder)
    path = os.path.join(name, CARD)
    if not os.path.isfile(path):
        raise UserError(f"{name} must be a folder made by `collab export CHECKPOINT --to folder`; it has no {CARD}")
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
        known = {f.name for f in fields(Card)}
        card = Card(**{key: value for key, value in content.items() if key in known})
        _check_card(card)
    except (UserError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} does not describe an exported model: {error}") from error
    for file, expected in card.files.items():
        if not os.path.isfile(os.path.join(name, file)):
            raise UserError(f"{name} has no {file}, which its {CARD} names")
        if sha256(os.path.join(name, file)) != expected:
            raise UserError(f"{name}: {file} differs from the file that the model was exported with")
    return card


class Tokenizer:
    """Splits lines into a model's tokens, and joins its tokens to lines.

    Words are split into units of the source dictionary where they can be: a subword model may have others, which are
    rare in the training text.

    Args:
        folder: of the card, the dictionaries and the subword model.
    """

    def __init__(self, folder: PathLike, card: Card) -> None:
        self.card = card
        if card.subwords is not None:
            file = os.path.join(os.fspath(folder), SUBWORD_FILES[card.subwords])
            units = _read_units(os.path.join(os.fspath(folder), f"dict.{card.source_lang}.txt"))
        if card.subwords == "sentencepiece":
            self._source_pieces, self._pieces = read_sentencepiece(file, units), read_sentencepiece(file)
        elif card.subwords == "subword_nmt":
            self._bpe = read_bpe_codes(file, units)
        if card.moses:
            from sacremoses import MosesDetokenizer, MosesTokenizer

            self._moses = (
                MosesTokenizer(base_language(card.source_lang)),
                MosesDetokenizer(base_language(card.target_lang)),
            )

    def split(self, line: str) -> List[str]:
        """The tokens of a line of raw text; an empty list for a blank line."""
        card = self.card
        if card.lowercase and not card.lowercase_last:
            line = line.lower()
        if card.moses:
            options = {"aggressive_dash_splits": not card.moses_no_dash_splits, "escape": not card.moses_no_escape}
            line = self._moses[0].tokenize(line, **options, return_str=True).replace(HYPHENS[0], card.hyphen)
        if card.lowercase and card.lowercase_last:
            line = line.lower()
        if card.subwords == "sentencepiece":
            line = " ".join(self._source_pieces.encode(line, out_type=str))
        elif card.subwords == "subword_nmt":
            line = self._bpe.process_line(line)
        return line.split()

    def join(self, tokens: Sequence[str]) -> str:
        """Raw text of tokens; generated <s> are dropped."""
        tokens = [token for token in tokens if token != "<s>"]
        if self.card.subwords == "sentencepiece":
            line = join_pieces(self._pieces, tokens)
        elif self.card.subwords == "subword_nmt":
            line = f"{' '.join(tokens)} ".replace("@@ ", "").rstrip()
        else:
            line = " ".join(tokens)
        if self.card.moses:
            words = line.replace(self.card.hyphen, HYPHENS[0]).split()
            line = self._moses[1].detokenize(words, unescape=not self.card.moses_no_escape)
        return line


def join_pieces(processor: Any, units: Sequence[str]) -> str:
    """Raw text of units of fairseq's dictionary, joined by their SentencePieceProcessor."""
    unknown = processor.id_to_piece(processor.unk_id())
    text: str = processor.decode([unknown if unit == "<unk>" else unit for unit in units])
    return text.replace("▁", " ")  # of units that are not pieces, which fairseq-preprocess makes at no-break spaces


def _read_units(path: PathLike) -> Set[str]:
    """The units of a dictionary of fairseq, whose lines are `unit count`, perhaps with a flag."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        return {line.rstrip("\r\n").removesuffix(" #fairseq:overwrite").rpartition(" ")[0] for line in stream}


def read_bpe_codes(path: PathLike, units: Optional[Set[str]] = None) -> Any:
    """The BPE of a file with codes of subword-nmt; it makes no others than these units where it can."""
    codes, messages = require("subword_nmt.apply_bpe"), io.StringIO()
    try:
        with open(path, encoding="utf-8") as stream, contextlib.redirect_stderr(messages):
            return codes.BPE(stream, vocab=units)
    except (ValueError, SystemExit) as error:  # subword-nmt prints a message and calls sys.exit
        reason = (messages.getvalue() or str(error)).splitlines()[0].removeprefix("Error: ")
        raise UserError(f"{os.fspath(path)} must have BPE codes of subword-nmt ({reason})") from error


def read_sentencepiece(path: PathLike, units: Optional[Set[str]] = None) -> Any:
    """The SentencePieceProcessor of a model file; it makes no others than these units where it can."""
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))
        if units is not None:
            from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made when it runs

            model = ModelProto.FromString(processor.serialized_model_proto())
            for piece in model.pieces:
                if piece.type == piece.NORMAL and piece.piece not in units:
                    piece.type = piece.UNUSED
            processor.load_from_serialized_proto(model.SerializeToString())
        return processor
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{os.fspath(path)} must be a SentencePiece model ({reason})") from error

"""What is exported, a checkpoint with its dictionaries and tokenizer; the folder appears whole or not at all."""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from typing import Any, Collection, Dict, Iterator, Optional

from fairseq import utils

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.translation import TrainedModel, load_model
from collab_fairseq.translation.text import subword_units
from collab_fairseq.translation.tokenizer import (
    SUBWORD_FILES,
    Card,
    TranslationError,
    read_card,
    read_sentencepiece,
    sha256_of,
)
from collab_fairseq.translation.torch_engine import MODEL
from fairseq_modern.errors import UserError
from fairseq_modern.files import hold, remove_stale_temp_files, temporary_name

#: where model folders have the SentencePiece model, and where data_prep puts it: in the data-bin, or beside it
_USUAL = (SUBWORD_FILES["sentencepiece"], "sentencepiece.model", os.path.join(os.pardir, "sentencepiece.model"))
#: share of a dictionary's units that must be pieces of its SentencePiece model
_PIECES = 0.95


class UnsupportedError(UserError):
    """A target cannot express the model; others may."""


@dataclass(frozen=True)
class Source:
    """A trained model and all that belongs to it.

    Attributes:
        trained: the model, in float32.
        card: how text becomes tokens, and what it was made from.
        files: name in the exported folder → file: dictionaries and subword model.
        record: of how it was made, or None.
    """

    trained: TrainedModel
    card: Card
    files: Dict[str, str]
    record: Optional[str] = None

    @property
    def model(self) -> Any:
        """The ``transformer_collab``."""
        return self.trained.model

    @property
    def config(self) -> Any:
        """Its settings, nested (``config.encoder.layers``)."""
        return self.trained.model.args


def read_source(
    path: PathLike, data: Optional[PathLike] = None, *, sentencepiece: Optional[PathLike] = None,
    bpe_codes: Optional[PathLike] = None, moses: bool = False, lowercase: bool = False,
    record: Optional[PathLike] = None, licence: Optional[str] = None,
) -> Source:  # fmt: skip
    """A checkpoint or a model folder, to be exported.

    Args:
        path: checkpoint of fairseq's ``transformer`` or of ``transformer_collab``; or a model folder, which says by
            itself what follows.
        data: data-bin with the dictionaries; default: the one that the checkpoint names.
        sentencepiece: model; default: ``sentencepiece.model`` in the data-bin or beside it. bpe_codes: of subword-nmt.
        moses: the text was tokenised with Moses. lowercase: and lower-cased.
        record: of how it was made, for the folder.
        licence: of the model, in your words; default: that of the model folder.

    Raises:
        TranslationError, CheckpointError, ConfigurationError: see :func:`~collab_fairseq.translation.load_model`;
            subword units without their model, or with another's.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        card = read_card(name)
        if card.engine != "torch":
            raise TranslationError(f"{name} is for {card.engine}: give the checkpoint or model folder it was made from")
        there = os.path.join(name, "record.json")
        files = {file: os.path.join(name, file) for file in card.files}
        trained = load_model(os.path.join(name, MODEL), name)
        card = replace(card, longest_target=_positions(trained), licence=licence or card.licence)
        return Source(trained, card, files, there if os.path.isfile(there) else None)
    trained = load_model(name, data)
    task = trained.task.cfg
    folder = task.data
    dictionaries = [f"dict.{lang}.txt" for lang in (task.source_lang, task.target_lang)]
    files = {file: os.path.join(folder, file) for file in dictionaries}
    subwords, file = _subwords(trained, folder, sentencepiece, bpe_codes)
    if subwords is not None:
        files[SUBWORD_FILES[subwords]] = file
    made_from = {
        **checkpoints.file_setting(name),
        "num_updates": checkpoints.num_updates(trained.state),
        "averaged": len((trained.state.get("extra_state") or {}).get("averaged_from", ())) or None,
    }
    model: Any = trained.model
    longest = utils.resolve_max_positions(trained.task.max_positions(), model.max_positions())[0]
    sums = {file: sha256_of(path) for file, path in files.items()}
    card = Card(
        "torch", task.source_lang, task.target_lang, subwords, moses, lowercase, longest,
        {key: value for key, value in made_from.items() if value is not None}, sums, _positions(trained), licence,
    )  # fmt: skip
    return Source(trained, card, files, None if record is None else os.fspath(record))


def _positions(trained: TrainedModel) -> int:
    """Units that the decoder can give, </s> included."""
    return int(trained.model.max_decoder_positions())  # type: ignore[operator]


def _subwords(trained: TrainedModel, folder: str, sentencepiece: Optional[PathLike], codes: Optional[PathLike]) -> Any:
    """Kind and file of the subword model, or (None, None)."""
    dictionaries = {"source": trained.task.source_dictionary, "target": trained.task.target_dictionary}
    units = subword_units(dictionaries["source"])
    if sentencepiece is not None and codes is not None:
        raise TranslationError("a model has either a SentencePiece model or BPE codes, both were given")
    if codes is not None:
        if units != "@@ ":
            raise TranslationError(f"BPE codes were given, but the dictionaries in {folder} have no such units (…@@)")
        return "subword_nmt", os.fspath(codes)
    if sentencepiece is None and units == "sentencepiece":
        usual = (os.path.join(folder, name) for name in _USUAL)
        sentencepiece = next(filter(os.path.isfile, usual), None)
    if sentencepiece is None:
        if units is None:
            return None, None
        needed = {"sentencepiece": "SentencePiece model (--sentencepiece)", "@@ ": "BPE codes (--bpe-codes)"}[units]
        raise TranslationError(f"the dictionaries in {folder} have subword units: name the {needed} that made them")
    processor = read_sentencepiece(sentencepiece)
    pieces = {processor.id_to_piece(number) for number in range(processor.get_piece_size())}
    for side, dictionary in dictionaries.items():
        known = [unit for unit in dictionary.symbols[dictionary.nspecial :] if not unit.startswith("madeupword")]
        share = sum(unit in pieces for unit in known) / max(1, len(known))
        if share < _PIECES:
            raise TranslationError(
                f"{os.fspath(sentencepiece)} is not the SentencePiece model of the {side} dictionary in {folder}: "
                f"{share:.0%} of the dictionary's units are pieces of it, expected at least {_PIECES:.0%}"
            )
    return "sentencepiece", os.fspath(sentencepiece)


def refuse_settings(config: Any, target: str, activations: Collection[str], more: Dict[str, bool]) -> None:
    """Refuse by name what a target does not have: rare options of fairseq's transformer, and ``more``.

    Args:
        activations: those that it has, by fairseq's names.

    Raises:
        UnsupportedError: one of them is there.
    """
    decoder = config.decoder
    refused = {
        "--adaptive-softmax-cutoff": config.adaptive_softmax_cutoff is not None,
        "--no-token-positional-embeddings": config.no_token_positional_embeddings,
        "--no-cross-attention": config.no_cross_attention,
        "--cross-self-attention": config.cross_self_attention,
        "--decoder-input-dim": decoder.input_dim != decoder.embed_dim,
        "--decoder-output-dim": decoder.output_dim != decoder.embed_dim,
        "--quant-noise-pq": config.quant_noise.pq > 0,  # a trained layer after the embeddings
        "--quant-noise-scalar": config.quant_noise.scalar > 0,  # rounds weights and activations
        **more,
    }
    for name, there in refused.items():
        if there:
            raise UnsupportedError(f"the model has {name}, which {target} lacks")
    if config.activation_fn not in activations:
        known = ", ".join(activations)
        raise UnsupportedError(f"the activation in {target} must be one of {known}, but is {config.activation_fn}")


@contextlib.contextmanager
def new_folder(path: PathLike) -> Iterator[str]:
    """A folder to write to that appears under ``path`` when the block ends, and not at all if it fails.

    What a killed process has left of an earlier attempt is removed.

    Raises:
        UserError: something else than an empty folder is there already, or the place cannot be written to.
    """
    name = os.path.abspath(path)
    if os.path.lexists(name) and (os.path.islink(name) or not os.path.isdir(name) or os.listdir(name)):
        raise UserError(f"there is already something under {os.fspath(path)}: choose another --output")
    if not os.path.isdir(os.path.dirname(name)):
        raise UserError(f"cannot write {os.fspath(path)}: there is no folder {os.path.dirname(name)}")
    remove_stale_temp_files(*os.path.split(name))
    work = temporary_name(name)
    descriptor = None
    try:
        os.mkdir(work)
        descriptor = os.open(work, os.O_RDONLY)
        hold(descriptor)
        yield work
        for folder, _, files in os.walk(work):
            for file in files:
                with open(os.path.join(folder, file), "rb") as stream:
                    os.fsync(stream.fileno())
        os.rename(work, name)
    except OSError as error:
        raise UserError(f"cannot write {os.fspath(path)}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def write_json(data: Any, path: str) -> None:
    """Data as indented JSON."""
    with open(path, "x", encoding="utf-8") as stream:
        json.dump(data, stream, indent=2, ensure_ascii=False)

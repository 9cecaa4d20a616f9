"""The model to export, with its dictionaries and subword model."""

import os
from dataclasses import dataclass, replace
from typing import Any, Collection, Dict, Optional, Sequence, Tuple

from fairseq import utils

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring.text import HYPHENS
from collab_fairseq.translation import TrainedModel, load_model
from collab_fairseq.translation.text import sentencepiece_file, subword_units
from collab_fairseq.translation.tokenizer import (
    SUBWORD_FILES,
    Card,
    read_bpe_codes,
    read_card,
    read_sentencepiece,
    text_files,
)
from collab_fairseq.translation.torch_engine import MODEL
from fairseq_modern.errors import UserError

from .preprocessing import infer

#: minimum share of a dictionary's units that are pieces of its SentencePiece model
_MIN_PIECES = 0.95


@dataclass(frozen=True)
class Source:
    """A trained model and its files.

    Attributes:
        trained: the model, in float32.
        card: tokenisation and origin; an export sets ``files``.
        files: file name in the exported folder → path, for dictionaries and subword model.
        record: path of the record of the training run or conversion, or None.
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
        """The model's settings, nested (``config.encoder.layers``)."""
        return self.trained.model.args


def read_source(
    path: PathLike,
    data: Optional[PathLike] = None,
    *,
    sentencepiece: Optional[PathLike] = None,
    bpe_codes: Optional[PathLike] = None,
    moses: bool = False,
    lowercase: bool = False,
    moses_no_dash_splits: bool = False,
    moses_no_escape: bool = False,
    record: Optional[PathLike] = None,
    licence: Optional[str] = None,
    datasets: Sequence[str] = (),
) -> Source:
    """Read a checkpoint or a model folder for export.

    The arguments are the options of ``collab export``, described by its ``--help``. To a model folder, only
    ``licence`` and ``datasets`` apply.

    Raises:
        UserError: a file is missing, or the subword model is missing or does not belong to the dictionaries. For other
            errors, see :func:`~collab_fairseq.translation.load_model`.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        return _read_folder(name, licence, datasets)
    trained = load_model(name, data)
    task, model = trained.task.cfg, trained.model
    dictionaries = (f"dict.{lang}.txt" for lang in (task.source_lang, task.target_lang))
    files = {file: os.path.join(task.data, file) for file in dictionaries}
    subwords, subword_file = _subword_model(trained, task.data, sentencepiece, bpe_codes)
    if subwords is not None:
        files[SUBWORD_FILES[subwords]] = subword_file
    averaged = (trained.state.get("extra_state") or {}).get("averaged_from", ())
    origin = {
        **checkpoints.file_setting(name),
        "num_updates": checkpoints.num_updates(trained.state),
        "averaged": len(averaged) or None,
    }
    max_positions: Any = model.max_positions
    card = Card(
        engine="torch",
        source_lang=task.source_lang,
        target_lang=task.target_lang,
        subwords=subwords,
        **infer(trained.task.source_dictionary, moses, lowercase, moses_no_dash_splits, moses_no_escape),
        longest=utils.resolve_max_positions(trained.task.max_positions(), max_positions())[0],
        made_from={key: value for key, value in origin.items() if value is not None},
        longest_target=_longest_target(trained),
        licence=licence,
        datasets=datasets,
    )
    return Source(trained, card, files, None if record is None else os.fspath(record))


def _read_folder(folder: str, licence: Optional[str], datasets: Sequence[str]) -> Source:
    card = read_card(folder)
    if card.engine != "torch":
        raise UserError(f"{folder} is for {card.engine}: export the checkpoint or model folder it was made from")
    trained = load_model(os.path.join(folder, MODEL), folder)
    card = replace(card, longest_target=_longest_target(trained))
    card = replace(card, licence=licence or card.licence, datasets=datasets or card.datasets)
    files = {file: os.path.join(folder, file) for file in text_files(card)}
    record = os.path.join(folder, "record.json")
    return Source(trained, card, files, record if os.path.isfile(record) else None)


def _longest_target(trained: TrainedModel) -> int:
    """Maximum number of tokens in a translation, </s> included."""
    return int(trained.model.max_decoder_positions())  # type: ignore[operator]


def _subword_model(
    trained: TrainedModel, data: str, sentencepiece: Optional[PathLike], bpe_codes: Optional[PathLike]
) -> Tuple[Optional[str], Any]:
    """Key of `SUBWORD_FILES` and path of the subword model; (None, None) for a vocabulary of words."""
    units = subword_units(trained.task.source_dictionary) or subword_units(trained.task.target_dictionary)
    if sentencepiece is not None and bpe_codes is not None:
        raise UserError("the subword model must be SentencePiece or BPE codes; got both")
    if bpe_codes is not None:
        if units != "@@ ":
            raise UserError(f"BPE codes need dictionaries with BPE units (…@@); those in {data} have none")
        if subword_units(trained.task.source_dictionary) is None:
            raise UserError(f"the source dictionary in {data} must have BPE units (…@@), as the target has; got words")
        codes = read_bpe_codes(bpe_codes).bpe_codes  # may raise an error, which names the user's file
        made = {"".join(pair).removesuffix("</w>") for pair in codes}
        source = trained.task.source_dictionary  # joining needs no codes, and the target may have others
        names = (unit.removesuffix("@@") for unit in source.symbols[source.nspecial :])
        split = [unit for unit in names if len(unit) > 1 and unit not in HYPHENS]  # which may be a glossary
        _check_units({"source": split}, made, bpe_codes, data)
        return "subword_nmt", os.fspath(bpe_codes)
    if sentencepiece is None and units == "sentencepiece":
        sentencepiece = sentencepiece_file(data)
    if sentencepiece is not None:
        _check_sentencepiece(trained, data, os.fspath(sentencepiece))
        return "sentencepiece", os.fspath(sentencepiece)
    if units not in (None, "@@ ", "sentencepiece"):
        raise UserError(
            f"the dictionaries in {data} have subword units (marker {units.strip()}); an export can only split text "
            "with SentencePiece or with BPE codes of subword-nmt (…@@)"
        )
    if units is not None:
        needed = "BPE codes (--bpe-codes)" if units == "@@ " else "SentencePiece model (--sentencepiece)"
        raise UserError(f"the dictionaries in {data} have subword units, which need their {needed}")
    return None, None


def _check_sentencepiece(trained: TrainedModel, data: str, file: str) -> None:
    processor = read_sentencepiece(file)
    pieces = {processor.id_to_piece(number) for number in range(processor.get_piece_size())}
    dictionaries = {"source": trained.task.source_dictionary, "target": trained.task.target_dictionary}
    units = {side: dictionary.symbols[dictionary.nspecial :] for side, dictionary in dictionaries.items()}
    _check_units(units, pieces, file, data)


def _check_units(units: Dict[str, Sequence[str]], pieces: Collection[str], file: PathLike, data: str) -> None:
    """Raise UserError unless nearly all units of a side are pieces of the subword model in a file."""
    for side, names in units.items():
        names = [name for name in names if not name.startswith("madeupword")]
        share = sum(name in pieces for name in names) / max(1, len(names))
        if names and share < _MIN_PIECES:
            raise UserError(
                f"{os.fspath(file)} is not the subword model of the {side} dictionary in {data}: at least "
                f"{_MIN_PIECES:.0%} of the dictionary's units must be its pieces; got {share:.0%}"
            )


def reject_settings(config: Any, target: str, activations: Collection[str], others: Dict[str, bool]) -> None:
    """Raise UserError if the model has a setting or an activation function that the target lacks.

    ``others``: setting → whether the model has it, in addition to those that all targets lack.
    """
    decoder = config.decoder
    settings = {
        "--adaptive-softmax-cutoff": config.adaptive_softmax_cutoff is not None,
        "--no-token-positional-embeddings": config.no_token_positional_embeddings,
        "--no-cross-attention": config.no_cross_attention,
        "--cross-self-attention": config.cross_self_attention,
        "--decoder-input-dim": decoder.input_dim != decoder.embed_dim,
        "--decoder-output-dim": decoder.output_dim != decoder.embed_dim,
        "--quant-noise-pq": config.quant_noise.pq > 0,  # adds a trained layer after the embeddings
        "--quant-noise-scalar": config.quant_noise.scalar > 0,  # rounds weights and activations
        **others,
    }
    for name, active in settings.items():
        if active:
            raise UserError(f"the model has {name}, which {target} lacks")
    if config.activation_fn not in activations:
        known = ", ".join(activations)
        raise UserError(f"the activation in {target} must be one of {known}; got {config.activation_fn}")

"""``--to folder``: a model folder with everything for translation, which fairseq and this project read.

    model.pt             fairseq checkpoint: weights and settings; no optimizer state, no absolute paths
    dict.*.txt           dictionaries
    sentencepiece.bpe.model or bpecodes: subword model, with the file name that fairseq's from_pretrained expects
    translation.json     tokenisation; origin of the model
    README.md, record.json

fairseq reads only pickled weights. This project loads them with ``weights_only=True``.
"""

import copy
import os
from dataclasses import asdict
from typing import Any, Dict

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.models.config import OWN_DEFAULTS
from collab_fairseq.modules import gates
from collab_fairseq.modules.settings import flat
from collab_fairseq.scoring.text import HYPHENS, base_language
from collab_fairseq.training import chunked_loss
from collab_fairseq.translation.text import byte_unit
from collab_fairseq.translation.tokenizer import SUBWORD_FILES
from collab_fairseq.translation.torch_engine import MODEL
from fairseq_modern.files import new_folder

from .readme import Written, write_companion_files
from .source import Source

#: type of the subword model → fairseq's setting for its file
_FILE_SETTINGS = {"sentencepiece": "sentencepiece_model", "subword_nmt": "bpe_codes"}
#: settings of fairseq's Moses, with the same names in the card
_MOSES_OPTIONS = ("moses_no_dash_splits", "moses_no_escape")


def check(source: Source) -> None:
    """A model folder can hold every model, with its own layers."""


def export(source: Source, layers: None, output: PathLike, *, half: bool = False) -> None:
    """Write the model folder; ``half``: store weights in half precision (the model still computes in float32)."""
    write(source, portable(source, half), output, Written(half=half))


def portable(source: Source, half: bool = False, arch: str = "transformer_collab") -> Dict[str, Any]:
    """The checkpoint to publish: without optimizer state, settings of the training run, and absolute paths.

    Args:
        half: store weights in half precision.
        arch: fairseq's name of the architecture; ``transformer`` drops the settings that only this project has.
    """
    cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    original = source.trained.state["cfg"]
    card = source.card
    # the layers to keep are already the only ones
    settings = {**flat(asdict(source.config)), "encoder_layers_to_keep": None, "decoder_layers_to_keep": None}
    if arch == "transformer":
        settings = {name: value for name, value in settings.items() if name not in OWN_DEFAULTS}
    cfg["model"] = {**settings, "_name": arch, "arch": arch}
    languages = {"source_lang": card.source_lang, "target_lang": card.target_lang}
    cfg["task"] = {**original["task"], "data": ".", **languages}
    cfg["criterion"] = original.get("criterion")
    if arch == "transformer":
        cfg["criterion"] = _without_own_fields(cfg["criterion"])
    # from_pretrained fills in the file
    cfg["bpe"] = card.subwords and {"_name": card.subwords, _FILE_SETTINGS[card.subwords]: "???"}
    # Moses has rules of languages without their region
    base_languages = {side: base_language(language) for side, language in languages.items()}
    options = {name: getattr(card, name) for name in _MOSES_OPTIONS}
    cfg["tokenizer"] = {"_name": "moses", **base_languages, **options} if card.moses else None
    cfg["dataset"]["required_batch_size_multiple"] = original["dataset"]["required_batch_size_multiple"]
    model = copy.deepcopy(source.model).half() if half else source.model
    # fairseq expects this in every checkpoint
    history = {"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": card.made_from.get("num_updates", 0)}
    return {
        "args": None,
        "cfg": cfg,
        "model": model.state_dict(),
        "optimizer_history": [history],
        "last_optimizer_state": None,
        "extra_state": {"epoch": 1, "batch_offset": 0},
    }


def _without_own_fields(criterion: Any) -> Any:
    """The settings of a loss for fairseq without this project: those of fairseq's label-smoothed loss replace ours."""
    if not criterion or criterion.get("_name") not in (chunked_loss.CRITERION, gates.CRITERION):
        return criterion
    known = LabelSmoothedCrossEntropyCriterionConfig.__dataclass_fields__
    return {**{n: value for n, value in criterion.items() if n in known}, "_name": "label_smoothed_cross_entropy"}


def write(source: Source, state: Dict[str, Any], output: PathLike, written: Written) -> None:
    """Write a checkpoint made by :func:`portable` to a model folder, with tokenisation files and instructions."""
    card, arch = source.card, state["cfg"]["model"]["arch"]
    flags = f"-s {card.source_lang} -t {card.target_lang}"
    if arch == "transformer":
        module, name = "fairseq.models.transformer", "TransformerModel"
    else:
        module, name = "collab_fairseq.models", "TransformerCollabModel"
        flags += ' --user-dir "$(collab user-dir)"'
    if card.subwords is not None:
        option = _FILE_SETTINGS[card.subwords].replace("_", "-")
        flags += f" --bpe {card.subwords} --{option} DIR/{SUBWORD_FILES[card.subwords]}"
    if card.moses:
        options = [f" --{name.replace('_', '-')}" for name in _MOSES_OPTIONS if getattr(card, name)]
        flags += "".join([" --tokenizer moses", *options])
    notes = " Its input must be lower-cased." if card.lowercase else ""
    if card.hyphen != HYPHENS[0]:
        notes += f" It does not know the mark `{card.hyphen}` in split words, and writes `{HYPHENS[0]}`."
    usage = [
        "```bash",
        "collab translate DIR FILE",
        """python -c 'import collab_fairseq; print(collab_fairseq.load("DIR").translate(["…"]))'""",
        "```",
        "",
        f"In fairseq, the architecture is `{arch}`.{notes}",
        "",
        "```bash",
        f"fairseq-interactive DIR --path DIR/{MODEL} {flags}",
        f"""python -c 'from {module} import {name}; print({name}.from_pretrained("DIR").translate(["…"]))'""",
        "```",
    ]
    if (unit := byte_unit(source.trained.task.target_dictionary)) is not None:
        usage += ["", f"fairseq prints byte units such as `{unit}` as they are; `collab translate` joins them."]
    with new_folder(output) as folder:
        checkpoints.save(state, os.path.join(folder, MODEL))
        write_companion_files(source, folder, "torch", "Translation model", usage, written)

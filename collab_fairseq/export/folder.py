"""``--to folder``: all that a trained model needs to translate, in one folder that fairseq and this project read.

    model.pt             fairseq's checkpoint: weights, settings; no optimizer state, no path of a machine
    dict.*.txt           dictionaries
    sentencepiece.bpe.model or bpecodes, under the names that fairseq's from_pretrained looks for
    translation.json     how text becomes tokens; what the model was made from
    README.md, record.json

The weights are in a pickle, since fairseq reads nothing else; it is loaded with ``weights_only=True`` here.
"""

import copy
import os
from dataclasses import asdict
from typing import Any, Dict

from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.models.config import OWN_FIELDS
from collab_fairseq.modules.fairseq_compat import flat
from collab_fairseq.translation.tokenizer import SUBWORD_FILES
from collab_fairseq.translation.torch_engine import MODEL

from .readme import write_text_side
from .source import Source, new_folder

#: kind of subword model → fairseq's setting of its file
_FILE_SETTINGS = {"sentencepiece": "sentencepiece_model", "subword_nmt": "bpe_codes"}


def check(source: Source) -> None:
    """Every model fits."""


def export(source: Source, output: PathLike, *, half: bool = False) -> None:
    """Write the model folder; ``half``: weights in half precision, which are computed with in float32 all the same."""
    write(source, portable(source, half), output)


def portable(source: Source, half: bool = False, arch: str = "transformer_collab") -> Dict[str, Any]:
    """The checkpoint as others can use it: its settings without what the training alone needed, and no path.

    Args:
        half: in half precision. arch: what the model is to be called, ``transformer`` if it has become one.
    """
    cfg = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    assert isinstance(cfg, dict)
    own = source.trained.state["cfg"]
    card = source.card
    settings = flat(asdict(source.config))
    if arch == "transformer":
        settings = {name: value for name, value in settings.items() if name not in OWN_FIELDS}
    cfg["model"] = {**settings, "_name": arch, "arch": arch}
    model = copy.deepcopy(source.model).half() if half else source.model
    cfg["task"] = {**own["task"], "data": ".", "source_lang": card.source_lang, "target_lang": card.target_lang}
    cfg["criterion"] = own.get("criterion")
    # from_pretrained fills in the file
    cfg["bpe"] = card.subwords and {"_name": card.subwords, _FILE_SETTINGS[card.subwords]: "???"}
    moses = {"_name": "moses", "source_lang": card.source_lang, "target_lang": card.target_lang}
    cfg["tokenizer"] = moses if card.moses else None
    cfg["dataset"]["required_batch_size_multiple"] = own["dataset"]["required_batch_size_multiple"]
    # what fairseq wants to find in every checkpoint; no optimizer's state goes with it
    history = {"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": card.made_from.get("num_updates", 0)}
    return {
        "args": None,
        "cfg": cfg,
        "model": model.state_dict(),
        "optimizer_history": [history],
        "last_optimizer_state": None,
        "extra_state": {"epoch": 1, "batch_offset": 0},
    }


def write(source: Source, state: Dict[str, Any], output: PathLike) -> None:
    """The folder of a checkpoint, with how to translate with it."""
    card, arch = source.card, state["cfg"]["model"]["arch"]
    if arch == "transformer":
        home, kind, flags = "fairseq.models.transformer", "TransformerModel", ""
    else:
        home, kind, flags = "collab_fairseq.models", "TransformerCollabModel", ' --user-dir "$(collab user-dir)"'
    if card.subwords is not None:
        name = _FILE_SETTINGS[card.subwords].replace("_", "-")
        flags += f" --bpe {card.subwords} --{name} DIR/{SUBWORD_FILES[card.subwords]}"
    flags += " --tokenizer moses" * card.moses
    with new_folder(output) as folder:
        checkpoints.save(state, os.path.join(folder, MODEL))
        write_text_side(
            source, folder, "torch", "Translation model",
            "```bash",
            "collab translate DIR FILE",
            "python -c 'import collab_fairseq; print(collab_fairseq.load(\"DIR\").translate([\"…\"]))'",
            "```",
            "",
            f"In fairseq, whose {arch} it is{', on lower-cased text' * card.lowercase}:",
            "",
            "```bash",
            f"fairseq-interactive DIR --path DIR/{MODEL} -s {card.source_lang} -t {card.target_lang}{flags}",
            f"python -c 'from {home} import {kind}; print({kind}.from_pretrained(\"DIR\").translate([\"…\"]))'",
            "```",
        )  # fmt: skip

"""The files next to the weights in an exported folder, among them a README that describes the model.

Scores, losses, training command and data come from the model's record. The README omits what the record lacks. It
starts with metadata for the Hugging Face Hub (:mod:`.hub`).
"""

import json
import os
import shutil
from dataclasses import asdict, replace
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from collab_fairseq.attention import SITES
from collab_fairseq.files import write_json
from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.records import pages
from collab_fairseq.translation.tokenizer import CARD, Tokenizer, read_card
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256

from .hub import Score, metadata
from .source import Source

_VOCABULARIES = {"sentencepiece": "SentencePiece units", "subword_nmt": "BPE units", None: "words"}
#: key of the card's ``made_from`` → phrase
_ORIGIN = {"file": "{}", "sha256": "SHA-256 {}", "num_updates": "{} updates", "averaged": "average of {} checkpoints"}
_NO_LICENCE = "not stated: ask the authors of the model and check the terms of its data before you redistribute it"


class Written(NamedTuple):
    """What an export has written in place of the model.

    Attributes:
        layers: `site.layer` → the attention in place of the model's.
        positions: number of parameters of sinusoidal positions in the file, which the model computes.
        half: whether the weights are stored in half precision.
    """

    layers: Mapping[str, Any] = {}
    positions: int = 0
    half: bool = False


def write_companion_files(
    source: Source, folder: str, engine: str, title: str, usage: List[str], written: Written
) -> None:
    """Write dictionaries, subword model, record, card and README next to the files of the engine.

    Args:
        engine: the engine that computes the exported model.
        title, usage, written: see :func:`readme`.
    """
    files = dict(source.files)
    if source.record is not None:
        files["record.json"] = source.record
    for name, path in files.items():
        with open(path, "rb") as stream, open(os.path.join(folder, name), "xb") as copy:
            shutil.copyfileobj(stream, copy)
    names = sorted({*os.listdir(folder)} - {"record.json"})
    checksums = {name: sha256(os.path.join(folder, name)) for name in names}
    write_json(asdict(replace(source.card, engine=engine, files=checksums)), os.path.join(folder, CARD))
    with open(os.path.join(folder, "README.md"), "x", encoding="utf-8") as stream:
        stream.write(readme(source, engine, title, usage, written))
    Tokenizer(folder, read_card(folder))  # raises an error if a file cannot be used


def readme(source: Source, engine: str, title: str, usage: List[str], written: Written) -> str:
    """The README in Markdown.

    Args:
        engine: the engine that computes the exported model.
        title: title of the page.
        usage: lines on how to use the model, in which DIR stands for the folder.
        written: how the exported model differs from the model.
    """
    card = source.card
    vocabulary = _VOCABULARIES[card.subwords]
    if card.moses:
        dashes = "hyphenated words whole" if card.moses_no_dash_splits else f"hyphenated words split by `{card.hyphen}`"
        escapes = "special characters not escaped" if card.moses_no_escape else "special characters escaped"
        vocabulary += f", tokenised with Moses ({dashes}, {escapes})"
    if card.lowercase:
        vocabulary += ", lower-cased"
    origin = ", ".join(phrase.format(card.made_from[key]) for key, phrase in _ORIGIN.items() if key in card.made_from)
    name, scores, sections = _record(source)
    lines = [
        f"# {title}, {card.source_lang} to {card.target_lang}",
        "",
        f"- vocabulary: {vocabulary}",
        *_architecture(source, written),
        f"- checkpoint: {origin}",
        *["- weights in half precision"] * written.half,
        f"- licence: {card.licence or _NO_LICENCE}",
        "",
        "## Use",
        "",
        "DIR is this folder.",
        "",
        *usage,
        *sections,
    ]
    return metadata(card, engine, name or card.made_from.get("file", title), scores) + "\n".join(lines) + "\n"


def _record(source: Source) -> Tuple[str, List[Score], List[str]]:
    """Name, scores and sections of the README from the record of a model; of none: nothing."""
    path = source.record
    if path is None:
        return "", [], []
    try:
        with open(path, encoding="utf-8") as stream:
            record = json.load(stream)
        _check_record(record, source, path)
        scores, lines = _results(record["parts"])
        return record["name"], scores, [*lines, *_origin(record)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a record of this project ({type(error).__name__})") from error


def _check_record(record: Mapping[str, Any], source: Source, path: str) -> None:
    """Raise UserError if the record, whose scores are shown, is of another checkpoint."""
    output, origin = record["parts"].get("output"), source.card.made_from
    averaged = (source.trained.state.get("extra_state") or {}).get("averaged_from")
    recorded = record["settings"].get("averaged_from") or ()
    if output and output["sha256"] != origin.get("sha256", output["sha256"]):
        raise UserError(f"{path} must be the record of this checkpoint; got that of {output['file']}, another file")
    same = not averaged or {each["sha256"] for each in averaged} == {each["sha256"] for each in recorded}
    if not output and not (same and len(recorded) == (origin.get("averaged") or 0)):  # a model folder keeps the number
        raise UserError(f"{path} must be the record of this checkpoint; got that of another average")


def _architecture(source: Source, written: Written) -> List[str]:
    """The size of the exported model and the attention of every site; those of the model if they differ."""
    with swapped(source.model, written.layers):
        parameters, attention = _parameters(source.model) + written.positions, _attention(source.model)
    positions = f", of which {written.positions:,} are fixed positions" if written.positions else ""
    lines = [f"- transformer with {parameters:,} parameters{positions}"]
    for side in ("encoder", "decoder"):
        sizes = getattr(source.config, side)
        dimensions = f"d_model {sizes.embed_dim}, feed-forward {sizes.ffn_embed_dim}"
        lines.append(f"- {side}: {sizes.layers} layers, {dimensions}")
    lines += [f"- attention of {line}" for line in attention]
    original, original_attention = _parameters(source.model), _attention(source.model)
    if original_attention != attention:
        lost = ": this format does not keep the reduction" if original < parameters - written.positions else ""
        lines.append(f"- made from a model with {original:,} parameters{lost}")
        lines += [f"  - attention of {line}" for line in original_attention]
    return lines


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _attention(model: Any) -> List[str]:
    """Sites or layers, and a summary of their attention."""
    lines = []
    summaries = {layer_id: layer.summary() for layer_id, layer in attention_layers(model).items()}
    for summary in dict.fromkeys(summaries.values()):
        names: List[str] = []
        for site in SITES:
            of_site = [layer_id for layer_id in summaries if layer_id.startswith(f"{site}.")]
            alike = [layer_id for layer_id in of_site if summaries[layer_id] == summary]
            names += [site] if alike == of_site != [] else alike
        lines.append(f"{', '.join(names)}: {summary}")
    return lines


def _results(parts: Dict[str, Any]) -> Tuple[List[Score], List[str]]:
    """Scores, and the tables of scores and losses, of a training run or a conversion."""
    scores, bleu, losses = [], [], []
    for test, evaluation in parts.get("scores", {}).items():
        for score in evaluation["scores"]:
            if score["metric"] == "sacreBLEU":
                scores.append(Score(test, score["score"], score["signature"]))
                bleu.append([test, f"{score['score']:.2f}"])
    for name, values in parts.get("losses", {}).items():
        losses.append([name, f"{values['loss']:.4f}", f"{values['nll_loss']:.4f}"])
    for name, values in parts.get("evaluation", {}).items():  # of a conversion
        if name.startswith("BLEU "):
            scores.append(Score(name.removeprefix("BLEU "), values["after"], values["signature"]))
            bleu.append([scores[-1].test_set, f"{values['before']:.2f} → {values['after']:.2f}"])
        else:
            losses.append([name, f"{values['before']:.4f} → {values['after']:.4f}", "–"])
    lines = []
    if scores:
        table = pages.table([["test set", "sacreBLEU"], *bleu], numbers=True)
        lines += ["", "## Scores", "", "Of the checkpoint, before this export:", "", table, ""]
        lines.append(f"Signature: {', '.join(dict.fromkeys(f'`{score.signature}`' for score in scores))}")
    if losses:
        header = ["data", "loss (bits per token)", "without label smoothing"]
        lines += ["", pages.table([header, *losses], numbers=True)]
    return scores, lines


def _origin(record: Dict[str, Any]) -> List[str]:
    """The command of the record, where it ran, and checksums of its data."""
    versions, hardware = record["versions"], record["hardware"]
    gpus = ", ".join(gpu["name"] for gpu in hardware["gpus"])
    machine = gpus if hardware["device"] == "gpu" else hardware["cpu"]
    programs = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "fairseq"))
    about = f"{record['name']}, {record['created'][:10]}, on {machine}; {programs}"
    if record["commit"]["id"]:
        about += f"; commit {record['commit']['id']}"
    lines = ["", "## Origin", "", about, "", "```bash", record["command"], "```"]
    checksums = record["settings"].get("data")
    if checksums:
        rows = [f"{digest}  {file}" for file, digest in checksums.items()]
        lines += ["", "SHA-256 checksums of the data:", "", "```", *rows, "```"]
    return lines

"""What an exported folder has beside its weights; its README: what the model is, how good, made of what, how used.

Scores, losses, the training and its data are those of the model's record; what no record says is left out.
"""

import json
import os
import shutil
from dataclasses import asdict, replace
from typing import Any, Dict, Iterator, List

from collab_fairseq.attention import SITES
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation.tokenizer import CARD, Tokenizer, read_card
from fairseq_modern.errors import UserError

from .source import Source, write_json

_SUBWORDS = {"sentencepiece": "SentencePiece", "subword_nmt": "BPE", None: "words"}
_NO_LICENCE = "not stated: ask those who trained the model, and see the terms of its data, before you share it"


def write_text_side(source: Source, folder: str, engine: str, title: str, *use: str) -> None:
    """What every exported folder has besides weights: card, dictionaries, subword model, record, and a README.

    Args:
        title, use: of :func:`readme`.
    """
    files = {**source.files, **({"record.json": source.record} if source.record is not None else {})}
    for name, path in files.items():
        with open(path, "rb") as stream, open(os.path.join(folder, name), "xb") as copy:
            shutil.copyfileobj(stream, copy)
    card = replace(source.card, engine=engine)
    write_json(asdict(card), os.path.join(folder, CARD))
    with open(os.path.join(folder, "README.md"), "x", encoding="utf-8") as stream:
        stream.write(readme(source, title, *use))
    Tokenizer(folder, read_card(folder))  # what cannot be opened is found out now


def readme(source: Source, title: str, *use: str) -> str:
    """Markdown.

    Args:
        title: of the page. use: lines that say how the model is used, in which DIR stands for the folder.

    Raises:
        UserError: the model's record is none.
    """
    card = source.card
    about = [
        f"text as {_SUBWORDS[card.subwords]}{', tokenised with Moses' * card.moses}{', lower-cased' * card.lowercase}",
        *_model(source),
        f"made from: {', '.join(f'{key} {value}' for key, value in card.made_from.items())}",
        f"licence: {card.licence or _NO_LICENCE}",
    ]
    lines = [f"# {title}, {card.source_lang} to {card.target_lang}", "", *(f"- {line}" for line in about)]
    lines += ["", "## Use", "", *use]
    if source.record is not None:
        try:
            with open(source.record, encoding="utf-8") as stream:
                record = json.load(stream)
            lines += [*_results(record["parts"]), *_origin(record)]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{source.record} is not a record of this project ({type(error).__name__})") from error
    return "\n".join(lines) + "\n"


def _model(source: Source) -> Iterator[str]:
    """Sizes, and the heads of every site."""
    encoder, decoder = source.config.encoder, source.config.decoder
    sizes = [f"{s.layers} layers of width {s.embed_dim} (feed-forward {s.ffn_embed_dim})" for s in (encoder, decoder)]
    number = sum(parameter.numel() for parameter in source.model.parameters())
    yield f"a transformer; encoder: {sizes[0]}, decoder: {sizes[1]}; {number:,} parameters"
    kinds: Dict[str, List[str]] = {}
    layers = attention_layers(source.model)
    for place, layer in layers.items():
        kinds.setdefault(layer.summary(), []).append(place)
    for kind, places in kinds.items():
        names: List[str] = []
        for site in SITES:
            own = [place for place in layers if place.startswith(f"{site}.")]
            alike = [place for place in own if place in places]
            names += [site] if alike and alike == own else alike
        yield f"attention of {', '.join(names)}: {kind}"


def _results(parts: Dict[str, Any]) -> Iterator[str]:
    """Scores and losses of a training or a conversion."""
    rows = [
        (test, f"{score['score']:.2f}", score["signature"])
        for test, scored in parts.get("scores", {}).items()
        for score in scored["scores"]
        if score["metric"] == "sacreBLEU"
    ]
    losses = [
        (name, f"{found['loss']:.4f}", f"{found['nll_loss']:.4f}") for name, found in parts.get("losses", {}).items()
    ]
    for name, found in parts.get("evaluation", {}).items():  # of a conversion, before and after it
        value = " → ".join(f"{found[when]:.{2 if 'BLEU' in name else 4}f}" for when in ("before", "after"))
        if name.startswith("BLEU "):
            rows.append((name.removeprefix("BLEU "), value, found["signature"]))
        else:
            losses.append((name, value, "–"))
    if rows:
        yield from ("", "## Scores", "", "| test set | sacreBLEU |", "|---|---:|")
        yield from (f"| {test} | {value} |" for test, value, _ in rows)
        yield from ("", f"Signature: {', '.join(f'`{each}`' for each in dict.fromkeys(row[2] for row in rows))}")
    if losses:
        yield from ("", "| set | loss, bits a token | without label smoothing |", "|---|---:|---:|")
        yield from (f"| {' | '.join(row)} |" for row in losses)


def _origin(record: Dict[str, Any]) -> Iterator[str]:
    """The command of the record, where it ran, and the sums of its data."""
    versions, hardware = record["versions"], record["hardware"]
    machine = ", ".join(gpu["name"] for gpu in hardware["gpus"]) if hardware["device"] == "gpu" else hardware["cpu"]
    programs = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "fairseq"))
    commit = f"; commit {record['commit']['id']}" if record["commit"]["id"] else ""
    about = f"{record['name']}, {record['created'][:10]}, on {machine}; {programs}{commit}"
    yield from ("", "## Origin", "", about, "", "```bash", record["command"], "```")
    if sums := record["settings"].get("data"):
        files = (f"{value}  {file}" for file, value in sums.items())
        yield from ("", "Data, with their SHA-256:", "", "```", *files, "```")

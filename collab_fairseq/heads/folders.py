"""Hugging Face models in their folders: heads ranked, ablated and decomposed as those of fairseq's models are."""

import itertools
import json
import math
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import torch

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import Heads
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import score_raw

from . import HeadsError
from .ablation import measure_all
from .evaluation import Result, Search, compare, recorded
from .huggingface import Encoded, answers, without
from .redundancy import HeadWeights
from .taps import counts


class Example(NamedTuple):
    """One or two texts, and either a label or a translation."""

    texts: Sequence[str]
    label: Any


class Loaded(NamedTuple):
    """A model, its tokenizer, the places of its heads, its text, and that text in batches."""

    model: Any
    tokenizer: Any
    places: Dict[str, Any]
    examples: List[Example]
    batches: List[Encoded]

    @property
    def translates(self) -> bool:
        """Whether its labels are texts."""
        return translates(self.model)


def translates(model: Any) -> bool:
    """Whether its labels are texts."""
    return bool(model.config.is_encoder_decoder)


def _room(path: str) -> Any:
    try:
        import transformers  # noqa: F401  (whether it is there)

        from collab_fairseq import huggingface
    except ImportError as error:
        raise HeadsError(
            f"{path} is a folder, so a Hugging Face model, and these need transformers: "
            "install this project with its extra `huggingface`"
        ) from error
    return huggingface


def load(
    path: str,
    text: PathLike,
    fields: Sequence[str] = ("text",),
    label: str = "label",
    *,
    sentences: Optional[int] = None,
    batch_size: int = 32,
    device: str = "cpu",
) -> Loaded:
    """The model of a folder with text.

    Args:
        text, fields, label, sentences: see :func:`read_examples`.

    Raises:
        HeadsError: transformers is not installed, the model neither classifies nor translates, or the text cannot be
            read. ReparamError: an architecture that is not known. CheckpointError: parameters that are not finite.
    """
    known = _room(path)
    from transformers import AutoTokenizer

    model = known.load_folder(path)
    if not (translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise HeadsError(
            f"{path} holds a {type(model).__name__}, expected a model for sequence classification or "
            "translation, whose loss on a text is known from its label"
        )
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model.to(device)
    examples = read_examples(text, fields, label, sentences)
    batches = list(encode(model, tokenizer, examples, batch_size))
    return Loaded(model, tokenizer, known.head_places(model), examples, batches)


def read_weights(path: str) -> Dict[str, HeadWeights]:
    """Place → weights, as :func:`.redundancy.read_weights`, of the model of a folder."""
    known = _room(path)
    model = known.load_folder(path)
    found = {}
    for place, (_, scores) in zip(known.head_places(model), known.score_weights(model), strict=True):
        query, key, mixing = scores.heads.to(torch.float64)
        found[place] = HeadWeights(query, key, mixing, bool((mixing.count_nonzero(0) > 1).any()))
    return found


def read_examples(
    path: PathLike, fields: Sequence[str], label: str, sentences: Optional[int] = None
) -> List[Example]:
    """Examples from a file of JSON objects, one a line.

    Args:
        fields: names of the one or two texts. label: name of the label, or of the translation.
        sentences: only the first so many.

    Raises:
        HeadsError: the file cannot be read, or the line that lacks a field.
    """
    name, found = os.fspath(path), []
    try:
        with open(path, encoding="utf-8-sig") as stream:
            rows = [json.loads(line) for line in itertools.islice(stream, sentences)]
    except (OSError, ValueError) as error:
        raise HeadsError(f"cannot read {name} as JSON objects, one a line: {error}") from error
    for number, row in enumerate(rows, 1):
        there = list(row) if isinstance(row, dict) else []
        absent = [field for field in (*fields, label) if field not in there]
        if absent:
            got = ", ".join(there) or f"no object but {type(row).__name__}"
            raise HeadsError(f"{name}, line {number}: expected the field {absent[0]}, got {got}")
        found.append(Example([row[field] for field in fields], row[label]))
    if not found:
        raise HeadsError(f"{name} has no examples")
    return found


def encode(model: Any, tokenizer: Any, examples: Sequence[Example], batch_size: int) -> Iterator[Encoded]:
    """The examples in batches, in their order, on the model's device."""
    options = {"padding": True, "truncation": True, "return_tensors": "pt"}
    for start in range(0, len(examples), batch_size):
        rows = examples[start : start + batch_size]
        inputs = dict(tokenizer(*(list(side) for side in zip(*(row.texts for row in rows), strict=True)), **options))
        source, labels = int(inputs["attention_mask"].sum()), [row.label for row in rows]
        if translates(model):
            target = tokenizer(text_target=labels, **options)
            inputs["labels"] = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
            counted = int((inputs["labels"] != -100).sum())
        else:
            kind = torch.float32 if model.config.num_labels == 1 else torch.int64
            inputs["labels"], counted = torch.tensor(labels, dtype=kind), len(rows)
        yield Encoded({k: v.to(model.device) for k, v in inputs.items()}, len(rows), source, counted)


def translations(loaded: Loaded, search: Search, heads: Optional[Heads] = None) -> List[str]:
    """What a model without some heads makes of each example."""
    found: List[str] = []
    options = {"num_beams": search.beam, "length_penalty": search.lenpen, "do_sample": False}
    with without(loaded.model, loaded.places, heads):
        for batch in loaded.batches:
            inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "labels"}
            tokens = loaded.model.generate(**inputs, **options)
            found += loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return found


def ablate(
    loaded: Loaded,
    record: Record,
    *,
    search: Search = Search(),  # noqa: B008  (frozen)
    samples: int = 1000,
    **options: Any,
) -> None:
    """Fill the record as :func:`.ablation.ablate` does; the one test set is called ``text``.

    Translations are compared by BLEU, classes by accuracy (:func:`compare_answers`).

    Raises:
        HeadsError: a model that predicts a number.
    """
    model, labels = loaded.model, [example.label for example in loaded.examples]
    if loaded.translates:

        def translate(heads: Optional[Heads] = None) -> Result:
            scored = score_raw(translations(loaded, search, heads), labels, tokenised=False)
            return Result(scored.bleu.score, scored.bleu.signature, scored.statistics)

        whole = recorded(record, "text", translate)

        def measure(heads: Heads) -> Dict[str, Any]:
            return compare(translate(heads), whole, samples)
    else:
        if model.config.num_labels == 1:
            raise HeadsError(f"{model.name_or_path} predicts a number, but accuracy needs two or more classes")

        def right(heads: Optional[Heads] = None) -> List[bool]:
            found = answers(model, loaded.places, loaded.batches, heads)
            return [answer == label for answer, label in zip(found, labels, strict=True)]

        def all_heads() -> Dict[str, Any]:
            found = right()
            return {"score": 100 * sum(found) / len(found), "right": "".join("01"[one] for one in found)}

        before = [mark == "1" for mark in record.part("whole/text", all_heads)["right"]]

        def measure(heads: Heads) -> Dict[str, Any]:
            return compare_answers(right(heads), before)

    measure_all(record, "text", counts(loaded.places), measure, **options)


def compare_answers(right: Sequence[bool], whole: Sequence[bool]) -> Dict[str, float]:
    """``accuracy`` in %, ``difference`` to the whole model's, and the p of McNemar's exact test, two-sided.

    McNemar (1947), https://doi.org/10.1007/BF02295996: of the examples that only one of two models gets right, each is
    as likely to be the one's as the other's.
    """
    won = sum(a and not b for a, b in zip(right, whole, strict=True))
    lost = sum(b and not a for a, b in zip(right, whole, strict=True))
    tail = sum(math.comb(won + lost, number) for number in range(min(won, lost) + 1))
    return {
        "accuracy": 100 * sum(right) / len(right),
        "difference": 100 * (won - lost) / len(right),
        "p_value": min(1.0, 2 * tail / 2 ** (won + lost)),
    }

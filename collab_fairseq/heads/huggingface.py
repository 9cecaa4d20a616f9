"""Hugging Face models in their folders, as importance, ablation and redundancy read them."""

import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors
from collab_fairseq.checkpoints import PathLike, check_finite
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import read_lines, score_raw
from collab_fairseq.translation.tokenizer import require
from fairseq_modern.errors import UserError

from .ablation import ablate_split, compare, result
from .importance import Batch, measure


class Example(NamedTuple):
    """One or two texts, and either a label or a translation."""

    texts: Sequence[str]
    label: Any


class Encoded(NamedTuple):
    """Tensors of a batch, as the model takes them, with ``labels``; and how many sentences and tokens it has."""

    inputs: Dict[str, Tensor]
    sentences: int
    source_tokens: int
    target_tokens: int


class Loaded(NamedTuple):
    """A model in evaluation mode, its tokenizer, its layers by layer_id, its text, and that text in batches."""

    model: Any
    tokenizer: Any
    layers: Dict[str, Any]
    examples: List[Example]
    batches: List[Encoded]


def translates(model: Any) -> bool:
    """Whether its labels are texts."""
    return bool(model.config.is_encoder_decoder)


def _open(path: str) -> Tuple[Any, Any]:
    """:mod:`collab_fairseq.huggingface`, and the model of a folder as it was saved."""
    adapters = require("collab_fairseq.huggingface", "huggingface")
    model = adapters.from_pretrained(path, local_files_only=True)
    check_finite(dict(model.named_parameters()), path)
    return adapters, model


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
    """The model of a folder with text; for ``fields``, ``label`` and ``sentences`` see :func:`read_examples`.

    Raises:
        UserError: the model neither classifies nor translates, or text or labels that are none.
        UserError: the text cannot be read. TranslationError: transformers is missing or too old.
        ReparamError: an architecture that is not known.
        CheckpointError: parameters that are not finite.
    """
    adapters, model = _open(path)
    from transformers import AutoTokenizer

    if not (translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise UserError(
            f"{path} holds a {type(model).__name__}, expected a model for sequence classification or "
            "translation, whose loss on a text is known from its label"
        )
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model.to(device)
    examples = read_examples(text, fields, label, sentences)
    check_labels(model, examples, os.fspath(text))
    batches = list(encode(model, tokenizer, examples, batch_size))
    return Loaded(model, tokenizer, adapters.head_layers(model), examples, batches)


def read_weights(path: str) -> Dict[str, HeadFactors]:
    """:func:`.redundancy.read_weights` of the model of a folder."""
    adapters, model = _open(path)
    weights = zip(adapters.head_layers(model), adapters.score_weights(model), strict=True)
    return {layer_id: scores.heads.to(torch.float64) for layer_id, (_, scores) in weights}


def read_examples(path: PathLike, fields: Sequence[str], label: str, sentences: Optional[int] = None) -> List[Example]:
    """Examples from a file of JSON objects, one per line.

    Args:
        fields: names of the one or two texts. label: name of the label, or of the translation.
        sentences: only the first N.

    Raises:
        UserError: the line that is no JSON, or lacks a field. UserError: the file cannot be read.
    """
    name = os.fspath(path)
    examples = []
    for number, line in enumerate(read_lines(path, "the examples")[:sentences], 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{name}, line {number}: expected a JSON object, got {line[:40]!r}") from error
        names = list(row) if isinstance(row, dict) else []
        for field in (*fields, label):
            if field not in names:
                got = ", ".join(names) or f"no object but {type(row).__name__}"
                raise UserError(f"{name}, line {number}: expected the field {field}, got {got}")
            if field != label and not isinstance(row[field], str):
                raise UserError(f"{name}, line {number}: {field} must be a text; got {row[field]!r}")
        examples.append(Example([row[field] for field in fields], row[label]))
    if not examples:
        raise UserError(f"{name} has no examples")
    return examples


def check_labels(model: Any, examples: Sequence[Example], name: str) -> None:
    """See that all labels are what the model predicts.

    Raises:
        UserError: the first line of the file ``name`` that has another label.
    """
    number = model.config.num_labels
    fits: Callable[[Any], bool]
    if translates(model):
        wanted, fits = "a translation", lambda label: isinstance(label, str)
    elif number == 1:
        wanted, fits = "a number", lambda label: isinstance(label, (int, float))
    else:
        wanted, fits = f"a class from 0 to {number - 1}", lambda label: label in range(number)
    for line, example in enumerate(examples, 1):
        if not fits(example.label):
            raise UserError(f"{name}, line {line}: expected {wanted} as label, got {example.label!r}")


def encode(model: Any, tokenizer: Any, examples: Sequence[Example], batch_size: int) -> Iterator[Encoded]:
    """The examples in batches, in their order, on the model's device."""
    options = {"padding": True, "truncation": True, "return_tensors": "pt"}
    for start in range(0, len(examples), batch_size):
        rows = examples[start : start + batch_size]
        labels = [row.label for row in rows]
        texts = [list(side) for side in zip(*(row.texts for row in rows), strict=True)]
        inputs = dict(tokenizer(*texts, **options))
        source_tokens = int(inputs["attention_mask"].sum())
        if translates(model):
            target = tokenizer(text_target=labels, **options)
            inputs["labels"] = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
            target_tokens = int((inputs["labels"] != -100).sum())
        else:
            dtype = torch.float32 if model.config.num_labels == 1 else torch.int64
            inputs["labels"] = torch.tensor(labels, dtype=dtype)
            target_tokens = len(rows)
        on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        yield Encoded(on_device, len(rows), source_tokens, target_tokens)


def batch_of(model: Any, encoded: Encoded) -> Batch:
    """What importance reads of a batch. The model's own loss is a mean over labels: one, or a translation's tokens."""
    return Batch(
        loss=lambda: model(**encoded.inputs).loss * encoded.target_tokens,
        source=encoded.inputs["input_ids"].shape,
        target=encoded.inputs["labels"].shape,
        source_tokens=encoded.source_tokens,
        target_tokens=encoded.target_tokens,
    )


def importance(model: Any, layers: Mapping[str, Any], batches: Sequence[Encoded]) -> Dict[str, Any]:
    """Importance of all heads, see :func:`.importance.measure`."""
    return measure(model, layers, (batch_of(model, batch) for batch in batches))


@torch.no_grad()
def answers(model: Any, batches: Sequence[Encoded]) -> List[int]:
    """The class that a model in evaluation mode predicts for each example."""
    return [answer for batch in batches for answer in model(**batch.inputs).logits.argmax(-1).tolist()]


def translations(loaded: Loaded, beam: int, lenpen: float) -> List[str]:
    """The model's translation of each example."""
    texts: List[str] = []
    for batch in loaded.batches:
        inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "labels"}
        tokens = loaded.model.generate(**inputs, num_beams=beam, length_penalty=lenpen, do_sample=False)
        texts += loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def ablate(loaded: Loaded, record: Record, *, beam: int = 5, lenpen: float = 1.0, **options: Any) -> None:
    """Fill the record as :func:`.ablation.ablate` does; the one test set is called ``text``.

    Translations are compared by BLEU, classes by accuracy (:func:`compare_answers`).

    Raises:
        UserError: a model that predicts a number.
    """
    labels = [example.label for example in loaded.examples]

    def evaluate_translations() -> Dict[str, Any]:
        return result(score_raw(translations(loaded, beam, lenpen), labels, tokenised=False))

    def evaluate_answers() -> Dict[str, Any]:
        predicted = answers(loaded.model, loaded.batches)
        right = [answer == label for answer, label in zip(predicted, labels, strict=True)]
        return {"score": 100 * sum(right) / len(right), "right": "".join("01"[one] for one in right)}

    if translates(loaded.model):
        ablate_split(record, "text", loaded.layers, evaluate_translations, compare, **options)
    elif loaded.model.config.num_labels == 1:
        raise UserError(f"{loaded.model.name_or_path} predicts a number, but accuracy needs two or more classes")
    else:
        ablate_split(record, "text", loaded.layers, evaluate_answers, compare_answers, **options)


def compare_answers(system: Mapping[str, Any], whole: Mapping[str, Any]) -> Dict[str, float]:
    """``accuracy`` in %, ``difference`` to the whole model's, and the p of McNemar's exact test, two-sided.

    McNemar (1947), https://doi.org/10.1007/BF02295996: of the examples that only one of two models gets right, each is
    as likely to be the one's as the other's.

    Args:
        system, whole: results whose ``right`` has a 1 for every example with the right answer, else a 0.
    """
    stats = require("scipy.stats", "huggingface")
    pairs = list(zip(system["right"], whole["right"], strict=True))
    won, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
    return {
        "accuracy": 100 * system["right"].count("1") / len(pairs),
        "difference": 100 * (won - lost) / len(pairs),
        # binomtest needs at least one trial
        "p_value": float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0,
    }

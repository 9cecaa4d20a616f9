"""Hugging Face models in their folders: heads ranked, ablated and decomposed as those of fairseq's models are.

A model comes with the places of its heads, place (``encoder.0``, ``cross.3``, …) → where they can be reached
(:func:`collab_fairseq.huggingface.head_places`). A layer that is used several times (ALBERT) has one multiplier
for all its uses.
"""

import contextlib
import json
import math
import os
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors
from collab_fairseq.checkpoints import PathLike, check_finite
from collab_fairseq.modules.heads import Heads
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import read_lines, score_raw
from collab_fairseq.translation.tokenizer import require

from . import HeadsError
from .ablation import compare, measure_all, result
from .importance import Gradients, means
from .attention_hooks import counts, frozen, masks


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
    """A model, its tokenizer, the places of its heads, its text, and that text in batches."""

    model: Any
    tokenizer: Any
    places: Dict[str, Any]
    examples: List[Example]
    batches: List[Encoded]


def translates(model: Any) -> bool:
    """Whether its labels are texts."""
    return bool(model.config.is_encoder_decoder)


def _open(path: str) -> Tuple[Any, Any]:
    """:mod:`collab_fairseq.huggingface`, and the model of a folder as it was saved."""
    known = require("collab_fairseq.huggingface", "huggingface")
    model = known.from_pretrained(path, local_files_only=True)
    check_finite(dict(model.named_parameters()), path)
    return known, model


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
        HeadsError: the model neither classifies nor translates, or text or labels that are none.
        ScoringError: the text cannot be read. TranslationError: transformers is not there, or too old.
        ReparamError: an architecture that is not known.
        CheckpointError: parameters that are not finite.
    """
    known, model = _open(path)
    from transformers import AutoTokenizer

    if not (translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise HeadsError(
            f"{path} holds a {type(model).__name__}, expected a model for sequence classification or "
            "translation, whose loss on a text is known from its label"
        )
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model.to(device)
    examples = read_examples(text, fields, label, sentences)
    check_labels(model, examples, os.fspath(text))
    batches = list(encode(model, tokenizer, examples, batch_size))
    return Loaded(model, tokenizer, known.head_places(model), examples, batches)


def read_weights(path: str) -> Dict[str, HeadFactors]:
    """:func:`.redundancy.read_weights` of the model of a folder."""
    known, model = _open(path)
    weights = zip(known.head_places(model), known.score_weights(model), strict=True)
    return {place: scores.heads.to(torch.float64) for place, (_, scores) in weights}


def read_examples(path: PathLike, fields: Sequence[str], label: str, sentences: Optional[int] = None) -> List[Example]:
    """Examples from a file of JSON objects, one a line.

    Args:
        fields: names of the one or two texts. label: name of the label, or of the translation.
        sentences: only the first so many.

    Raises:
        HeadsError: the line that is no JSON, or lacks a field. ScoringError: the file cannot be read.
    """
    name, found = os.fspath(path), []
    for number, line in enumerate(read_lines(path, "the examples")[:sentences], 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise HeadsError(f"{name}, line {number}: expected a JSON object, got {line[:40]!r}") from error
        there = list(row) if isinstance(row, dict) else []
        for field in (*fields, label):
            if field not in there:
                got = ", ".join(there) or f"no object but {type(row).__name__}"
                raise HeadsError(f"{name}, line {number}: expected the field {field}, got {got}")
            if field != label and not isinstance(row[field], str):
                raise HeadsError(f"{name}, line {number}: {field} must be a text, but is {row[field]!r}")
        found.append(Example([row[field] for field in fields], row[label]))
    if not found:
        raise HeadsError(f"{name} has no examples")
    return found


def check_labels(model: Any, examples: Sequence[Example], name: str) -> None:
    """Refuse labels that are not what the model predicts.

    Raises:
        HeadsError: the first line of the file ``name`` that has such a label.
    """
    labels, number = [example.label for example in examples], model.config.num_labels
    if translates(model):
        wanted, fits = "a translation", [isinstance(label, str) for label in labels]
    elif number == 1:
        wanted, fits = "a number", [isinstance(label, (int, float)) for label in labels]
    else:
        wanted, fits = f"a class from 0 to {number - 1}", [label in range(number) for label in labels]
    if not all(fits):
        line = fits.index(False)
        raise HeadsError(f"{name}, line {line + 1}: expected {wanted} as label, got {labels[line]!r}")


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


@contextlib.contextmanager
def multiplied(model: Any, places: Mapping[str, Any], factors: Mapping[str, Tensor]) -> Iterator[None]:
    """The model in evaluation mode, outputs of heads multiplied: place → (H), or (N, H) of every sentence's own."""

    def scale(outputs: Tensor, factor: Tensor) -> Tensor:
        heads = outputs.unflatten(-1, (factor.size(-1), -1))
        by = factor[..., None] if factor.dim() == 1 else factor[:, None, :, None]
        return (heads * by).flatten(-2)

    with contextlib.ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for name, factor in factors.items():
            output = places[name].output
            handle = output.register_forward_pre_hook(lambda _, given, f=factor: (scale(given[0], f),))
            stack.callback(handle.remove)
        yield


def importance(model: Any, places: Mapping[str, Any], batches: Sequence[Encoded]) -> Dict[str, Any]:
    """I_h = E_x |∂L(x)/∂ξ_h|, the model in evaluation mode; see :func:`.importance.means`.

    L(x) is the model's own loss of example x, summed over its labels: one, or the tokens of the translation.
    """
    return means((gradients(model, places, batch), batch[1:]) for batch in batches)


def gradients(model: Any, places: Mapping[str, Any], batch: Encoded) -> Gradients:
    """∂L/∂ξ, place → (N, H), of a batch of N sentences."""
    like = {"device": model.device, "dtype": model.dtype, "requires_grad": True}
    ones = {name: torch.ones(batch.sentences, place.num_heads, **like) for name, place in places.items()}
    with torch.enable_grad(), frozen(model), multiplied(model, places, ones):
        loss = model(**batch.inputs).loss * batch.target_tokens  # it is a mean over labels
        return dict(zip(ones, torch.autograd.grad(loss, list(ones.values())), strict=True))


@contextlib.contextmanager
def without(model: Any, places: Mapping[str, Any], heads: Optional[Heads]) -> Iterator[None]:
    """The model in evaluation mode without some heads."""
    factors = masks(heads or {}, places, device=model.device, dtype=model.dtype)
    with torch.no_grad(), multiplied(model, places, factors):
        yield


def answers(
    model: Any, places: Mapping[str, Any], batches: Sequence[Encoded], heads: Optional[Heads] = None
) -> List[int]:
    """The class that a model without some heads predicts for each example."""
    with without(model, places, heads):
        return [answer for batch in batches for answer in model(**batch.inputs).logits.argmax(-1).tolist()]


def ablate(loaded: Loaded, record: Record, *, beam: int = 5, lenpen: float = 1.0, **options: Any) -> None:
    """Fill the record as :func:`.ablation.ablate` does; the one test set is called ``text``.

    Translations are compared by BLEU, classes by accuracy (:func:`compare_answers`).

    Raises:
        HeadsError: a model that predicts a number.
    """
    model, labels = loaded.model, [example.label for example in loaded.examples]

    def translated(heads: Optional[Heads] = None) -> Dict[str, Any]:
        found: List[str] = []
        with without(model, loaded.places, heads):
            for batch in loaded.batches:
                inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "labels"}
                tokens = model.generate(**inputs, num_beams=beam, length_penalty=lenpen, do_sample=False)
                found += loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return result(score_raw(found, labels, tokenised=False))

    def answered(heads: Optional[Heads] = None) -> Dict[str, Any]:
        found = answers(model, loaded.places, loaded.batches, heads)
        right = [answer == label for answer, label in zip(found, labels, strict=True)]
        return {"score": 100 * sum(right) / len(right), "right": "".join("01"[one] for one in right)}

    if not translates(model) and model.config.num_labels == 1:
        raise HeadsError(f"{model.name_or_path} predicts a number, but accuracy needs two or more classes")
    evaluate = translated if translates(model) else answered
    whole = record.part("whole/text", evaluate)

    def measure(heads: Heads) -> Dict[str, Any]:
        found = evaluate(heads)
        return compare(found, whole) if translates(model) else compare_answers(found["right"], whole["right"])

    measure_all(record, "text", counts(loaded.places), measure, **options)


def compare_answers(right: str, whole: str) -> Dict[str, float]:
    """``accuracy`` in %, ``difference`` to the whole model's, and the p of McNemar's exact test, two-sided.

    McNemar (1947), https://doi.org/10.1007/BF02295996: of the examples that only one of two models gets right, each is
    as likely to be the one's as the other's.

    Args:
        right, whole: a 1 for every example that is answered right, else a 0.
    """
    pairs = Counter(zip(right, whole, strict=True))
    won, lost = pairs["1", "0"], pairs["0", "1"]
    tail = sum(math.comb(won + lost, number) for number in range(min(won, lost) + 1))
    return {
        "accuracy": 100 * right.count("1") / len(right),
        "difference": 100 * (won - lost) / len(right),
        "p_value": min(1.0, 2 * tail / 2 ** (won + lost)),
    }

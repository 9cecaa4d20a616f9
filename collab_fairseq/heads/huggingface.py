"""Hugging Face models in redundancy, importance, ablation and pruning: sequence classifiers and Marian."""

import math
import os
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring.references import read_lines, score_raw
from collab_fairseq.translation.tokenizer import require
from fairseq_modern.errors import UserError

from .ablation import Evaluated, bleu_result, compare
from .importance import Batch, measure

#: keyword arguments of the model for N examples, with ``labels``
Inputs = Dict[str, Tensor]


class Loaded(NamedTuple):
    """A model with labelled examples.

    Attributes:
        model: in evaluation mode. layers: layer_id → attention.
        labels: classes, numbers or translations. batches: the examples with their labels.
        available: number of examples in the file.
    """

    model: Any
    tokenizer: Any
    layers: Dict[str, Any]
    labels: List[Any]
    batches: List[Inputs]
    available: int


def translates(model: Any) -> bool:
    return bool(model.config.is_encoder_decoder)


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
    """The model of a folder with examples from a file of JSON objects, one per line.

    Args:
        fields: names of the one or two texts. label: name of the label or translation.
        sentences: only the first N examples.
    """
    if len(fields) not in (1, 2):
        raise UserError(f"--fields must be one or two names; got {','.join(fields)}")
    adapters = require("collab_fairseq.huggingface", "huggingface")
    model = adapters.load_folder(path)
    if not (translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise UserError(
            f"{path} must be a model for sequence classification or translation; got {type(model).__name__}"
        )
    adapters.check_labels(model, path)
    tokenizer = adapters.load_tokenizer(path)
    model.to(device, torch.promote_types(model.dtype, torch.float32))
    lines = read_lines(text, "the examples")
    texts, labels = adapters.read_examples(lines[:sentences], os.fspath(text), fields, label, model)
    batches = list(encode(model, tokenizer, texts, labels, batch_size))
    adapters.check_tokens(tokenizer, batches, os.fspath(text))
    return Loaded(model, tokenizer, adapters.head_layers(model), labels, batches, len(lines))


def read_weights(path: str) -> Dict[str, HeadFactors]:
    """:func:`.redundancy.read_weights` for the model of a folder."""
    adapters = require("collab_fairseq.huggingface", "huggingface")
    model = adapters.load_folder(path)
    layer_ids, weights = adapters.head_layers(model), adapters.score_weights(model)
    return {layer_id: scores.heads.to(torch.float64) for layer_id, (_, scores) in zip(layer_ids, weights, strict=True)}


def encode(
    model: Any, tokenizer: Any, texts: Sequence[Sequence[str]], labels: Sequence[Any], batch_size: int
) -> Iterator[Inputs]:
    """The batches of :func:`.text_batches` with labels."""
    text_batches = require("collab_fairseq.huggingface", "huggingface").text_batches
    if translates(model):
        encoded = text_batches(model, tokenizer, [(text,) for text in labels], batch_size, ("text_target",))
        targets = (each["input_ids"].masked_fill(each["attention_mask"] == 0, -100) for each in encoded)
    else:
        dtype = torch.float32 if model.config.num_labels == 1 else torch.int64
        targets = torch.tensor(labels, dtype=dtype, device=model.device).split(batch_size)
    for inputs, target in zip(text_batches(model, tokenizer, texts, batch_size), targets, strict=True):
        yield {**inputs, "labels": target}


def batch_of(model: Any, inputs: Inputs) -> Batch:
    """The batch for :func:`.importance.measure`; the loss of the model is a mean over labels."""
    labels = inputs["labels"]
    target_tokens = int((labels != -100).sum()) if translates(model) else len(labels)
    return Batch(
        loss=lambda: model(**inputs).loss * target_tokens,
        source=inputs["input_ids"].shape,
        target=labels.shape,
        source_tokens=int(inputs["attention_mask"].sum()),
        target_tokens=target_tokens,
    )


def importance(loaded: Loaded) -> Dict[str, Any]:
    """Importance of all heads, see :func:`.importance.measure`."""
    return measure(loaded.model, loaded.layers, (batch_of(loaded.model, inputs) for inputs in loaded.batches))


@torch.no_grad()
def predictions(model: Any, batches: Sequence[Inputs]) -> List[int]:
    """The predicted class of each example."""
    classes: List[int] = []
    for inputs in batches:
        classes += model(**inputs).logits.argmax(-1).tolist()
    return classes


def translations(loaded: Loaded, beam: int, lenpen: float) -> List[str]:
    """The translation of each example."""
    texts: List[str] = []
    for batch in loaded.batches:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        tokens = loaded.model.generate(**inputs, num_beams=beam, length_penalty=lenpen, do_sample=False)
        texts += loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def evaluated(loaded: Loaded, beam: int = 5, lenpen: float = 1.0) -> Evaluated:
    """The model with its BLEU or accuracy on the test set ``text``.

    Raises:
        UserError: the model predicts a number.
    """

    def evaluate_translations() -> Dict[str, Any]:
        code = getattr(loaded.tokenizer, "target_lang", None) or ""
        return bleu_result(score_raw(translations(loaded, beam, lenpen), loaded.labels, code, tokenised=False))

    def evaluate_classes() -> Dict[str, Any]:
        predicted = predictions(loaded.model, loaded.batches)
        correct = [prediction == label for prediction, label in zip(predicted, loaded.labels, strict=True)]
        constant = 100 * max(Counter(loaded.labels).values()) / len(correct)
        right = "".join("01"[one] for one in correct)
        return {"score": 100 * sum(correct) / len(correct), "right": right, "constant": constant}

    if translates(loaded.model):
        return Evaluated(loaded.layers, {"text": evaluate_translations}, compare, lambda: {"loss": loss(loaded)})
    if loaded.model.config.num_labels == 1:
        raise UserError(f"accuracy needs a model with at least two classes; {loaded.model.name_or_path} has one output")
    return Evaluated(loaded.layers, {"text": evaluate_classes}, compare_answers, lambda: {"loss": loss(loaded)})


@torch.no_grad()
def loss(loaded: Loaded) -> float:
    """Mean loss per example or target token, in bits."""
    batches = [batch_of(loaded.model, inputs) for inputs in loaded.batches]
    return sum(float(batch.loss()) for batch in batches) / sum(batch.target_tokens for batch in batches) / math.log(2)


def compare_answers(system: Mapping[str, Any], baseline: Mapping[str, Any]) -> Dict[str, float]:
    """``accuracy`` and ``difference`` to the baseline in %, and ``p_value`` of McNemar's exact test, two-sided.

    McNemar (1947), https://doi.org/10.1007/BF02295996: under the null hypothesis, an example that only one of the two
    models classifies correctly is equally likely to be either model's. ``right`` is a string with 1 for every correct
    example and 0 for every other.
    """
    stats = require("scipy.stats", "huggingface")
    pairs = list(zip(system["right"], baseline["right"], strict=True))
    won, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
    p_value = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    return {
        "accuracy": 100 * system["right"].count("1") / len(pairs),
        "difference": 100 * (won - lost) / len(pairs),
        "p_value": float(p_value),
    }

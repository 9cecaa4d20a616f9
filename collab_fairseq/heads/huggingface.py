"""Importance and ablation of the heads of Hugging Face models, defined as in importance.py and ablation.py.

A model comes with the places of its heads, place (``encoder.0``, ``cross.3``, …) → where they can be reached
(:func:`collab_fairseq.huggingface.head_places`). A layer that is used several times (ALBERT) has one multiplier
for all its uses.
"""

import contextlib
import json
import math
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import Heads

from .errors import HeadsError
from .importance import Importance
from .taps import frozen


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
    found: List[Example] = []
    try:
        with open(path, encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, 1):
                if sentences is not None and len(found) == sentences:
                    break
                row = json.loads(line)
                absent = [name for name in (*fields, label) if not isinstance(row, dict) or name not in row]
                if absent:
                    there = ", ".join(row) if isinstance(row, dict) else f"no object but {type(row).__name__}"
                    raise HeadsError(f"{os.fspath(path)}, line {number}: expected the field {absent[0]}, got {there}")
                found.append(Example([row[name] for name in fields], row[label]))
    except (OSError, ValueError) as error:
        if isinstance(error, HeadsError):
            raise
        raise HeadsError(f"cannot read {os.fspath(path)} as JSON objects, one a line: {error}") from error
    if not found:
        raise HeadsError(f"{os.fspath(path)} has no examples")
    return found


def encode(model: Any, tokenizer: Any, examples: Sequence[Example], batch_size: int) -> Iterator[Encoded]:
    """The examples in batches, in their order, on the model's device."""
    for start in range(0, len(examples), batch_size):
        rows = examples[start : start + batch_size]
        texts = [list(side) for side in zip(*(row.texts for row in rows), strict=True)]
        inputs = dict(tokenizer(*texts, padding=True, truncation=True, return_tensors="pt"))
        source = int(inputs["attention_mask"].sum())
        if translates(model):
            lines = [row.label for row in rows]
            target = tokenizer(text_target=lines, padding=True, truncation=True, return_tensors="pt")
            inputs["labels"] = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
        else:
            kind = torch.float32 if model.config.num_labels == 1 else torch.int64
            inputs["labels"] = torch.tensor([row.label for row in rows], dtype=kind)
        counted = int((inputs["labels"] != -100).sum()) if translates(model) else len(rows)
        yield Encoded({k: v.to(model.device) for k, v in inputs.items()}, len(rows), source, counted)


def translates(model: Any) -> bool:
    """Whether its labels are texts."""
    return bool(model.config.is_encoder_decoder)


@contextlib.contextmanager
def multiplied(places: Mapping[str, Any], factors: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the contexts of heads: place → (H), or (N, H) of every sentence's own."""

    def scale(contexts: Tensor, factor: Tensor) -> Tensor:
        heads = contexts.unflatten(-1, (factor.size(-1), -1))
        by = factor[..., None] if factor.dim() == 1 else factor[:, None, :, None]
        return (heads * by).flatten(-2)

    with contextlib.ExitStack() as stack:
        for name, factor in factors.items():
            place = places[name]
            if place.output is None:
                handle = place.layer.register_forward_hook(
                    lambda _, __, result, f=factor: (scale(result[0], f), *result[1:])
                )
            else:
                handle = place.output.register_forward_pre_hook(lambda _, given, f=factor: (scale(given[0], f),))
            stack.callback(handle.remove)
        yield


def importance(
    model: Any, places: Mapping[str, Any], batches: Sequence[Encoded], progress: Any = None
) -> Importance:
    """I_h = E_x |∂L(x)/∂ξ_h|, and of collaborative layers E_x |∂L(x)/∂δ_d|, the model in evaluation mode.

    L(x) is the model's own loss of example x, summed over its labels: one, or the tokens of the translation.

    Args:
        batches: of :func:`encode`.
        progress: called with the number of sentences so far.
    """
    sums = {name: torch.zeros(place.num_heads, dtype=torch.float64) for name, place in places.items()}
    dims: Dict[str, Tensor] = {}
    sizes = [0, 0, 0]
    for batch in batches:
        heads, shared = gradients(model, places, batch)
        for name, gradient in heads.items():
            sums[name] += gradient.abs().sum(0).double().cpu()
        for name, gradient in shared.items():
            dims[name] = dims.get(name, 0.0) + gradient.abs().sum(0).double().cpu()
        for number, more in enumerate(batch[1:]):
            sizes[number] += more
        if progress is not None:
            progress(sizes[0])
    return Importance(
        {name: total / sizes[0] for name, total in sums.items()},
        {name: total / sizes[0] for name, total in dims.items()},
        *sizes,
    )


def gradients(model: Any, places: Mapping[str, Any], batch: Encoded) -> Any:
    """∂L/∂ξ, place → (N, H), and ∂L/∂δ, place → (N, D̃k) of collaborative layers, of a batch of N sentences."""
    rows, like = batch.sentences, {"device": model.device, "dtype": model.dtype, "requires_grad": True}
    ones = {name: torch.ones(rows, place.num_heads, **like) for name, place in places.items()}
    deltas = {
        name: torch.ones(rows, place.shared.out_features, **like)
        for name, place in places.items()
        if place.shared is not None
    }
    with contextlib.ExitStack() as stack:
        for context in (frozen(model), evaluating(model), torch.enable_grad(), multiplied(places, ones)):
            stack.enter_context(context)
        for name, delta in deltas.items():
            handle = places[name].shared.register_forward_hook(lambda _, __, query, d=delta: query * d[:, None])
            stack.callback(handle.remove)
        # the loss is a mean over labels
        loss = model(**batch.inputs).loss * batch.target_tokens
        found = iter(torch.autograd.grad(loss, [*ones.values(), *deltas.values()]))
    return {name: next(found) for name in ones}, {name: next(found) for name in deltas}


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as before."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def answers(
    model: Any, places: Mapping[str, Any], batches: Sequence[Encoded], heads: Optional[Heads] = None
) -> List[int]:
    """The class that a model without some heads predicts for each example."""
    found: List[int] = []
    with evaluating(model), multiplied(places, _masks(model, places, heads)):
        for batch in batches:
            found += model(**batch.inputs).logits.argmax(-1).tolist()
    return found


@torch.no_grad()
def translations(
    model: Any,
    tokenizer: Any,
    places: Mapping[str, Any],
    batches: Sequence[Encoded],
    heads: Optional[Heads] = None,
    *,
    beam: int = 5,
    lenpen: float = 1.0,
) -> List[str]:
    """What a model without some heads makes of each example."""
    found: List[str] = []
    with evaluating(model), multiplied(places, _masks(model, places, heads)):
        for batch in batches:
            inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "labels"}
            tokens = model.generate(**inputs, num_beams=beam, length_penalty=lenpen, do_sample=False)
            found += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return found


def _masks(model: Any, places: Mapping[str, Any], heads: Optional[Heads]) -> Dict[str, Tensor]:
    found = {}
    for name, members in (heads or {}).items():
        found[name] = torch.ones(places[name].num_heads, device=model.device, dtype=model.dtype)
        found[name][list(members)] = 0.0
    return found


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

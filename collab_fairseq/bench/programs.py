"""Whole models: training steps, and translation by beam search.

A training step is forward, label-smoothed loss, backward and Adam, with the preset's dropouts. Rows ``fast`` have ours
with ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and ``--fast-dropout`` beside
fairseq's transformer with its own loss and Adam in float32; rows ``fast-bf16`` have ours, and fairseq's once more
(``fairseq-bf16``), under autocast in bfloat16, as with ``--amp``. All their sentences are equally long: fairseq batches
by length, and padding, which the chunked loss leaves out, would flatter it.

Every model translates as in fairseq-generate: ours over shortlists (:mod:`collab_fairseq.search.shortlist`). Untrained,
it would not stop by itself: a batch is translated into as many tokens as its longest source has, by all contestants, so
that all take the same number of steps.
"""

import contextlib
from functools import partial
from typing import Any, Dict, Optional

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.modules.compiled import allow_graphs
from collab_fairseq.search.shortlist import ShortlistGenerator
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.training.fused_adam import FusedAdam

from .measure import SEED, BenchError, Options, Parts, Row, Step
from .models import Task, build, draw, make_batch

#: kind of a training row → its contestants
KINDS = {
    "": ("fairseq", "none", "ours", "authors"), "compiled": ("fairseq", "none", "ours", "authors"),
    "fast": ("fairseq", "ours"), "fast-bf16": ("fairseq", "fairseq-bf16", "ours"), "fast-memory": ("fairseq", "ours"),
}  # fmt: skip


def train(size: str, sentences: int, length: int, key_dim: int, kind: str, options: Options) -> Parts:
    """A step of all models of a kind of row.

    In half precision parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.

    Args:
        size: of :data:`.models.PRESETS`. sentences: pairs of a batch. length: tokens of the longest. kind: of
            :data:`KINDS`. ``compiled``: layers of all contestants, also of fairseq's own, through ``torch.compile``.
    """
    fast, compiled = kind.startswith("fast"), kind == "compiled"
    task = Task(options, size)
    found = build(size, task, key_dim, KINDS[kind], options, fast_dropout=fast, compile=compiled)
    theirs, chunked = (
        criterion(task, sentence_avg=False, label_smoothing=0.1)
        for criterion in (LabelSmoothedCrossEntropyCriterion, ChunkedLabelSmoothedCrossEntropy)
    )
    lengths = [length] * sentences if fast else draw(sentences, longest=length)
    sources, targets = (task.sentences(lengths, SEED + side) for side in (0, 1))
    batch = make_batch(sources, targets, task, options.device)
    if compiled:
        allow_graphs()
        for layer in [*found["fairseq"].encoder.layers, *found["fairseq"].decoder.layers]:  # type: ignore[union-attr,misc]
            layer.compile(dynamic=True)
    steps = {}
    for name, model in found.items():
        half = options.torch_dtype if options.torch_dtype.itemsize < 4 and not fast else None
        if kind == "fast-bf16" and name != "fairseq":
            half = torch.bfloat16
        criterion, optimizer = (chunked, FusedAdam) if fast and name == "ours" else (theirs, Adam)
        steps[name] = _step(model.train(), criterion, optimizer, batch, half)
    return [steps]


def _step(model: nn.Module, criterion: Any, optimizer: Any, batch: Dict[str, Any], half: Optional[torch.dtype]) -> Step:
    """A whole step as fairseq's trainer makes it; ``half``: the type of autocast."""
    made = optimizer(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-8)
    device = batch["target"].device.type

    def step() -> None:
        with torch.autocast(device, half) if half else contextlib.nullcontext():
            loss = criterion(model, batch)[0]
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.div_(batch["ntokens"])  # type: ignore[union-attr]
        made.step()
        made.zero_grad(set_to_none=True)

    return step


def translate(size: str, sentences: int, key_dim: int, half: bool, options: Options) -> Parts:
    """Beam search over ``sentences``, those of like length in a batch as fairseq-generate has them.

    Args:
        half: ours in bfloat16, beside fairseq's in float32 and bfloat16.
    """
    task = Task(options, "tiny")  # with Multi30k's dictionary
    sources = task.sentences(sorted(draw(sentences)))
    names = ("fairseq", "fairseq-bf16" if half else "none", "ours")
    searches = {}
    for name, model in build(size, task, key_dim, names, options).items():
        model.to(torch.bfloat16 if half and name != "fairseq" else options.torch_dtype).eval()
        model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
        searches[name] = ShortlistGenerator([model], task.target_dictionary, beam_size=4, len_penalty=0.6)
    rows = 3 if options.quick else 64
    batches = [make_batch(sources[n : n + rows], None, task, options.device) for n in range(0, sentences, rows)]
    return [{name: partial(_search, search, batch) for name, search in searches.items()} for batch in batches]


def _search(search: Any, batch: Dict[str, Any]) -> None:
    length = batch["net_input"]["src_tokens"].size(1)
    search.max_len_b = search.min_len = length - 1  # without </s>
    if any(len(sentence[0]["tokens"]) != length for sentence in search.generate([], batch)):
        raise BenchError(f"a translation of a batch has not the {length} tokens that all must have")


def train_rows(quick: bool, compiled: bool) -> Dict[str, Row]:
    """The rows of ``collab bench train``; the tiny batch has the 4,096 tokens of recipes/multi30k, nearly."""
    sizes = [("base", 64, 32, 128), ("base", 64, 32, 512), ("tiny", 170, 24, 32)]
    sizes = [("base", 3, 6, 4), ("tiny", 3, 6, 4)] if quick else sizes
    cases = [(case, "compiled" if compiled else "") for case in sizes]
    cases += [(case, kind) for case in (sizes[0], sizes[-1]) for kind in KINDS if kind.startswith("fast")]
    return {
        f"train/{size}/{number}x{length}/dk{dim}" + (f"/{kind}" if kind else ""):
            partial(train, size, number, length, dim, kind)
        for (size, number, length, dim), kind in cases
    }  # fmt: skip


def translate_rows(quick: bool, halves: bool) -> Dict[str, Row]:
    """The rows of whole models in ``collab bench decode``; ``halves``: in bfloat16, too."""
    sizes = [("tiny", 4, 6)] if quick else [("tiny", 32, 1000), ("base", 128, 1000)]
    return {
        f"decode/translate/{size}/{number}/dk{dim}" + ("/bf16" if half else ""):
            partial(translate, size, number, dim, half)
        for half in (False, True)[: 1 + halves] for size, dim, number in sizes
    }  # fmt: skip

"""A training step of whole models: forward, label-smoothed loss, backward, Adam, with the preset's dropouts.

Rows ``fast`` have ours with ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and
``--fast-dropout`` beside fairseq's transformer with its own loss and Adam in float32; rows ``fast-bf16`` have ours, and
fairseq's once more (``fairseq-bf16``), under autocast in bfloat16, as with ``--amp``.

All sentences of their batches are equally long: fairseq batches by length, and padding, which the chunked loss leaves
out, would flatter it.
"""

import contextlib
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.modules.compiled import allow_graphs
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.training.fused_adam import FusedAdam

from .cases import Case, Options, Step, draw
from .checks import compare
from .models import Task, build, make_batch

#: of a row ``fast``: what it measures, and the type of autocast of ours
KINDS = {"fast": ("time", None), "fast-bf16": ("time", torch.bfloat16), "fast-memory": ("memory", None)}


def train_case(size: str, sentences: int, length: int, key_dim: int, compiled: bool = False) -> Case:
    """Models with fairseq's loss and Adam.

    In half precision parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.

    Args:
        size: of :data:`.models.PRESETS`. sentences: pairs of a batch. length: tokens of the longest.
        compiled: layers of all contestants, also of fairseq's own, train through ``torch.compile``.
    """

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, size)
        found = build(size, task, key_dim, ("fairseq", "none", "ours", "authors"), options, compile=compiled)
        criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
        lengths = draw("multi30k" if size == "tiny" else "newstest2014", sentences, options.seed, length)
        batch, small = _batches(task, lengths, options)
        for model in found.values():
            model.to(options.device)
        with torch.no_grad():  # models with the same parameters, without dropout
            losses = {name: criterion(model.eval(), small)[0] for name, model in found.items()}
        for one, other in (("fairseq", "none"), ("authors", "ours")):
            compare(f"loss of the model {other}, compared with {one},", losses[other], losses[one], torch.float32)
        if compiled:
            allow_graphs()
        for name, model in found.items():
            model.train()
            if compiled and name == "fairseq":
                for layer in [*model.encoder.layers, *model.decoder.layers]:  # type: ignore[union-attr,misc]
                    layer.compile(dynamic=True)
        half = options.torch_dtype if options.torch_dtype.itemsize < 4 else None
        return [{name: _step(model, criterion, Adam, batch, half) for name, model in found.items()}]

    return Case(f"train/{size}/{sentences}x{length}/dk{key_dim}{'/compiled' * compiled}", prepare)


def fast_case(size: str, sentences: int, length: int, key_dim: int, kind: str) -> Case:
    """Ours with what makes it fast; ``kind``: of :data:`KINDS`, the rest as in :func:`train_case`."""
    measure, half = KINDS[kind]
    names = ("fairseq", "ours") if half is None else ("fairseq", "fairseq-bf16", "ours")

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, size)
        models = build(size, task, key_dim, names, options, fast_dropout=True)
        theirs, ours = (
            criterion(task, sentence_avg=False, label_smoothing=0.1)
            for criterion in (LabelSmoothedCrossEntropyCriterion, ChunkedLabelSmoothedCrossEntropy)
        )
        batch, small = _batches(task, [length] * sentences, options)
        for model in models.values():
            model.to(options.device).train()
        fast = models.pop("ours")
        got, expected = (criterion(fast.eval(), small)[0].detach() for criterion in (ours, theirs))
        compare("loss in chunks, compared with fairseq's,", got, expected, torch.float32)
        fast.train()
        steps = {
            name: _step(model, theirs, Adam, batch, half if name.endswith("bf16") else None)
            for name, model in models.items()
        }
        return [{**steps, "ours": _step(fast, ours, FusedAdam, batch, half)}]

    return Case(f"train/{size}/{sentences}x{length}/dk{key_dim}/{kind}", prepare, measure)


def _batches(task: Task, lengths: Sequence[int], options: Options) -> List[Dict[str, Any]]:
    """The batch, and its first four sentences."""
    sources, targets = (task.sentences(lengths, options.seed + side) for side in (0, 1))
    return [make_batch(sources[:end], targets[:end], task, options.device) for end in (None, 4)]


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


def train_cases(options: Options) -> List[Case]:
    """The rows of ``collab bench train``; the tiny batch has the 4,096 tokens of recipes/multi30k, nearly."""
    rows = [("base", 64, 32, 128), ("base", 64, 32, 512), ("tiny", 170, 24, 32)]
    rows = [("base", 3, 6, 4), ("tiny", 3, 6, 4)] if options.quick else rows
    found = [train_case(*row, bool(options.compile)) for row in rows]
    return [*found, *(fast_case(*row, kind) for row in (rows[0], rows[-1]) for kind in KINDS)]

"""A training step of whole models: forward, label-smoothed loss, backward, Adam, with the preset's dropouts.

Rows ``fast`` have ours with ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and
``--fast-dropout`` beside fairseq's transformer with its own loss and Adam in float32; rows ``fast-bf16`` have ours, and
fairseq's once more (``fairseq-bf16``), under autocast in bfloat16, as with ``--amp``.

All sentences of these batches are equally long: fairseq batches by length, and padding, which the chunked loss leaves
out, would flatter it.
"""

import contextlib
from typing import Any, Dict, List, Optional

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.modules.compiled import allow_graphs
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.training.fused_adam import FusedAdam

from .cases import Case, Options, Step, draw
from .measure import compare
from .models import Task, build, make_batch

#: kind of a row → its contestants; the first are all models with fairseq's loss and Adam
KINDS = {
    "": ("fairseq", "none", "ours", "authors"), "compiled": ("fairseq", "none", "ours", "authors"),
    "fast": ("fairseq", "ours"), "fast-bf16": ("fairseq", "fairseq-bf16", "ours"), "fast-memory": ("fairseq", "ours"),
}  # fmt: skip


def train_case(size: str, sentences: int, length: int, key_dim: int, kind: str = "") -> Case:
    """A step of all models of a kind of row.

    In half precision parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.

    Args:
        size: of :data:`.models.PRESETS`. sentences: pairs of a batch. length: tokens of the longest.
        kind: of :data:`KINDS`. ``compiled``: layers of all contestants, also of fairseq's own, train through
            ``torch.compile``.
    """
    fast, compiled = kind.startswith("fast"), kind == "compiled"

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, size)
        found = build(size, task, key_dim, KINDS[kind], options, fast_dropout=fast, compile=compiled)
        theirs, chunked = (
            criterion(task, sentence_avg=False, label_smoothing=0.1)
            for criterion in (LabelSmoothedCrossEntropyCriterion, ChunkedLabelSmoothedCrossEntropy)
        )
        lengths = [length] * sentences if fast else draw(sentences, options.seed, length)
        sources, targets = (task.sentences(lengths, options.seed + side) for side in (0, 1))
        batch, small = (make_batch(sources[:end], targets[:end], task, options.device) for end in (None, 4))
        with torch.no_grad():  # models with the same parameters, without dropout
            losses = {name: theirs(model.eval(), small)[0] for name, model in found.items()}
        if fast:  # of which some gradients are made in the forward pass
            got = chunked(found["ours"], small)[0]
            compare("loss in chunks, compared with fairseq's,", got, losses["ours"], torch.float32)
        for one, other in (("fairseq", "none"), ("authors", "ours")):
            if one in found and other in found:
                compare(f"loss of the model {other}, compared with {one},", losses[other], losses[one], torch.float32)
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

    row = f"train/{size}/{sentences}x{length}/dk{key_dim}"
    return Case(f"{row}/{kind}" if kind else row, prepare, kind == "fast-memory")


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
    found = [train_case(*row, "compiled" if options.compile else "") for row in rows]
    return [*found, *(train_case(*row, kind) for row in (rows[0], rows[-1]) for kind in KINDS if "fast" in kind)]

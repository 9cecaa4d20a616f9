"""Training steps with all that makes them fast, beside fairseq's own: loss, optimizer and dropout, in fp32 and bf16.

====================  ==============================================================================================
fairseq               fairseq's transformer with its loss and its Adam, in float32
fairseq-bf16          the same under autocast in bfloat16
ours                  ours with ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and
                      ``--fast-dropout``; under autocast in bfloat16, as with ``--amp``, where the row says so
====================  ==============================================================================================

All sentences of a batch are equally long: fairseq batches by length, and padding, which the chunked loss leaves out,
would flatter it.
"""

import contextlib
from typing import Any, Dict, List

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules import FairseqDropout
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.models.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.models.fused_adam import FusedAdam
from collab_fairseq.modules.dropout import FastDropout

from .cases import Case, Options, Step
from .checks import compare
from .models import Task, build, make_batch

#: of a row: what it measures, and the type of autocast of ours
KINDS = {"fast": ("time", None), "fast-bf16": ("time", torch.bfloat16), "fast-memory": ("memory", None)}


def fast_case(size: str, sentences: int, length: int, key_dim: int, kind: str) -> Case:
    """A whole step: forward, loss, backward, update; ``kind``: of :data:`KINDS`, the rest as in a row of ``train``."""
    measure, half = KINDS[kind]

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, size)
        models = build(size, task, key_dim, ("fairseq", "ours"), options)
        theirs, ours = (
            criterion(task, sentence_avg=False, label_smoothing=0.1)
            for criterion in (LabelSmoothedCrossEntropyCriterion, ChunkedLabelSmoothedCrossEntropy)
        )
        sources, targets = (task.sentences([length] * sentences, options.seed + side) for side in (0, 1))
        batch = make_batch(sources, targets, task, options.device)
        small = make_batch(sources[:4], targets[:4], task, options.device)
        for model in models.values():
            model.to(options.device).train()
        got, expected = (criterion(models["ours"].eval(), small)[0].detach() for criterion in (ours, theirs))
        compare("loss in chunks, compared with fairseq's,", got, expected, torch.float32)
        for module in models["ours"].train().modules():
            if isinstance(module, FairseqDropout):
                module.__class__ = FastDropout

        def step_of(model: nn.Module, criterion: Any, optimizer: Any, autocast: Any) -> Step:
            made = optimizer(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-8)

            def step() -> None:
                with torch.autocast(options.device, autocast) if autocast else contextlib.nullcontext():
                    loss = criterion(model, batch)[0]
                loss.backward()
                for parameter in model.parameters():  # as fairseq's trainer does
                    parameter.grad.div_(batch["ntokens"])  # type: ignore[union-attr]
                made.step()
                made.zero_grad(set_to_none=True)

            return step

        found = {"fairseq": step_of(models["fairseq"], theirs, Adam, None)}
        if half is not None:
            other = build(size, task, key_dim, ("fairseq",), options)["fairseq"].to(options.device).train()
            found["fairseq-bf16"] = step_of(other, theirs, Adam, half)
        return [{**found, "ours": step_of(models["ours"], ours, FusedAdam, half)}]

    return Case(f"train/{size}/{sentences}x{length}/dk{key_dim}/{kind}", prepare, measure)


def fast_cases(options: Options) -> List[Case]:
    """The rows of ``collab bench train`` that end in a :data:`KINDS`; the tiny batch has 4,096 tokens, nearly."""
    rows = [("base", 3, 6, 4), ("tiny", 3, 6, 4)] if options.quick else [("base", 64, 32, 128), ("tiny", 170, 24, 32)]
    if options.device != "cpu":  # where fused_adam and --fast-dropout have nothing to gain
        return []
    return [fast_case(*row, kind) for row in rows for kind in KINDS]

"""``collab bench train``: a training step of a whole model: forward, label-smoothed loss, backward, Adam."""

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from torch import nn

from .cases import Options
from .lengths import MULTI30K, NEWSTEST
from .models import VOCABULARY, Task, build, check_models, make_batch, synthetic
from .roofline import Peaks
from .timing import Step


@dataclass(frozen=True)
class TrainCase:
    """A training step of ``sentences`` pairs whose longest has ``length`` tokens; dropouts as in the preset.

    In half precision parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.
    """

    size: str
    sentences: int
    length: int
    key_dim: int

    @property
    def id(self) -> str:
        return f"train/{self.size}/{self.sentences}x{self.length}/dk{self.key_dim}"

    @property
    def title(self) -> str:
        return f"training step, {self.size}, {self.sentences} × {self.length} tokens, key dim {self.key_dim}"

    @property
    def measure(self) -> str:
        return "time"

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        task = Task(64 if options.quick else options.vocabulary or VOCABULARY[self.size])
        names = ("fairseq", "none", "ours", "authors")
        found = build(self.size, task, self.key_dim, names, options.seed, options.quick)
        criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)

        def loss(model: nn.Module, batch: Dict[str, Any]) -> Any:
            return criterion(model, batch)[0] / batch["ntokens"]

        histogram = options.lengths or (MULTI30K if self.size == "tiny" else NEWSTEST)
        lengths = histogram.draw(self.sentences, options.seed, longest=self.length)
        sources, targets = (synthetic(lengths, task, options.seed + side) for side in (0, 1))
        batch = make_batch(sources, targets, task, options.device)
        for model in found.values():
            model.to(options.device).train()
        check_models(found, make_batch(sources[:4], targets[:4], task, options.device), loss)

        def step_of(model: nn.Module) -> Step:
            optimizer = Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-8)
            half = options.dtype not in (torch.float32, torch.float64)

            def step() -> None:
                with torch.autocast(options.device.type, options.dtype) if half else contextlib.nullcontext():
                    value = loss(model, batch)
                value.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            return step

        return [{name: step_of(model) for name, model in found.items()}]

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        return {}


def cases(options: Options) -> List[TrainCase]:
    """All rows of ``collab bench train``; the tiny batch has the 4,096 tokens of recipes/multi30k, nearly."""
    if options.quick:
        return [TrainCase("base", 3, 6, 4), TrainCase("tiny", 3, 6, 4)]
    return [*(TrainCase("base", 64, 32, key_dim) for key_dim in (128, 512)), TrainCase("tiny", 170, 24, 32)]

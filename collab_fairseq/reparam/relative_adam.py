"""Training of score parameters of very different sizes: Adam with steps relative to the RMS of each tensor."""

import itertools
import math
from typing import Any, Iterable, Iterator, Sequence

import torch
from torch import nn

# fraction of the steps in which the learning rate rises
_WARMUP = 0.05
#: default peak learning rate, relative to the RMS of each tensor
RATE = 5e-3


class RelativeAdam:
    """Adam for these parameters, with linear warm-up and cosine decay to zero.

    Args:
        rate: peak learning rate, relative to the RMS of each tensor.
        steps: number of calls of :meth:`step`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, steps: int) -> None:
        trained = [parameter.requires_grad_() for parameter in parameters]
        sizes = [float(parameter.detach().square().mean().sqrt()) for parameter in trained]
        mean = sum(sizes) / len(sizes)  # for tensors that are zero
        groups = [{"params": [p], "size": size or mean} for p, size in zip(trained, sizes, strict=True)]
        self._adam = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self._rate, self._steps, self._step = rate, steps, 0

    def zero_grad(self) -> None:
        self._adam.zero_grad()

    def step(self) -> None:
        warmup = (self._step + 1) / max(1, round(_WARMUP * self._steps))
        factor = min(warmup, 0.5 * (1 + math.cos(math.pi * self._step / self._steps)))
        for group in self._adam.param_groups:
            group["lr"] = self._rate * factor * group["size"]
        self._adam.step()
        self._step += 1


def shuffled(batches: Sequence[Any], steps: int, seed: int) -> Iterator[Any]:
    """A batch for each step, in a new random order in every pass."""
    random = torch.Generator().manual_seed(seed)
    passes = (torch.randperm(len(batches), generator=random).tolist() for _ in range(0, steps, len(batches)))
    return (batches[number] for number in itertools.islice(itertools.chain.from_iterable(passes), steps))

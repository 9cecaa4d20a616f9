"""Training of score parameters of very different sizes: Adam with steps relative to the RMS of each tensor."""

import itertools
import math
import time
from typing import Any, Callable, Iterable, Iterator, List, Sequence, Tuple

import torch
from torch import nn

from collab_fairseq.progress import Progress
from fairseq_modern.errors import UserError

# fraction of the steps in which the learning rate rises
_WARMUP = 0.05
#: default peak learning rate, relative to the RMS of each tensor
RATE = 5e-3
# steps between two points of the learning curve
_LOG_INTERVAL = 50


def train(
    parameters: Iterable[nn.Parameter],
    backward: Callable[[Any], Tuple[float, int]],
    batches: Sequence[Any],
    *,
    rate: float,
    steps: int,
    seed: int,
    unit: float = 1.0,
) -> Tuple[List[Tuple[int, float]], float]:
    """Minimise a divergence by Adam, with linear warm-up and cosine decay to zero.

    Args:
        backward: adds the gradient of a batch to the parameters; returns the divergence, summed, and what it is summed
            over.
        rate: peak learning rate, relative to the RMS of each tensor.
        steps: each has a batch, in a new random order (``seed``) in every pass.
        unit: of the learning curve.

    Returns:
        Learning curve, pairs of step and mean divergence since the last point; CPU time of this process in seconds.

    Raises:
        UserError: the divergence is NaN or infinite.
    """
    trained = [parameter.requires_grad_() for parameter in parameters]
    sizes = [float(parameter.detach().square().mean().sqrt()) for parameter in trained]
    mean = sum(sizes) / len(sizes)  # for tensors that are zero
    groups = [{"params": [p], "size": size or mean} for p, size in zip(trained, sizes, strict=True)]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.98))
    curve: List[Tuple[int, float]] = []
    total, summands, note, began = 0.0, 0, "", time.process_time()
    with Progress("distillation", steps, "steps") as progress:
        for step, batch in enumerate(_shuffled(batches, steps, seed)):
            adam.zero_grad()
            divergence, number = backward(batch)
            if not math.isfinite(divergence):
                raise UserError(
                    f"the divergence must be finite; got {divergence} in step {step + 1}, with learning rate {rate:g}: "
                    "lower it"
                )
            warmup = (step + 1) / max(1, round(_WARMUP * steps))
            factor = min(warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
            for group in adam.param_groups:
                group["lr"] = rate * factor * group["size"]
            adam.step()
            total, summands = total + divergence, summands + number
            if (step + 1) % _LOG_INTERVAL == 0 or step + 1 == steps:
                curve.append((step + 1, total / summands / unit))
                note = f"divergence {curve[-1][1]:.5f}"
                total, summands = 0.0, 0
            progress.advance(1, note)
    return curve, time.process_time() - began


def _shuffled(batches: Sequence[Any], steps: int, seed: int) -> Iterator[Any]:
    """A batch for each step, in a new random order in every pass."""
    random = torch.Generator().manual_seed(seed)
    passes = (torch.randperm(len(batches), generator=random).tolist() for _ in range(0, steps, len(batches)))
    return (batches[number] for number in itertools.islice(itertools.chain.from_iterable(passes), steps))

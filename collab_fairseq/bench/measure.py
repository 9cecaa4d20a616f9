"""Seconds and peak memory of steps, and a check that implementations compute the same, which runs first.

Every round runs every implementation once, in a new random order, so that a machine that slows down slows all of them.
The ratio of two implementations is that of their medians; its quartiles are those of the ratios within the rounds.
"""

import random
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_modern.errors import UserError

CLOCKS: Dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
#: of parameters, inputs and the order of turns
SEED = 1
#: rounds that are not counted
WARMUP = 2
#: the fewest rounds that are counted
LEAST = 3
#: largest difference relative to the largest number
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-2}


class BenchError(UserError):
    """Something that the benchmark cannot do, or an implementation that computes something else."""


@dataclass(frozen=True)
class Options:
    """How to measure: what a result depends on.

    Attributes:
        device, dtype: of all tensors, by name. threads: of the CPU.
        clock: ``wall``, or ``processor`` for the CPU time of this process, on a CPU that others use as well.
        rounds: at most N per row. seconds: no new round after them, once there are :data:`LEAST` rounds.
        quick: miniatures that show that everything runs.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    clock: str = "wall"
    rounds: int = 200
    seconds: float = 20.0
    quick: bool = False

    def __post_init__(self) -> None:
        if self.clock == "processor" and (self.device == "cuda" or self.threads > 1):
            raise BenchError("--clock processor is for one thread of a CPU; use --threads 1 and --device cpu")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type that ``dtype`` names."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


Step = Callable[[], Any]
#: what each implementation does, in one part or several (the batches of a corpus); ``ours`` is among them
Parts = Sequence[Mapping[str, Step]]
#: compares the implementations (:class:`BenchError`: two of one function differ), then gives their steps
Row = Callable[[Options], Parts]


def compare(what: str, got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Raise BenchError unless two tensors agree to the rounding of a type."""
    scale = max(float(expected.detach().abs().max()), 1e-30)
    difference = float((got.detach().double() - expected.detach().double()).abs().max()) / scale
    if not difference <= TOLERANCE[dtype]:
        raise BenchError(
            f"{what} differs by {difference:.2g} of the largest value; at most {TOLERANCE[dtype]:.2g} is allowed: "
            "nothing is timed"
        )


def spread(values: Sequence[float]) -> Dict[str, float]:
    """``median``, quartiles ``q1`` and ``q3``, and the number of ``rounds``."""
    q1, median, q3 = map(float, np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "rounds": len(values)}


def ratio(of: Sequence[float], to: Sequence[float]) -> Dict[str, float]:
    """Ratio of the medians of two implementations; quartiles of their ratios round by round."""
    return {**spread(np.divide(of, to)), "median": float(np.median(of) / np.median(to))}  # type: ignore[arg-type]


def interleave(parts: Parts, options: Options) -> Dict[str, List[float]]:
    """Seconds of every implementation in every round, after :data:`WARMUP` rounds of the first part.

    Within every part all implementations take turns; the times of the parts are added up. A step leaves everything
    ready for the next. On a GPU the time ends when its work is done; that of launching it is included.
    """
    order, clock = list(parts[0]), CLOCKS[options.clock]
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    shuffle = random.Random(SEED).shuffle
    rounds = min(2, options.rounds) if options.quick else options.rounds
    times: Dict[str, List[float]] = {name: [] for name in order}
    spent = 0.0
    for number in range(-WARMUP, rounds):
        if number >= LEAST and spent >= options.seconds:
            break
        totals = dict.fromkeys(order, 0.0)
        for part in parts if number >= 0 else parts[:1]:
            shuffle(order)
            for name in order:
                wait()
                start = clock()
                part[name]()
                wait()
                totals[name] += clock() - start
        if number >= 0:
            for name, seconds in totals.items():
                times[name].append(seconds)
            spent += sum(totals.values())
    return times


def peak_bytes(step: Step, device: str) -> int:
    """Most bytes that torch's allocator holds at any moment of a step, above what it holds at its start.

    The step runs once before: what is allocated once and kept is not part of the peak. On the CPU the exact running sum
    of the profiler's memory events; on a GPU torch's own counter. What the step returns counts while it runs.
    """
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(0, *np.cumsum([0, *(change for _, change in changes)]).tolist())

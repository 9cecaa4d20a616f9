"""Seconds and peak memory of steps, and whether contestants compute the same, which is asked before.

Every round runs every contestant once, in a new random order, so that a machine that slows down slows all of them.
The ratio of two contestants is that of their medians; its quartiles are those of the ratios within the rounds.
"""

import random
import time
from typing import Callable, Dict, List, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .cases import Options, Step

CLOCKS: Dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
#: rounds that are not counted
WARMUP = 2
#: largest difference relative to the largest number; float64 allows for the softmax in float32 that fairseq has in any
#: type
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


class MismatchError(RuntimeError):
    """A contestant does not compute what it is timed for."""

    user_error = True


def compare(what: str, got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Two tensors that must agree to the rounding of a type.

    Raises:
        MismatchError: with the difference.
    """
    scale = max(float(expected.detach().abs().max()), 1e-30)
    difference = float((got.detach().double() - expected.detach().double()).abs().max()) / scale
    if not difference <= TOLERANCE[dtype]:
        raise MismatchError(
            f"{what} differs by {difference:.2g} of the largest value, allowed are {TOLERANCE[dtype]:.2g}: "
            "nothing is timed"
        )


def spread(values: Sequence[float]) -> Dict[str, float]:
    """``median``, quartiles ``q1`` and ``q3``, and the number of ``rounds``."""
    q1, median, q3 = map(float, np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "rounds": len(values)}


def ratio(of: Sequence[float], to: Sequence[float]) -> Dict[str, float]:
    """Ratio of the medians of two contestants; quartiles of their ratios round by round."""
    return {**spread(np.divide(of, to)), "median": float(np.median(of) / np.median(to))}  # type: ignore[arg-type]


def interleave(parts: Sequence[Mapping[str, Step]], options: Options) -> Dict[str, List[float]]:
    """Seconds of every contestant in every round, after :data:`WARMUP` rounds of the first part.

    Args:
        parts: what each contestant does, in one part or several whose times are added up; within every part all
            contestants take turns. A call leaves everything ready for the next.
        options: the clock, when to stop, and the seed of the order of the turns. On a GPU the time ends when its work
            is done; that of launching it is included.
    """
    order, clock = list(parts[0]), CLOCKS[options.clock]
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    shuffle = random.Random(options.seed).shuffle
    times: Dict[str, List[float]] = {name: [] for name in order}
    spent = 0.0
    for number in range(-WARMUP, options.rounds):
        if number >= options.least and spent >= options.seconds:
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

"""Seconds and peak memory of steps.

Every round runs every contestant once, in an order shuffled anew, so that a machine that slows down slows all of them.
The ratio of two contestants is that of their medians; its quartiles are those of the ratios within the rounds.
"""

import logging
import random
import statistics
import time
from typing import Callable, Dict, List, Mapping, Sequence

import torch

from .cases import Options, Step

logger = logging.getLogger(__name__)

CLOCKS: Dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
#: rounds that are not counted
WARMUP = 2


def spread(values: Sequence[float]) -> Dict[str, float]:
    """``median``, quartiles ``q1`` and ``q3``, and the number of ``rounds``."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": quartiles[1], "q1": quartiles[0], "q3": quartiles[2], "rounds": len(values)}


def ratio(of: Sequence[float], to: Sequence[float]) -> Dict[str, float]:
    """Ratio of the medians of two contestants; quartiles of their ratios round by round."""
    rounds = spread([a / b for a, b in zip(of, to, strict=True)])
    return {**rounds, "median": statistics.median(of) / statistics.median(to)}


def stopwatch(options: Options) -> Callable[[Step], float]:
    """Seconds of one call: on the CPU by the clock; on a GPU between two events, host time of launches included."""
    clock = CLOCKS[options.clock]

    def on_cpu(step: Step) -> float:
        start = clock()
        step()
        return clock() - start

    def on_gpu(step: Step) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3

    return on_gpu if options.device == "cuda" else on_cpu


def interleave(parts: Sequence[Mapping[str, Step]], options: Options) -> Dict[str, List[float]]:
    """Seconds of every contestant in every round, after :data:`WARMUP` rounds of the first part.

    Args:
        parts: what each contestant does, in one part or several whose times are added up; within every part all
            contestants take turns. A call leaves everything ready for the next.
        options: the clock, when to stop, and the seed of the order of the turns.
    """
    order, seconds_of = list(parts[0]), stopwatch(options)
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
                totals[name] += seconds_of(part[name])
        if number >= 0:
            for name, seconds in totals.items():
                times[name].append(seconds)
            spent += sum(totals.values())
    return times


def captured(steps: Mapping[str, Step]) -> Dict[str, Step]:
    """CUDA graphs of those steps that can be captured, replayed without launching kernels one by one.

    The others, which wait for the GPU or the like, are named in the log.
    """
    graphs: Dict[str, Step] = {}
    for name, step in steps.items():
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            graphs[name] = graph.replay
        except RuntimeError as error:
            logger.warning("%s cannot be captured in a CUDA graph: %s", name, str(error).splitlines()[0])
            torch.cuda.synchronize()
    return graphs


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
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        peak = max(peak, held)
    return peak

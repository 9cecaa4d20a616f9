"""Times of several contestants in interleaved rounds, and what is said of them: median, quartiles, ratios.

Every round runs every contestant once, in an order shuffled anew, so that a machine that slows down slows all of them.
The ratio of two contestants is that of their medians; its spread is that of the ratios within the rounds.
"""

import logging
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence

import torch

logger = logging.getLogger(__name__)

Step = Callable[[], Any]

CLOCKS: Dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True)
class Budget:
    """How long to measure a case.

    Attributes:
        rounds: at most so many. seconds: no new round after so many, once there are ``least`` rounds.
        least: at least so many rounds. warmup: rounds that are not counted.
    """

    rounds: int = 200
    seconds: float = 20.0
    least: int = 5
    warmup: int = 2


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some measurements."""

    median: float
    q1: float
    q3: float
    rounds: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, q1, q3, len(values))


def ratio(of: Sequence[float], to: Sequence[float]) -> Spread:
    """Ratio of the medians of two contestants; quartiles of their ratios round by round."""
    rounds = Spread.of([a / b for a, b in zip(of, to, strict=True)])
    return Spread(statistics.median(of) / statistics.median(to), rounds.q1, rounds.q3, rounds.rounds)


class Stopwatch:
    """Times one call on the CPU; on a GPU between two events on its stream, host time of the launches included."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.cuda = device.type == "cuda"

    def __call__(self, step: Step) -> float:
        """Seconds that a call takes."""
        if not self.cuda:
            start = self.clock()
            step()
            return self.clock() - start
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3


def interleave(
    parts: Sequence[Dict[str, Step]], stopwatch: Callable[[Step], float], budget: Budget, seed: int = 0
) -> Dict[str, List[float]]:
    """Seconds of every contestant in every round.

    Args:
        parts: what each contestant does, in one part or several whose times are added up (the batches of a corpus);
            within every part all contestants take turns. A call leaves everything ready for the next.
        stopwatch: seconds that a call takes.
        budget: when to stop. seed: of the order of the turns.
    """
    order = list(parts[0])
    shuffle = random.Random(seed).shuffle
    times: Dict[str, List[float]] = {name: [] for name in order}
    spent = 0.0
    for number in range(-budget.warmup, budget.rounds):
        if number >= budget.least and spent >= budget.seconds:
            break
        totals = dict.fromkeys(order, 0.0)
        for part in parts if number >= 0 else parts[:1]:
            shuffle(order)
            for name in order:
                totals[name] += stopwatch(part[name])
        if number >= 0:
            for name, seconds in totals.items():
                times[name].append(seconds)
            spent += sum(totals.values())
    return times


def captured(step: Step, warmup: int = 3) -> Step:
    """The step as a CUDA graph, which is replayed without launching its kernels one by one.

    Raises:
        RuntimeError: the step waits for the GPU or cannot be captured for another reason.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def capture_all(contestants: Dict[str, Step]) -> Dict[str, Step]:
    """CUDA graphs of those contestants that can be captured; the others are named in the log."""
    graphs = {}
    for name, step in contestants.items():
        try:
            graphs[name] = captured(step)
        except RuntimeError as error:
            logger.warning("%s cannot be captured in a CUDA graph: %s", name, str(error).splitlines()[0])
            torch.cuda.synchronize()
    return graphs

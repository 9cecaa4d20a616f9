"""Time and peak memory of steps, and the comparison of results that precedes them.

Each round runs each implementation once, in a new random order, so a temporary slowdown of the machine affects all of
them. The ratio of two implementations is the ratio of their medians, with the quartiles of the ratios within rounds.
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
#: random seed of parameters, inputs and the order within rounds
SEED = 1
#: rounds that are not counted
WARMUP_ROUNDS = 2
#: rounds that are counted even if they exceed the time limit
MIN_ROUNDS = 3
#: largest difference relative to the largest value
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Options:
    """The settings that a result depends on.

    Attributes:
        device, dtype: of all tensors.
        threads: CPU threads.
        clock: ``wall``, or ``processor`` for the CPU time of this process, on a shared CPU.
        rounds: maximum number of rounds per row.
        seconds: no new round of a row starts after this time, but :data:`MIN_ROUNDS` rounds always run.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    clock: str = "wall"
    rounds: int = 200
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.clock == "processor" and (self.device == "cuda" or self.threads > 1):
            raise UserError(
                "--clock processor needs --threads 1 and --device cpu; "
                f"got --threads {self.threads} and --device {self.device}"
            )

    @property
    def torch_dtype(self) -> torch.dtype:
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]


Step = Callable[[], Any]
#: implementation (``ours`` is one of them) → step, for one or several parts, such as the batches of a corpus
Parts = Sequence[Mapping[str, Step]]
#: compares the results of the implementations (UserError if they differ), then returns their steps
Row = Callable[[Options], Parts]


def compare(name: str, actual: Tensor, expected: Tensor) -> None:
    """Raise UserError unless two tensors are equal up to rounding; ``name`` is the subject of the message."""
    limit = TOLERANCE[actual.dtype]
    scale = max(float(expected.detach().abs().max()), 1e-30)
    difference = float((actual.detach().double() - expected.detach().double()).abs().max()) / scale
    if not difference <= limit:
        raise UserError(f"{name} differs by {difference:.2g} of the largest value (limit {limit:.2g}); not measured")


def spread(values: Sequence[float]) -> Dict[str, float]:
    """Median, quartiles ``q1`` and ``q3``, and the number of rounds."""
    q1, median, q3 = map(float, np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "rounds": len(values)}


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Dict[str, float]:
    """Ratio of the medians of two implementations; quartiles of their ratios within rounds."""
    within_rounds = np.divide(values, baseline)
    median = float(np.median(values) / np.median(baseline))
    return {**spread(within_rounds), "median": median}  # type: ignore[arg-type]


def interleave(parts: Parts, options: Options) -> Dict[str, List[float]]:
    """Seconds of each implementation in each round, summed over the parts.

    :data:`WARMUP_ROUNDS` rounds of the first part run before. On a GPU, the time of a step includes launching and
    completing its kernels.
    """
    order = list(parts[0])
    clock = CLOCKS[options.clock]
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    shuffle = random.Random(SEED).shuffle
    times: Dict[str, List[float]] = {name: [] for name in order}
    spent = 0.0
    for number in range(-WARMUP_ROUNDS, options.rounds):
        if number >= MIN_ROUNDS and spent >= options.seconds:
            break
        is_counted = number >= 0
        totals = dict.fromkeys(order, 0.0)
        for part in parts if is_counted else parts[:1]:
            shuffle(order)
            for name in order:
                synchronize()
                start = clock()
                part[name]()
                synchronize()
                totals[name] += clock() - start
        if is_counted:
            for name, seconds in totals.items():
                times[name].append(seconds)
            spent += sum(totals.values())
    return times


def peak_bytes(step: Step, device: str) -> int:
    """Peak of the bytes that torch's allocator holds during a step, minus those at its start.

    The step runs once before, so permanent allocations do not count. On a CPU, this is the exact running sum of the
    profiler's memory events; on a GPU, torch's own counter.
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


def measured(row: Row, options: Options, memory: bool) -> Dict[str, Any]:
    """The time of a row, or its peak memory: {unit: "s" or "bytes", values, ratios: {implementation: :func:`ratio`}}.

    Ratios are those of ``ours`` to the other implementations. If the implementations differ, or torch raises an error:
    {missing: MESSAGE}.
    """
    try:
        parts = row(options)
        if memory:
            samples = {name: [float(peak_bytes(step, options.device))] for name, step in parts[0].items()}
        else:
            samples = interleave(parts, options)
    except (RuntimeError, UserError) as error:
        if options.device == "cuda":  # after an out-of-memory error
            torch.cuda.empty_cache()
        message = str(error).strip() or type(error).__name__
        return {"missing": message.splitlines()[0]}
    return {
        "unit": "bytes" if memory else "s",
        "values": {name: spread(values) for name, values in samples.items()},
        "ratios": {name: ratio(samples["ours"], values) for name, values in samples.items() if name != "ours"},
    }

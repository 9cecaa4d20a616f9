"""What a benchmark is made of: cases that say what is timed, one runner that times them, rows that come out."""

import fnmatch
import logging
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Protocol, Sequence

import torch

from .lengths import Histogram
from .memory import peak_bytes
from .roofline import Peaks
from .timing import CLOCKS, Budget, Spread, Step, Stopwatch, capture_all, interleave, ratio

logger = logging.getLogger(__name__)

#: the contestant whose ratios to the others are shown
OURS = "ours"


class BenchError(ValueError):
    """Something asked of the benchmark that it cannot do."""

    user_error = True


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        device, dtype: of all tensors. budget: rounds of a case. seed: of parameters, inputs and the order of turns.
        lengths: sentence lengths of layers, decoding and training; None: each case's own.
        sentences: that a search translates. batch: sentences of its batches. data: data-bin to take them from.
        vocabulary: symbols of the models; None: each case's own.
        clock: ``wall``, or ``processor`` for the processor time of this process, on a CPU that others use as well.
        quick: miniatures that show that everything runs.
    """

    device: torch.device
    dtype: torch.dtype
    budget: Budget = field(default_factory=Budget)
    seed: int = 1
    lengths: Optional[Histogram] = None
    sentences: int = 1000
    batch: int = 64
    data: Optional[str] = None
    vocabulary: Optional[int] = None
    clock: str = "wall"
    quick: bool = False


@dataclass(frozen=True)
class Row:
    """What a case gave.

    Attributes:
        id: of the case. title: in words. unit: ``s`` or ``bytes``.
        values: of every contestant. ratios: of :data:`OURS` to every other contestant.
        limits: least possible seconds of some contestants.
    """

    id: str
    title: str
    unit: str
    values: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    limits: Mapping[str, float]


class Case(Protocol):
    """One row of a benchmark; a frozen dataclass in the module of its subcommand."""

    @property
    def id(self) -> str:
        """Unique, with all that tells it from its neighbours: ``layer/encoder/64x32/dk128/train``."""

    @property
    def title(self) -> str: ...

    @property
    def measure(self) -> str:
        """``time``, ``graph`` (time of a CUDA graph) or ``memory``."""

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        """Check the contestants, then say what each does, in one or several parts.

        Raises:
            MismatchError: a contestant computes something else.
        """

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        """Least possible seconds of contestants, where that can be said."""


def choose(cases: Sequence[Case], patterns: Sequence[str]) -> List[Case]:
    """The cases whose id a shell pattern matches; all without patterns.

    Raises:
        BenchError: a pattern that matches none.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.id, pattern) for case in cases):
            raise BenchError(
                f"--rows {pattern} matches no row; the rows are {', '.join(case.id for case in cases)}"
            )
    return [case for case in cases if not patterns or any(fnmatch.fnmatchcase(case.id, p) for p in patterns)]


def run(cases: Sequence[Case], options: Options, peaks: Optional[Peaks]) -> List[Row]:
    """Measure cases one after the other."""
    rows = []
    for number, case in enumerate(cases, start=1):
        logger.info("%d of %d: %s", number, len(cases), case.id)
        row = measure(case, options, peaks)
        if row is not None:
            rows.append(row)
            shown = ", ".join(f"{to} {spread.median:.3f}" for to, spread in row.ratios.items())
            logger.info("%s: ratio of ours to %s", case.id, shown)
    return rows


def measure(case: Case, options: Options, peaks: Optional[Peaks]) -> Optional[Row]:
    """Measure a case; None where nothing of it can be captured in a CUDA graph."""
    parts = [dict(part) for part in case.prepare(options)]
    if case.measure == "memory":
        samples = {name: [float(peak_bytes(step, options.device))] for name, step in _warm(parts[0]).items()}
        unit = "bytes"
    else:
        if case.measure == "graph":
            parts = [capture_all(part) for part in parts]
            if OURS not in parts[0]:
                return None
        samples = interleave(parts, Stopwatch(options.device, CLOCKS[options.clock]), options.budget, options.seed)
        unit = "s"
    limits = case.limits(options, peaks) if peaks is not None and unit == "s" else {}
    return Row(
        case.id,
        case.title,
        unit,
        {name: Spread.of(values) for name, values in samples.items()},
        {name: ratio(samples[OURS], values) for name, values in samples.items() if name != OURS},
        {name: limit for name, limit in limits.items() if name in samples},
    )


def _warm(steps: Dict[str, Step]) -> Dict[str, Step]:
    """The same steps, each run once: what is allocated once and kept is not part of the peak."""
    for step in steps.values():
        step()
    return steps

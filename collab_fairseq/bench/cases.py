"""What a benchmark is made of: options, rows that say what is timed, and sentence lengths as real corpora have them."""

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch

Step = Callable[[], Any]


class BenchError(ValueError):
    """Something asked of the benchmark that it cannot do."""

    user_error = True


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        device, dtype: of all tensors, by name. threads: of the CPU.
        clock: ``wall``, or ``processor`` for the processor time of this process, on a CPU that others use as well.
        rounds: at most so many per row. seconds: no new round after so many, once there are ``least`` rounds.
        seed: of parameters, inputs and the order of turns. quick: miniatures that show that everything runs.
        compile: time training steps through ``torch.compile``.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    clock: str = "wall"
    rounds: int = 200
    seconds: float = 20.0
    least: int = 5
    seed: int = 1
    quick: bool = False
    compile: Optional[bool] = None

    def __post_init__(self) -> None:
        if not 0.0 < self.seconds < float("inf"):
            raise BenchError(f"--seconds must be a positive number of seconds, got {self.seconds:g}")
        if self.clock == "processor" and (self.device == "cuda" or self.threads > 1):
            raise BenchError("--clock processor is for one thread of a CPU; use --threads 1 and --device cpu")

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def settings(self) -> Dict[str, Any]:
        """What a result depends on, as JSON data."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Case:
    """One row of a benchmark.

    Attributes:
        id: unique, with all that tells it from its neighbours: ``layer/encoder/64x32/dk128/train``.
        prepare: checks the contestants (``MismatchError``: one computes something else), then gives what each does,
            name → step, in one part or several (the batches of a corpus). The contestant ``ours`` is among them.
        memory: measure the peak of memory in place of the time.
    """

    id: str
    prepare: Callable[[Options], Sequence[Mapping[str, Step]]]
    memory: bool = False


def choose(rows: Sequence[str], patterns: Sequence[str]) -> List[str]:
    """The rows that a shell pattern matches; all without patterns.

    Raises:
        BenchError: a pattern that matches none.
    """
    for pattern in patterns:
        if not fnmatch.filter(rows, pattern):
            raise BenchError(f"--rows {pattern} matches no row; the rows are {', '.join(rows)}")
    return [row for row in rows if not patterns or any(fnmatch.fnmatchcase(row, pattern) for pattern in patterns)]


#: tokens at these percentiles, </s> included, of the English side of Multi30k's test_2016_flickr (1,000 sentences) in
#: the 6,000 sentencepiece tokens of recipes/multi30k, counted in its data-bin
PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)
LENGTHS = (6, 9, 10, 12, 15, 18, 22, 25, 33, 36)


def draw(number: int, seed: int, longest: int = LENGTHS[-1]) -> List[int]:
    """Lengths of ``number`` sentences, the first the longest, distributed as in Multi30k up to a factor."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(number, generator=random, dtype=torch.float64).numpy()
    drawn: Any = np.interp(100 * shares, PERCENTILES, LENGTHS) * (longest / LENGTHS[-1])
    return [longest, *drawn.round().clip(2).astype(int).tolist()[1:]]

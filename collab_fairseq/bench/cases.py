"""What a benchmark is made of: options, rows that say what is timed, and sentence lengths as real corpora have them."""

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch
from fairseq.data import data_utils
from torch import Tensor

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
        compile: time training steps through ``torch.compile``. sentences: to translate; None: 1000.
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
    sentences: Optional[int] = None

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
        measure: ``time``, ``graph`` (time of a CUDA graph) or ``memory`` (peak).
    """

    id: str
    prepare: Callable[[Options], Sequence[Mapping[str, Step]]]
    measure: str = "time"


def choose(rows: Sequence[str], patterns: Sequence[str]) -> List[str]:
    """The rows that a shell pattern matches; all without patterns.

    Raises:
        BenchError: a pattern that matches none.
    """
    for pattern in patterns:
        if not fnmatch.filter(rows, pattern):
            raise BenchError(f"--rows {pattern} matches no row; the rows are {', '.join(rows)}")
    return [row for row in rows if not patterns or any(fnmatch.fnmatchcase(row, pattern) for pattern in patterns)]


_PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)
#: tokens at these percentiles, </s> included: of the English side of Multi30k's test_2016_flickr (1,000 sentences) in
#: the 6,000 sentencepiece units of recipes/multi30k, counted in its data-bin; and of newstest2014's German side (3,003
#: sentences; words from 2 up) at 1.25 subwords per word
LENGTHS: Dict[str, Sequence[float]] = {
    "multi30k": (6, 9, 10, 12, 15, 18, 22, 25, 33, 36),
    "newstest2014": tuple(1.25 * words + 1 for words in (2, 7, 9, 13, 20, 28, 37, 42, 53, 89)),
}


def draw(corpus: str, number: int, seed: int, longest: int = 0) -> List[int]:
    """Lengths of ``number`` sentences, distributed as in a corpus of :data:`LENGTHS`.

    With ``longest``, none is longer and the first is as long; lengths are stretched where all of them are shorter.
    """
    known = LENGTHS[corpus]
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(max(10_000, 20 * number), generator=random, dtype=torch.float64).numpy()
    drawn: Any = np.interp(100 * shares, _PERCENTILES, known) * max(1.0, longest / round(known[-1]))
    drawn = drawn.round().clip(2)
    if longest:  # at the end for a corpus whose sentences are nearly all longer than that
        drawn = np.append(drawn[drawn <= longest], np.full(number, longest))
        drawn[0] = longest
    return drawn[:number].astype(int).tolist()  # type: ignore[no-any-return]


def padding_mask(lengths: Sequence[int], left: bool, device: str) -> Tensor:
    """(N, longest) boolean, True for padding, on the left as fairseq pads sources, or on the right."""
    mask: Tensor = data_utils.lengths_to_padding_mask(torch.tensor(lengths, device=device))
    return mask.flip(1) if left else mask

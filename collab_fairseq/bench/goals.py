"""The goals: ratios of ours to a baseline, of medians in one run; on a CPU in float32, attention dropout 0.

A goal names a row by the id of its case.
"""

from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import torch

from .cases import Row

_AUTHORS = ("authors", "authors-bmm")
_STANDARD = ("fairseq", "fairseq-self", "standard-sdpa")


@dataclass(frozen=True)
class Goal:
    """ours / baseline ≤ limit in a row.

    Attributes:
        row: id of the row. text: the row in words. to: contestants, the best of which is the baseline. limit: of the
            ratio. headline: one of the first five. device: ``cpu`` or ``cuda``.
    """

    row: str
    text: str
    to: Tuple[str, ...]
    limit: float
    headline: bool = False
    device: str = "cpu"


def _goals(rows: Iterable[Tuple[str, str]], to: Sequence[str], limits: Sequence[float], **more: Any) -> List[Goal]:
    return [Goal(row, text, tuple(to), limit, **more) for (row, text), limit in zip(rows, limits, strict=True)]


def _layer(n: int, t: int, key_dim: int, what: str = "train") -> Tuple[str, str]:
    name = "peak memory" if what.startswith("memory") else "layer forward+backward"
    return f"layer/encoder/{n}x{t}/dk{key_dim}/{what}", f"{name}, key dim {key_dim}, (B, T) = ({n}, {t})"


_LAYERS_128 = [_layer(64, 32, 128), _layer(16, 128, 128), _layer(4, 512, 128)]
_MEMORY = [_layer(64, 32, key_dim, "memory") for key_dim in (128, 512)]
_CROSS = ("decode/cross/64x4/S30/dk128", "decoding step, cross S = 30, key dim 128, 64 × beam 4")
_SELF = ("decode/self/64x4/T15/dk128", "decoding step, self T = 15 with reorder, key dim 128, 64 × beam 4")
_TRAIN = [
    (f"train/base/64x32/dk{key_dim}", f"training step, base, T = 32, key dim {key_dim}") for key_dim in (128, 512)
]
_TRANSLATE = [
    (f"decode/translate/{size}/1000/dk{key_dim}", f"beam search, 1,000 Multi30k sentences, {size}, key dim width/4")
    for size, key_dim in (("tiny", 32), ("base", 128))
]
_STEP = [
    (f"decode/beam-step/base/64x4/T15S30/dk128{graph}", f"beam step, base, key dim 128, {name}")
    for graph, name in (("/graph", "CUDA graph of the layers"), ("", "eager"))
]

GOALS: List[Goal] = [
    *_goals(_LAYERS_128, ["fairseq"], [0.70, 0.75, 0.70], headline=True),
    *_goals(_LAYERS_128, _AUTHORS, [0.97, 0.95, 0.65]),
    *_goals([_layer(64, 32, 512)], ["fairseq"], [1.20], headline=True),
    *_goals([_layer(64, 32, 512)], _AUTHORS, [0.66]),
    *_goals([_layer(64, 32, 128)], ["standard"], [1.08]),
    *_goals(_MEMORY, _AUTHORS, [0.78, 0.55], headline=True),
    *_goals([_CROSS], ["fairseq"], [0.60]),
    *_goals([_CROSS], ["fairseq-sentence"], [0.75]),
    *_goals([_CROSS], _AUTHORS, [0.46]),
    *_goals([_SELF], ["fairseq"], [0.70]),
    *_goals([_SELF], _AUTHORS, [0.70]),
    *_goals(_TRAIN, ["fairseq"], [0.92, 1.06], headline=True),
    *_goals(_TRANSLATE, ["fairseq"], [0.85, 0.85], headline=True),
    *_goals(_TRANSLATE, ["none"], [0.95, 0.95], headline=True),
    *_goals([_layer(64, 32, 128, "train/graph")], _STANDARD, [0.75], device="cuda"),
    *_goals([_layer(4, 512, 128, "train/graph")], _STANDARD, [1.15], device="cuda"),
    *_goals([_layer(64, 32, 512, "train/graph")], _STANDARD, [1.15], device="cuda"),
    *_goals(_TRAIN, ["fairseq"], [0.96, 1.08], device="cuda"),
    *_goals(_STEP, ["fairseq"], [0.85, 1.00], device="cuda"),
]


def judge(
    rows: Sequence[Row], device: str, dtype: torch.dtype = torch.float32, goals: Sequence[Goal] = GOALS
) -> List[Dict[str, Any]]:
    """The goals whose rows were measured on this device (on a CPU: in float32): their fields and more.

    ``baseline``, its ratio ``measured`` with quartiles, whether the goal is ``met``. The
    baseline is the contestant with the smallest median among those of the goal.
    """
    if device == "cpu" and dtype != torch.float32:
        return []
    by_id = {row.id: row for row in rows}
    judged = []
    for goal in goals:
        row = by_id.get(goal.row)
        if row is None or goal.device != device or not set(goal.to) & set(row.ratios):
            continue
        baseline = max((name for name in goal.to if name in row.ratios), key=lambda name: row.ratios[name].median)
        measured = row.ratios[baseline]
        judged.append(
            {
                **asdict(goal), "to": list(goal.to), "baseline": baseline, "measured": measured.median,
                "q1": measured.q1, "q3": measured.q3, "met": measured.median <= goal.limit,
            }
        )  # fmt: skip
    return judged

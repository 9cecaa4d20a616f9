"""The cost of reducing the key dimension, with standard and collaborative heads (Figure 3 of Cordonnier et al. 2020).

The loss of a run is its negative log-likelihood on all its test sets, in bits per token. The cost of a row of runs is
its loss above that of standard heads at the full key dimension (the model's width), seed by seed.
"""

import itertools
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.drawing import drawing, look
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import TrainingRecord, key_dim, lookup
from collab_fairseq.records.scores import ALL, evaluation, score, test_sets
from collab_fairseq.scoring.significance import Interval, over_seeds
from fairseq_modern.errors import UserError

ATTENTION_TYPES = ("standard", "collaborative")
#: attention type and key dim
Row = Tuple[str, int]


def rows(runs: Iterable[TrainingRecord]) -> Dict[Row, Dict[Optional[int], TrainingRecord]]:
    """Row → seed → run.

    Raises:
        UserError: two runs of one row and seed.
    """
    by_row: Dict[Row, Dict[Optional[int], TrainingRecord]] = {}
    for run in runs:
        collaborative = lookup(run, "config.model.collaborative_heads") not in (None, "none")
        row = (ATTENTION_TYPES[collaborative], key_dim(run["config"]["model"], "encoder"))
        seeds = by_row.setdefault(row, {})
        if run["seed"] in seeds:
            raise UserError(f"a row must have one run per seed, but {run['name']} is the second of seed {run['seed']}")
        seeds[run["seed"]] = run
    return by_row


def loss(run: TrainingRecord) -> float:
    """Bits per token over all test sets.

    Raises:
        UserError: the record has no loss of a test set.
    """
    bits = score(run, ALL, "nll")
    if bits is None:
        raise UserError(f"{run['name']} has no loss of a test set")
    return bits


def costs(runs: Sequence[TrainingRecord]) -> Dict[Row, Interval]:
    """Row → its loss above that of standard heads at the full key dimension, with a 95 % interval.

    Rows are compared by the seeds that both have.

    Raises:
        UserError: there are no runs of standard heads at the full key dimension; see also `rows`.
        UserError: a run has no loss of a test set, or was trained on other data.
    """
    width = runs[0]["config"]["model"]["encoder_embed_dim"]
    by_row = rows(runs)
    full = by_row.get((ATTENTION_TYPES[0], width))
    if not full:
        raise UserError(f"expected runs of standard heads at key dim {width}, the width, to compare the others with")
    result: Dict[Row, Interval] = {}
    for row, by_seed in by_row.items():
        seeds = [seed for seed in by_seed if seed in full]
        if seeds:
            sides = [[side[seed] for seed in seeds] for side in (by_seed, full)]
            names = [f"{run['name']} ({ALL})" for side in sides for run in side]
            scored = [[evaluation(run, ALL, "nll") for run in side] for side in sides]
            result[row], _ = over_seeds(*scored, metric="nll", names=names)
    return result


def equivalent_key_dim(losses: Mapping[int, float], value: float) -> str:
    """The smallest key dim with at most this loss, interpolated in log2 between those of key dim → loss.

    Outside of them it is `< ` the smallest or `> ` the largest key dim.
    """
    dims = sorted(losses)
    if value > losses[dims[0]]:
        return f"< {dims[0]}"
    for low, high in itertools.pairwise(dims):
        if losses[high] <= value:
            share = (losses[low] - value) / (losses[low] - losses[high] or 1)
            return f"{low * (high / low) ** share:.0f}"
    return f"> {dims[-1]}"


def draw(runs: Sequence[TrainingRecord], path: PathLike) -> None:
    """Cost against key dim / width with intervals, a line for each attention type; next to it published runs, in BLEU.

    Args:
        runs: records of one model's training runs, those of `results/published`, or both.
        path: a .png or .svg file, which is written atomically.

    Raises:
        UserError: there is nothing to draw. UserError: see `costs`.
    """
    published = [run for run in runs if "published" in run]
    measured = [run for run in runs if "published" not in run]
    panels: List[Tuple[str, str, Dict[Row, Interval], Any]] = []
    if measured:
        panels.append(("This project", "loss above full width,\nbits a token", costs(measured), measured[0]))
    if published:
        authors = published[0]["published"].split(",")[0]
        label = "compound-split BLEU\nbelow full width"
        panels.append((f"{authors} et al.", label, _published(published), published[0]))
    if not panels:
        raise UserError("nothing to draw: there is no record")
    with drawing(path, (4.2 * len(panels), 3.2)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, label, by_row, run) in zip(axes, panels, strict=True):
            width = run["config"]["model"]["encoder_embed_dim"]
            for number, attention_type in enumerate(ATTENTION_TYPES):
                points = sorted((dim / width, cost) for (of, dim), cost in by_row.items() if of == attention_type)
                shares, means = [share for share, _ in points], [cost.mean for _, cost in points]
                errors = [[c.mean - c.low for _, c in points], [c.high - c.mean for _, c in points]]
                axis.errorbar(shares, means, yerr=errors, label=f"{attention_type} heads", **look(number))
            axis.set_xscale("log", base=2)
            axis.set_xticks([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], ["1/16", "1/8", "1/4", "1/2", "1"])
            axis.set_xticks([], minor=True)
            axis.set_xlim(1 / 18, 1.12)
            axis.axhline(0, color="#888888", linewidth=0.8, zorder=1)
            axis.set(xlabel="key dim / width", ylabel=label)
            axis.set_title(f"{title}, width {width}", fontsize="medium")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _published(runs: Sequence[TrainingRecord]) -> Dict[Row, Interval]:
    """Row → its BLEU below that of standard heads at the full key dimension, as published, without an interval."""
    (test,) = test_sets(runs, METRICS["compound_split"])
    bleu = {row: score(run, test, METRICS["compound_split"]) for row, of in rows(runs).items() for run in of.values()}
    full = bleu[ATTENTION_TYPES[0], int(runs[0]["config"]["model"]["encoder_embed_dim"])] or 0.0
    return {row: Interval(full - value, math.nan, math.nan) for row, value in bleu.items() if value is not None}

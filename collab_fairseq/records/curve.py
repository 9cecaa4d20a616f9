"""The curve: what narrow keys cost, with standard and with collaborative heads (Figure 3 of Cordonnier et al. 2020).

The loss of a run is its negative log-likelihood on all its test sets, in bits a token. What a row of runs costs is its
loss above that of standard heads whose key dim is the width of the model, seed by seed.
"""

import itertools
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.drawing import PlotError, drawing, look
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.record import RecordError
from collab_fairseq.records.rows import Run, key_dim, lookup
from collab_fairseq.records.scores import ALL, evaluation, score, test_sets
from collab_fairseq.scoring.significance import Interval, over_seeds

KINDS = ("standard", "collaborative")
#: kind of heads and key dim
Row = Tuple[str, int]


def rows(runs: Iterable[Run]) -> Dict[Row, Dict[Optional[int], Run]]:
    """Row → seed → run.

    Raises:
        RecordError: two runs of one row and seed.
    """
    found: Dict[Row, Dict[Optional[int], Run]] = {}
    for run in runs:
        kind = KINDS[lookup(run, "config.model.collaborative_heads") not in (None, "none")]
        row = found.setdefault((kind, key_dim(run["config"]["model"], "encoder")), {})
        if run["seed"] in row:
            raise RecordError(f"expected one run a row and seed, but {run['name']} is the second of seed {run['seed']}")
        row[run["seed"]] = run
    return found


def loss(run: Run) -> float:
    """Bits a token over all test sets.

    Raises:
        RecordError: the record has no loss of a test set.
    """
    found = score(run, ALL, "nll")
    if found is None:
        raise RecordError(f"{run['name']} has no loss of a test set")
    return found


def costs(runs: Sequence[Run]) -> Dict[Row, Interval]:
    """Row → its loss above that of standard heads at full width, over the seeds that both have, with 95 % intervals.

    Raises:
        RecordError: there are no runs of standard heads at full width; see also `rows`.
        ScoringError: a run has no loss of a test set, or was trained on other data.
    """
    made: Dict[Row, Interval] = {}
    width, found = runs[0]["config"]["model"]["encoder_embed_dim"], rows(runs)
    full = found.get((KINDS[0], width))
    if not full:
        raise RecordError(f"expected runs of standard heads at key dim {width}, the width, to compare the others with")
    for row, of_seeds in found.items():
        sides = [[side[seed] for seed in of_seeds if seed in full] for side in (of_seeds, full)]
        if sides[0]:
            names = [f"{run['name']} ({ALL})" for side in sides for run in side]
            scored = [[evaluation(run, ALL, "nll") for run in side] for side in sides]
            made[row], _ = over_seeds(*scored, metric="nll", names=names)
    return made


def exchange_rate(curve: Mapping[int, float], value: float) -> str:
    """The smallest key dim at which a curve, key dim → loss, comes down to a loss, interpolated in log2.

    Outside the curve it is `< ` its smallest or `> ` its largest key dim.
    """
    dims = sorted(curve)
    if value > curve[dims[0]]:
        return f"< {dims[0]}"
    for low, high in itertools.pairwise(dims):
        if curve[high] <= value:
            share = (curve[low] - value) / (curve[low] - curve[high] or 1)
            return f"{low * (high / low) ** share:.0f}"
    return f"> {dims[-1]}"


def draw(runs: Sequence[Run], path: PathLike) -> None:
    """Cost against key dim / width, two curves with intervals; beside it that of published runs, in BLEU.

    Args:
        runs: records of one model's trainings, those of `results/published`, or both.
        path: a .png or .svg file, which appears whole or not at all.

    Raises:
        PlotError: there is nothing to draw. RecordError, ScoringError: see `costs`.
    """
    published = [run for run in runs if "published" in run]
    own = [run for run in runs if "published" not in run]
    panels: List[Tuple[str, str, Dict[Row, Interval], Any]] = []
    if own:
        panels.append(("This project", "loss above full width,\nbits a token", costs(own), own[0]))
    if published:
        whose, label = published[0]["published"].split(",")[0], "compound-split BLEU\nbelow full width"
        panels.append((f"{whose} et al.", label, _published(published), published[0]))
    if not panels:
        raise PlotError("nothing to draw: there is no record")
    with drawing(path, (4.2 * len(panels), 3.2)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, label, found, run) in zip(axes, panels, strict=True):
            width = run["config"]["model"]["encoder_embed_dim"]
            for number, kind in enumerate(KINDS):
                points = sorted((dim / width, cost) for (of, dim), cost in found.items() if of == kind)
                places, means = [place for place, _ in points], [cost.mean for _, cost in points]
                reach = [[c.mean - c.low for _, c in points], [c.high - c.mean for _, c in points]]
                axis.errorbar(places, means, yerr=reach, label=f"{kind} heads", **look(number))
            axis.set_xscale("log", base=2)
            axis.set_xticks([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], ["1/16", "1/8", "1/4", "1/2", "1"])
            axis.set_xticks([], minor=True)
            axis.set_xlim(1 / 18, 1.12)
            axis.axhline(0, color="#888888", linewidth=0.8, zorder=1)
            axis.set(xlabel="key dim / width", ylabel=label)
            axis.set_title(f"{title}, width {width}", fontsize="medium")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _published(runs: Sequence[Run]) -> Dict[Row, Interval]:
    """Row → its BLEU below that of standard heads at full width, as published, without an interval."""
    (test,) = test_sets(runs, METRICS["compound_split"])
    found = {row: score(run, test, METRICS["compound_split"]) for row, of in rows(runs).items() for run in of.values()}
    whole = found[KINDS[0], int(runs[0]["config"]["model"]["encoder_embed_dim"])] or 0.0
    return {row: Interval(whole - value, math.nan, math.nan) for row, value in found.items() if value is not None}

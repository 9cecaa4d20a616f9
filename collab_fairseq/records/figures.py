"""Figures from records: scores against parameters or time, and validation loss during training."""

import logging
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from collab_fairseq.files import PathLike
from collab_fairseq.records.columns import METRICS, described
from collab_fairseq.records.drawing import COLOURS, DASHES, SMALL, drawing, legend_height, look, points, rows_of
from collab_fairseq.records.rows import TrainingRecord, frame, is_collaborative, key_dim, whole_model
from collab_fairseq.records.scores import list_test_sets, over_runs, score
from collab_fairseq.scoring.significance import Interval, interval
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

#: maximum number of series in a figure
MAX_SERIES = 6
_PANEL = 2.8  # inches: the height of a panel
_X = {"parameters": "parameters (millions)", "wall_time": "training time (hours)"}


class _Point(NamedTuple):
    x: float
    score: Interval
    with_sentences: bool  # the interval is also over the sentences
    key_dim: str


class _Row(NamedTuple):
    variant: str  # attention type and all differing fields but the key dimension
    key_dim: Any
    full: bool  # standard heads at the full key dimension
    curves: Dict[Optional[int], Dict[int, float]]  # seed → update → validation loss


class _Curve(NamedTuple):
    by_update: Dict[int, Interval]
    seeds: int  # their number


def draw_scores(runs: Sequence[TrainingRecord], path: PathLike, x: str, y: str, group_by: Sequence[str]) -> None:
    """Draw a point per row with its 95 % interval and key dimension, in a panel for each test set.

    Args:
        runs: in any order.
        path: a file, or a `FigureFile`.
        x: "parameters" or "wall_time" (of the training).
        y: "sacrebleu", "chrf", "compound_split" or "tokenised".
        group_by: fields that distinguish the rows, as in the table.
    """
    data, tests = frame(runs, group_by), list_test_sets(runs)
    if not tests:
        raise UserError("nothing to draw: no record has scores")
    panels = {test: _points(data, x, test, METRICS[y]) for test in tests}
    for test, series in panels.items():
        if not series:
            raise UserError(f"nothing to draw: no record has {y} of {test} and {x}")
    labels = list(dict.fromkeys(label for series in panels.values() for label in series))
    _check_number(labels)
    title = f"Test scores against {_X[x].partition(' (')[0]}"
    complete = [point.with_sentences for series in panels.values() for drawn in series.values() for point in drawn]
    sentences = " and the sentences" if all(complete) else " (some also over the sentences)" if any(complete) else ""
    seeds = _interval_note(data.groupby("row").size(), "Mean and", f"seeds{sentences}")
    description = f"Numbers at the points: key dimension. {seeds}. Higher is better."
    rows = rows_of(path, len(tests))
    with drawing(path, _PANEL * rows + legend_height(len(labels), 1), title, description) as figure:
        axes = figure.subplots(rows, len(tests) // rows, squeeze=False).flatten()
        for axis, (test, series) in zip(axes, panels.items(), strict=True):
            for label, of_label in series.items():
                points(axis, [p.x for p in of_label], [p.score for p in of_label], label=label, **_look(label, labels))
                side, shift = ("right", (-3, 5)) if _meaning(label) == "standard" else ("left", (3, -12))
                text = {"textcoords": "offset points", "ha": side, "fontsize": SMALL, "color": COLOURS[_meaning(label)]}
                for point in of_label:
                    axis.annotate(point.key_dim, (point.x, point.score.mean), shift, **text)
            axis.margins(0.12)
            axis.locator_params(axis="x", nbins=5)
            axis.ticklabel_format(axis="x", useOffset=False)
            axis.set(xlabel=_X[x], ylabel=METRICS[y], title=test)
        figure.legend(*handles_of(axes), loc="outside upper left")


def _points(data: Any, x: str, test: str, metric: str) -> Dict[str, List[_Point]]:
    """Label → points; one series per attention type and length of training."""
    lengths_differ = data.drop_duplicates("row")["updates"].nunique(dropna=False) > 1
    series: Dict[str, List[_Point]] = {}
    for _, row in data.groupby("row", sort=False):
        # the time differs between seeds, the number of parameters does not
        position = float(row[x].mean() if x == "wall_time" else row[x].iloc[0])
        first, runs = row.iloc[0], [run for run in row["run"] if score(run, test, metric) is not None]
        if math.isnan(position) or not runs:
            continue
        limits = over_runs(runs, test=test, metric=metric)
        label = first["heads"]
        if lengths_differ and first["updates"] is not None:
            label += f", {first['updates']:,} updates"
        if x == "wall_time":  # times of different machines cannot be compared
            label += f", on {' and '.join(sorted(row['machine'].unique()))}"
        position = position / 1e6 if x == "parameters" else position
        series.setdefault(label, []).append(_Point(position, *limits, str(first["key_dim"])))
    return {label: sorted(of_label) for label, of_label in series.items()}


def draw_losses(runs: Sequence[TrainingRecord], path: PathLike, group_by: Sequence[str]) -> None:
    """Draw the validation loss against updates, one curve per row: means over the seeds with 95 % intervals.

    If one row has standard heads at the full key dimension, the curves are the differences of the other rows from it,
    seed by seed. The first quarter of the updates is omitted. The arguments are those of `draw_scores`.
    """
    data = frame(runs, group_by)
    rows = _loss_rows(data, group_by)
    full = [label for label, row in rows.items() if row.full]
    reference = full[0] if len(full) == 1 else ""
    curves = _mean_losses(rows, reference)
    if not curves:
        reference, curves = "", _mean_losses(rows, "")
    if not curves:
        raise UserError("nothing to draw: no record has a validation loss")
    _check_number(list(curves))
    title, ylabel = "Validation loss during training", "validation loss"
    numbers = [curve.seeds for curve in curves.values()]
    notes = [_interval_note(numbers, "Lines and bands: mean and", "seeds"), "Lower is better"]
    if reference:
        omitted = [label for label, row in rows.items() if row.curves and label not in (*curves, reference)]
        if omitted:
            logger.warning("not drawn, without a seed or update of %s: %s", reference, "; ".join(omitted))
        title += ", difference from the full key dimension"
        ylabel = f"difference in {ylabel}"
        notes.insert(0, f"Zero: {reference}")
    dims = sorted({row.key_dim for row in rows.values()}, key=lambda dim: (isinstance(dim, str), dim), reverse=True)
    variants = [row.variant for row in rows.values()]
    with drawing(path, _PANEL + 0.4 + legend_height(len(curves), 1), title, f"{'. '.join(notes)}.") as figure:
        axis = figure.subplots()
        for label, curve in curves.items():
            row = rows[label]
            style = {"linestyle": DASHES[dims.index(row.key_dim) % len(DASHES)], **_look(row.variant, variants)}
            updates, intervals = list(curve.by_update), curve.by_update.values()
            axis.plot(updates, [i.mean for i in intervals], label=label, markevery=0.15, **style)
            low, high = [i.low for i in intervals], [i.high for i in intervals]
            axis.fill_between(updates, low, high, color=style["color"], alpha=0.12, linewidth=0)
        if reference:
            axis.axhline(0, color=COLOURS["reference"], linewidth=0.8)
        axis.set(xlabel="updates", ylabel=ylabel)
        figure.legend(*handles_of([axis]), loc="outside upper left")


def _loss_rows(data: Any, group_by: Sequence[str]) -> Dict[str, _Row]:
    """Label → row; labels have the attention type and the fields that differ between rows."""
    differing = [field for field in group_by if field == "heads" or data[field].nunique(dropna=False) > 1]
    rows: Dict[str, _Row] = {}
    for _, lines in data.groupby("row", sort=False):
        first = lines.iloc[0]
        run = first["run"]
        model = whole_model(run)
        full = not is_collaborative(run) and key_dim(model, "encoder") == model.get("encoder_embed_dim")
        curves = {
            run["seed"]: {p["updates"]: p["loss"] for p in run["curves"].get("valid", []) if "loss" in p}
            for run in lines["run"]
        }
        curves = {seed: curve for seed, curve in curves.items() if curve}
        label = ", ".join(described(field, first[field]) for field in differing)
        others = [described(field, first[field]) for field in differing if field not in ("heads", "key_dim")]
        rows[label] = _Row(", ".join([first["heads"], *others]), first["key_dim"], full, curves)
    return rows


def _mean_losses(rows: Mapping[str, _Row], reference: str) -> Dict[str, _Curve]:
    """Label → means and intervals over the seeds, of differences from ``reference`` unless it is empty."""
    result: Dict[str, _Curve] = {}
    base = rows[reference].curves if reference else {}
    for label, row in rows.items():
        seeds = [seed for seed in row.curves if not reference or seed in base]
        if (reference and label == reference) or not seeds:
            continue
        compared = [*(row.curves[seed] for seed in seeds), *(base[seed] for seed in seeds if reference)]
        updates = sorted(set.intersection(*map(set, compared)))
        intervals = {}
        for update in updates:
            if 4 * update >= updates[-1]:
                losses = [row.curves[seed][update] - (base[seed][update] if reference else 0.0) for seed in seeds]
                intervals[update] = interval(losses)
        if intervals:
            result[label] = _Curve(intervals, len(seeds))
    return result


def _interval_note(seeds: Sequence[int], drawn: str, over: str) -> str:
    """The sentence on means and intervals; `seeds` has the number of seeds of each row."""
    least, most = min(seeds), max(seeds)
    if most == 1:
        return "One run each, without intervals"
    number = str(least) if least == most else f"{least} to {most}"
    return f"{drawn} 95 % interval over {number} {over}"


def _meaning(label: str) -> str:
    return "collaborative" if label.startswith("collaborative") else "standard"


def _look(label: str, labels: Sequence[str]) -> Dict[str, str]:
    """The colour of the attention type and a marker for each of its variants."""
    variants = [other for other in dict.fromkeys(labels) if _meaning(other) == _meaning(label)]
    return look(_meaning(label), variants.index(label))


def handles_of(axes: Sequence[Any]) -> Tuple[List[Any], List[str]]:
    """Handles and labels of all axes, each label once."""
    handles: Dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return list(handles.values()), list(handles)


def _check_number(labels: Sequence[str]) -> None:
    if len(labels) > MAX_SERIES:
        raise UserError(f"a figure can show at most {MAX_SERIES} series; got {len(labels)}: give fewer records")

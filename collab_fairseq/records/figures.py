"""Figures from records: scores against parameters or time, and validation losses; see also key_dim_study.py."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.records.columns import KEYS, METRICS
from collab_fairseq.records.drawing import COLOURS, DASHES, SMALL, drawing, look, points
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import TrainingRecord, frame, key_dim, lookup
from collab_fairseq.records.scores import evaluation, score, test_sets
from collab_fairseq.scoring.significance import Interval, interval, over_seeds
from fairseq_modern.errors import UserError

#: at most N series in a figure
MOST = 6
_PANEL, _LINE = 2.8, 0.18  # inches: the height of a panel and of a line of the legend
_X = {"parameters": "parameters (millions)", "wall_time": "training time (hours)"}


class _Point(NamedTuple):
    x: float
    score: Interval
    key_dim: str


#: update → loss, of each seed
_Curves = Dict[Optional[int], Dict[int, float]]


def draw_scores(runs: Sequence[TrainingRecord], path: PathLike, x: str, y: str, group_by: Sequence[str]) -> None:
    """A point per row with a 95 % interval and its key dimension; a panel for each test set.

    Args:
        runs: in any order.
        path: a .png or .svg file, which is written atomically.
        x: "parameters" or "wall_time" (of the training).
        y: "sacrebleu", "chrf", "compound_split" or "tokenised".
        group_by: fields that distinguish the rows, as in the table.

    Raises:
        UserError: there is nothing to draw, or too much; see also `drawing`.
        UserError: the runs cannot be grouped; see `frame`.
        UserError: runs of one row were scored in different ways.
    """
    data, tests = frame(runs, group_by), test_sets(runs)
    if not tests:
        raise UserError("nothing to draw: no record has scores")
    panels = {test: _points(data, x, test, METRICS[y]) for test in tests}
    for test, series in panels.items():
        if not series:
            raise UserError(f"nothing to draw: no record has {y} of {test} and {x}")
    labels = list(dict.fromkeys(label for series in panels.values() for label in series))
    _check_number(labels)
    title = f"{METRICS[y][0].upper()}{METRICS[y][1:]} against {_X[x].partition(' (')[0]}"
    description = f"Numbers at the points: key dimension. {_seeds(data)}. Higher is better."
    with drawing(path, _PANEL + _LINE * len(labels), title, description) as figure:
        axes = figure.subplots(1, len(tests), squeeze=False)[0]
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
        figure.legend(*_handles(axes), loc="outside upper left")


def draw_losses(runs: Sequence[TrainingRecord], path: PathLike, group_by: Sequence[str]) -> None:
    """The validation loss against updates, a curve per row: means over the seeds with 95 % intervals.

    With one row of standard heads at the full key dimension (the model's width) and other rows with the same seeds, the
    curves are differences from that row. The first quarter, where losses are far higher, is left out. For the arguments
    and errors see `draw_scores`.
    """
    data = frame(runs, group_by)
    several = {field for field in group_by if field == "heads" or data[field].nunique(dropna=False) > 1}
    rows: Dict[str, _Curves] = {}
    about: Dict[str, Any] = {}
    full: List[str] = []
    for _, row in data.groupby("row", sort=False):
        first = row.iloc[0]
        label = ", ".join(_named(field, first[field]) for field in group_by if field in several)
        curves = {run["seed"]: _valid(run) for run in row["run"]}
        rows[label] = {seed: curve for seed, curve in curves.items() if curve}
        about[label] = first
        model = first["run"]["config"]["model"]
        standard = lookup(first["run"], "config.model.collaborative_heads") in (None, "none")
        if standard and key_dim(model, "encoder") == model.get("encoder_embed_dim"):
            full.append(label)
    reference = full[0] if len(full) == 1 else ""
    shown = _losses(rows, reference)
    if not shown:
        reference, shown = "", _losses(rows, "")
    if not shown:
        raise UserError("nothing to draw: no record has a validation loss")
    _check_number(list(shown))
    zero = f"zero: {reference}" if reference else ""
    seeds = _seeds(data).replace("Mean", "Lines and bands: mean").replace(" and the sentences", "")
    words = [*filter(None, (zero, seeds)), "lower is better"]
    description = ". ".join(part[0].upper() + part[1:] for part in words) + "."
    title = "Validation loss during training" + (", difference from the full key dimension" if reference else "")
    dims = sorted(
        {about[label]["key_dim"] for label in rows}, key=lambda dim: (isinstance(dim, str), dim), reverse=True
    )
    styles = [DASHES[dims.index(about[label]["key_dim"]) % len(DASHES)] for label in shown]
    with drawing(path, _PANEL + 0.4 + _LINE * len(shown), title, description) as figure:
        axis = figure.subplots()
        heads = [about[label]["heads"] for label in rows]
        for (label, curve), dash in zip(shown.items(), styles, strict=True):
            style = {"linestyle": dash, **_look(about[label]["heads"], heads)}
            updates, colour = list(curve), style["color"]
            axis.plot(updates, [i.mean for i in curve.values()], label=label, markevery=0.15, **style)
            low, high = [i.low for i in curve.values()], [i.high for i in curve.values()]
            axis.fill_between(updates, low, high, color=colour, alpha=0.12, linewidth=0)
        if reference:
            axis.axhline(0, color=COLOURS["reference"], linewidth=0.8)
        axis.set(xlabel="updates", ylabel="difference in validation loss" if reference else "validation loss")
        figure.legend(*_handles([axis]), loc="outside upper left")


def _points(data: Any, x: str, test: str, metric: str) -> Dict[str, List[_Point]]:
    """Label → points; one series per attention type and length of training."""
    several = data.drop_duplicates("row")["updates"].nunique(dropna=False) > 1
    series: Dict[str, List[_Point]] = {}
    for _, row in data.groupby("row", sort=False):
        # the time differs between seeds, the number of parameters does not
        position = row[x].mean() if x == "wall_time" else row[x].iloc[0]
        first, runs = row.iloc[0], [run for run in row["run"] if score(run, test, metric) is not None]
        if position is None or position != position or not runs:
            continue
        names = [f"{run['name']} ({test})" for run in runs]
        limits, _ = over_seeds([evaluation(run, test, metric) for run in runs], metric=metric, names=names)
        label = first["heads"]
        if several and first["updates"] is not None:
            label += f", {first['updates']:,} updates"
        if x == "wall_time":  # times of different machines cannot be compared
            label += f", on {' and '.join(sorted(row['machine'].unique()))}"
        position = position / 1e6 if x == "parameters" else position
        series.setdefault(label, []).append(_Point(position, limits, str(first["key_dim"])))
    return {label: sorted(of_label) for label, of_label in series.items()}


def _valid(run: TrainingRecord) -> Dict[int, float]:
    """Update → validation loss."""
    return {p["updates"]: p["loss"] for p in run["curves"].get("valid", []) if "loss" in p}


def _losses(rows: Mapping[str, _Curves], reference: str) -> Dict[str, Dict[int, Interval]]:
    """Label → update → mean and interval over the seeds; of differences, unless ``reference`` is empty."""
    found: Dict[str, Dict[int, Interval]] = {}
    for label, by_seed in rows.items():
        seeds = [seed for seed in by_seed if not reference or seed in rows[reference]]
        if label == reference or not seeds:
            continue
        compared = [rows[reference][seed] for seed in seeds] if reference else []
        updates = sorted(set.intersection(*(set(curve) for curve in (*(by_seed[s] for s in seeds), *compared))))
        values = {
            update: [by_seed[seed][update] - (rows[reference][seed][update] if reference else 0.0) for seed in seeds]
            for update in updates
            if 4 * update >= updates[-1]
        }
        if values:
            found[label] = {update: interval(numpy.array(losses)) for update, losses in values.items()}
    return found


def _seeds(data: Any) -> str:
    """What points and error bars are."""
    sizes = sorted(data.groupby("row", sort=False).size().unique())
    if sizes[-1] == 1:
        return "One run each, so that there is no interval"
    number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"Mean and 95 % interval over {number} seeds and the sentences"


def _named(field: str, value: Any) -> str:
    if field == "heads":
        return str(value)
    return f"{'key dimension' if field == 'key_dim' else KEYS.get(field) or field.split('.')[-1]} {value}"


def _meaning(label: str) -> str:
    return "collaborative" if label.startswith("collaborative") else "standard"


def _look(label: str, labels: Sequence[str]) -> Dict[str, str]:
    """The colour of the attention type, and a mark for each of its variants."""
    alike = [other for other in dict.fromkeys(labels) if _meaning(other) == _meaning(label)]
    return look(_meaning(label), alike.index(label))


def _handles(axes: Sequence[Any]) -> Tuple[List[Any], List[str]]:
    """Handles and labels of all axes, each label once."""
    found: Dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _check_number(labels: Sequence[str]) -> None:
    if len(labels) > MOST:
        raise UserError(f"expected at most {MOST} series, got {len(labels)}: give fewer records")

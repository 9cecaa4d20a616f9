"""Figures from records: scores against key dim, parameters or time, and loss curves."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.records.drawing import COLOURS, MARKS, PlotError, drawing
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import (
    KEYS,
    METRICS,
    NUMBERS,
    Row,
    Run,
    hardware,
    heads,
    hours,
    key_dim,
    last_loss,
    make_rows,
    mean_and_deviation,
    score,
    test_sets,
)

_PANEL = (4.2, 3.0)  # inches
#: what a point's place says
_AXES = {"key_dim": KEYS["key_dim"][0], "parameters": "parameters (millions)", "wall_time": NUMBERS["wall_time"][0]}


def draw(runs: Sequence[Run], path: PathLike, x: str, y: str, group_by: Sequence[str]) -> None:
    """Draw a figure into a .png or .svg file.

    Args:
        runs: in any order.
        path: the file, which appears whole or not at all.
        x: "key_dim", "parameters" or "wall_time" (of the training), one point per row and error bars of one standard
            deviation over the seeds; or "updates", one curve of the validation loss per run.
        y: "sacrebleu", "compound_split" or "tokenised", a panel for each test set; or "valid_loss".
        group_by: fields that tell the rows apart, as in the table.

    Raises:
        PlotError: matplotlib is not installed, the file has another ending, or there is nothing to draw.
        RecordError: the runs cannot be put together; see `make_rows`.
    """
    rows = make_rows(runs, group_by)
    panels = test_sets(rows) if y in METRICS else [""]
    if not panels:
        raise PlotError("nothing to draw: no record has scores")
    with drawing(path, (_PANEL[0] * len(panels), _PANEL[1])) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, test in zip(axes, panels, strict=True):
            drawn = _curves(axis, rows, group_by) if x == "updates" else _points(axis, rows, x, y, test)
            if not drawn:
                raise PlotError(f"nothing to draw: no record has {y}{f' of {test}' if test else ''} and {x}")
            if test:
                axis.set_title(test, fontsize="medium")
        handles, labels = axes[0].get_legend_handles_labels()
        beside = sum(map(len, labels)) < 35 * len(panels)  # characters that fit the width
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if beside else 1)


def _value(run: Run, name: str, test: str) -> Any:
    if name in METRICS:
        return score(run.record, test, METRICS[name])
    return last_loss(run.record)


def _points(axis: Any, rows: Sequence[Row], x: str, y: str, test: str) -> bool:
    """One series per kind of heads and length of training; returns whether anything was drawn."""
    lengths = {row.runs[0].record["training"]["updates"] for row in rows}
    series: Dict[str, List[Tuple[float, float, float]]] = {}
    for row in rows:
        record = row.runs[0].record
        place = _place(row, x)
        values = [value for value in (_value(run, y, test) for run in row.runs) if value is not None]
        if place is None or not values:
            continue
        updates = record["training"]["updates"]
        label = heads(record) + (f", {updates:,} updates" if len(lengths) > 1 and updates is not None else "")
        if x == "wall_time":  # times of different machines cannot be compared
            label += f", on {' and '.join(sorted({hardware(run.record) for run in row.runs}))}"
        mean, deviation = mean_and_deviation(values)
        series.setdefault(label, []).append((place, mean, deviation or 0.0))
    for number, (label, points) in enumerate(series.items()):
        places, means, deviations = zip(*sorted(points), strict=True)
        axis.errorbar(places, means, yerr=deviations, label=label, **_look(number))
    ticks = sorted({point[0] for points in series.values() for point in points})
    if x == "key_dim" and ticks:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
    else:
        axis.locator_params(axis="x", nbins=5)
        axis.ticklabel_format(axis="x", useOffset=False)
    axis.set_xlabel(_AXES[x])
    axis.set_ylabel(METRICS[y] if y in METRICS else NUMBERS["valid_loss"][0])
    return bool(series)


def _curves(axis: Any, rows: Sequence[Row], group_by: Sequence[str]) -> bool:
    """One curve of the validation loss per run, all seeds of a row in one colour."""
    drawn = False
    tells = [len({row.key[place] for row in rows}) > 1 for place in range(len(group_by))]
    for number, row in enumerate(rows):
        named = [
            str(value) if field == "heads" else f"{KEYS[field][0] if field in KEYS else field.split('.')[-1]} {value}"
            for field, value, differs in zip(group_by, row.key, tells, strict=True)
            if differs or field == "heads"
        ]
        label = ", ".join(named)
        for run in row.runs:
            points = [(p["updates"], p["loss"]) for p in run.record["curves"].get("valid", []) if "loss" in p]
            if not points:
                continue
            look = {**_look(number), "marker": None}
            axis.plot(*zip(*points, strict=True), label=label, alpha=0.85, **look)
            label, drawn = "_nolegend_", True
    axis.set_xlabel("updates")
    axis.set_ylabel("validation loss")
    return drawn


def _place(row: Row, x: str) -> Optional[float]:
    """Where a row is on the horizontal axis: the same for all seeds, but for the time."""
    record = row.runs[0].record
    if x == "key_dim":
        return key_dim(record)
    if x == "parameters":
        return None if record["parameters"] is None else record["parameters"] / 1e6
    times = [time for time in (hours(run.record) for run in row.runs) if time is not None]
    return mean_and_deviation(times)[0] if times else None


def _look(number: int) -> Dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}

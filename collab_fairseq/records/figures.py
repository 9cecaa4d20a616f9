"""Figures from records: scores against key dim, parameters or time, and loss curves; see also curve.py."""

from typing import Any, Dict, List, Sequence, Tuple

from collab_fairseq.records.drawing import PlotError, drawing, look
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import KEYS, NUMBERS, Run, frame
from collab_fairseq.records.scores import METRICS, score, test_sets

#: series in a figure
MOST = 6
_PANEL, _LINE = (4.2, 3.0), 0.2  # inches: a panel, and the height of a line
#: what a point's place says
_AXES = {"key_dim": KEYS["key_dim"], "parameters": "parameters (millions)", "wall_time": NUMBERS["wall_time"][0]}


def draw(runs: Sequence[Run], path: PathLike, x: str, y: str, group_by: Sequence[str]) -> None:
    """Draw a figure into a .png or .svg file.

    Args:
        runs: in any order.
        path: the file, which appears whole or not at all.
        x: "key_dim", "parameters" or "wall_time" (of the training), one point per row and error bars of one standard
            deviation over the seeds; or "updates", one curve of the validation loss per run.
        y: "sacrebleu", "chrf", "compound_split" or "tokenised", a panel for each test set; or "valid_loss".
        group_by: fields that tell the rows apart, as in the table.

    Raises:
        PlotError: matplotlib is not installed, the file has another ending, or there is nothing to draw, or too much.
        RecordError: the runs cannot be put together; see `frame`.
    """
    data = frame(runs, group_by)
    panels = test_sets(runs) if y in METRICS else [""]
    if not panels:
        raise PlotError("nothing to draw: no record has scores")
    with drawing(path, (_PANEL[0] * len(panels), _PANEL[1])) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, test in zip(axes, panels, strict=True):
            values = data["run"].map(lambda run, test=test: score(run, test, METRICS[y])) if test else data[y]
            data["shown"] = values.astype(float)
            drawn = _curves(axis, data, group_by) if x == "updates" else _points(axis, data, x)
            if not drawn:
                raise PlotError(f"nothing to draw: no record has {y}{f' of {test}' if test else ''} and {x}")
            axis.set_ylabel(METRICS[y] if test else NUMBERS["valid_loss"][0])
            axis.set_title(test, fontsize="medium")
        handles, labels = axes[0].get_legend_handles_labels()
        if len(labels) > MOST:
            raise PlotError(f"expected at most {MOST} series, got {len(labels)}: give fewer records")
        beside = sum(map(len, labels)) < 35 * len(panels)  # characters that fit the width
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if beside else 1)
        if not beside:  # a line each, which is not to be taken from the panels
            figure.set_figheight(_PANEL[1] + _LINE * len(labels))


def _points(axis: Any, data: Any, x: str) -> bool:
    """One series per kind of heads and length of training; returns whether anything was drawn."""
    several = data.drop_duplicates("row")["updates"].nunique(dropna=False) > 1
    series: Dict[str, List[Tuple[float, float, float]]] = {}
    for _, row in data.groupby("row", sort=False):
        # the same for all seeds, but for the time
        place = row[x].mean() if x == "wall_time" else row[x].iloc[0]
        values, updates, label = row["shown"].dropna(), row["updates"].iloc[0], row["heads"].iloc[0]
        if place is None or place != place or values.empty:
            continue
        if several and updates is not None:
            label += f", {updates:,} updates"
        if x == "wall_time":  # times of different machines cannot be compared
            label += f", on {' and '.join(sorted(row['machine'].unique()))}"
        deviation = values.std() if len(values) > 1 else 0.0
        series.setdefault(label, []).append((place / 1e6 if x == "parameters" else place, values.mean(), deviation))
    for number, (label, points) in enumerate(series.items()):
        places, means, deviations = zip(*sorted(points), strict=True)
        axis.errorbar(places, means, yerr=deviations, label=label, **look(number))
    ticks = sorted({point[0] for points in series.values() for point in points})
    if x == "key_dim" and ticks:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
    else:
        axis.locator_params(axis="x", nbins=5)
        axis.ticklabel_format(axis="x", useOffset=False)
    axis.set_xlabel(_AXES[x])
    return bool(series)


def _curves(axis: Any, data: Any, group_by: Sequence[str]) -> bool:
    """One curve of the validation loss per run, but for its first tenth, which is far higher; a colour for each row."""
    drawn = False
    told = [field for field in group_by if field == "heads" or data[field].nunique(dropna=False) > 1]
    for number, (_, row) in enumerate(data.groupby("row", sort=False)):
        first = row.iloc[0]
        names = {field: KEYS.get(field) or field.split(".")[-1] for field in told}
        label = ", ".join(str(first[f]) if f == "heads" else f"{name} {first[f]}" for f, name in names.items())
        for run in row["run"]:
            points = [(p["updates"], p["loss"]) for p in run["curves"].get("valid", []) if "loss" in p]
            if not points:
                continue
            points = [point for point in points if 10 * point[0] >= points[-1][0]]
            axis.plot(*zip(*points, strict=True), label=label, alpha=0.85, **{**look(number), "marker": None})
            label, drawn = "_nolegend_", True
    axis.set_xlabel("updates")
    return drawn

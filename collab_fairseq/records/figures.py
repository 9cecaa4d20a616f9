"""Figures from records: scores against parameters or time, and loss curves; see also key_dim_study.py."""

import contextlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from collab_fairseq.records.columns import KEYS, METRICS, NUMBERS
from collab_fairseq.records.drawing import drawing, look
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import TrainingRecord, frame
from collab_fairseq.records.scores import score, test_sets
from fairseq_modern.errors import UserError

#: at most N series in a figure
MOST = 6
_PANEL, _LINE = (4.2, 3.0), 0.2  # inches: a panel, and the height of a line


def draw_scores(runs: Sequence[TrainingRecord], path: PathLike, x: str, y: str, group_by: Sequence[str]) -> None:
    """A point per row, with error bars of one standard deviation over the seeds; a panel for each test set.

    Args:
        runs: in any order.
        path: a .png or .svg file, which is written atomically.
        x: "parameters" or "wall_time" (of the training).
        y: "sacrebleu", "chrf", "compound_split" or "tokenised".
        group_by: fields that distinguish the rows, as in the table.

    Raises:
        UserError: there is nothing to draw, or too much; see also `drawing`.
        UserError: the runs cannot be grouped; see `frame`.
    """
    data, tests = frame(runs, group_by), test_sets(runs)
    if not tests:
        raise UserError("nothing to draw: no record has scores")
    with _panels(path, len(tests)) as axes:
        for axis, test in zip(axes, tests, strict=True):
            data["shown"] = data["run"].map(lambda run, test=test: score(run, test, METRICS[y])).astype(float)
            if not _points(axis, data, x):
                raise UserError(f"nothing to draw: no record has {y} of {test} and {x}")
            axis.set_ylabel(METRICS[y])
            axis.set_title(test, fontsize="medium")


def draw_losses(runs: Sequence[TrainingRecord], path: PathLike, group_by: Sequence[str]) -> None:
    """A curve of the validation loss against updates per run; for the arguments and errors see `draw_scores`."""
    data = frame(runs, group_by)
    with _panels(path, 1) as (axis,):
        if not _curves(axis, data, group_by):
            raise UserError("nothing to draw: no record has a validation loss")
        axis.set_ylabel(NUMBERS["valid_loss"][0])


@contextlib.contextmanager
def _panels(path: PathLike, number: int) -> Iterator[Any]:
    """The axes of a figure, to which a legend is added."""
    with drawing(path, (_PANEL[0] * number, _PANEL[1])) as figure:
        axes = figure.subplots(1, number, squeeze=False)[0]
        yield axes
        handles, labels = axes[0].get_legend_handles_labels()
        if len(labels) > MOST:
            raise UserError(f"expected at most {MOST} series, got {len(labels)}: give fewer records")
        one_line = sum(map(len, labels)) < 35 * number  # characters that fit the width
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if one_line else 1)
        if not one_line:  # a line for each label, above panels of the same height
            figure.set_figheight(_PANEL[1] + _LINE * len(labels))


def _points(axis: Any, data: Any, x: str) -> bool:
    """One series per attention type and length of training; returns whether anything was drawn."""
    several = data.drop_duplicates("row")["updates"].nunique(dropna=False) > 1
    series: Dict[str, List[Tuple[float, float, float]]] = {}
    for _, row in data.groupby("row", sort=False):
        # the time differs between seeds, the number of parameters does not
        position = row[x].mean() if x == "wall_time" else row[x].iloc[0]
        values, updates, label = row["shown"].dropna(), row["updates"].iloc[0], row["heads"].iloc[0]
        if position is None or position != position or values.empty:
            continue
        if several and updates is not None:
            label += f", {updates:,} updates"
        if x == "wall_time":  # times of different machines cannot be compared
            label += f", on {' and '.join(sorted(row['machine'].unique()))}"
        deviation = values.std() if len(values) > 1 else 0.0
        position = position / 1e6 if x == "parameters" else position
        series.setdefault(label, []).append((position, values.mean(), deviation))
    for number, (label, points) in enumerate(series.items()):
        positions, means, deviations = zip(*sorted(points), strict=True)
        axis.errorbar(positions, means, yerr=deviations, label=label, **look(number))
    axis.locator_params(axis="x", nbins=5)
    axis.ticklabel_format(axis="x", useOffset=False)
    axis.set_xlabel("parameters (millions)" if x == "parameters" else NUMBERS[x][0])
    return bool(series)


def _curves(axis: Any, data: Any, group_by: Sequence[str]) -> bool:
    """One curve of the validation loss per run without its first tenth, which is far higher; a colour for each row."""
    drawn = False
    named = [field for field in group_by if field == "heads" or data[field].nunique(dropna=False) > 1]
    for number, (_, row) in enumerate(data.groupby("row", sort=False)):
        first = row.iloc[0]
        names = {field: KEYS.get(field) or field.split(".")[-1] for field in named}
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

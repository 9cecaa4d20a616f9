"""Figure 5 of the paper from records of run.py: score against key dimension, with and without fine-tuning again.

    python -m recipes glue figure results/glue/*.json --output results/glue/figure-5.svg

A .pdf file has no title and description, which belong in the caption.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any, Mapping, Sequence

from collab_fairseq.files import PathLike
from collab_fairseq.records.drawing import (
    COLOURS,
    WIDTH,
    FigureFile,
    add_width_flag,
    drawing,
    is_narrow,
    legend_columns,
    legend_height,
    points,
)
from collab_fairseq.records.figures import handles_of
from collab_fairseq.records.record import load
from collab_fairseq.scoring.significance import Interval
from recipes.glue.table import CONSTANT, STANDARD, Study, studies
from recipes.glue.tasks import TASKS, TITLES

#: kind of stage → label, colour and marker of its line
LINES = {
    "converted": ("converted", COLOURS["encoder"], "^"),
    "tuned": ("converted, then fine-tuned again", COLOURS["collaborative"], "s"),
}
#: stage → label, colour and line style of its level
LEVELS = {
    STANDARD: ("standard heads", COLOURS["standard"], "--"),
    CONSTANT: ("constant prediction", COLOURS["reference"], ":"),
}
#: metrics of a task → name of the score
SCORES = {
    ("accuracy",): "accuracy",
    ("matthews",): "Matthews correlation",
    ("accuracy", "f1"): "mean of accuracy and F1",
    ("pearson", "spearman"): "mean of Pearson and Spearman",
}


def draw(records: Sequence[Mapping[str, Any]], path: PathLike) -> None:
    """One panel per task: medians over the seeds, with the range as bars; a .svg, .png or .pdf file."""
    (study,) = studies(list(map(dict, records)))
    tasks = [task for task in study.tasks if any(study.by_seed(stage, task) for stage in study.stages if "/" in stage)]
    columns = 1 if is_narrow(path) else min(2, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    legend = legend_columns(path, len(LINES) + len(LEVELS), narrow=1)
    height = 0.2 + 2.2 * rows + legend_height(len(LINES) + len(LEVELS), legend)
    numbers = [len(scores) for task in tasks for stage in study.stages if (scores := study.by_seed(stage, task))]
    seeds = f"{min(numbers)} to {max(numbers)}" if min(numbers) < max(numbers) else str(max(numbers))
    title = f"Score against the shared key dimension, {study.model['name']}"
    description = (
        f"GLUE validation sets. Points: median over the seeds (their number: {seeds}); bars: their range. "
        f"Standard heads have the key dimension {study.model['width']}, summed over heads. Higher is better."
    )
    with drawing(path, height, title, description) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, task in zip(axes, tasks, strict=False):
            _panel(axis, study, task)
        for axis in axes[len(tasks) :]:
            axis.set_visible(False)
        figure.legend(*handles_of(axes), loc="outside upper center", ncols=legend)


def _panel(axis: Any, study: Study, task: str) -> None:
    for kind, (label, colour, marker) in LINES.items():
        scores = {dim: list(study.by_seed(f"{kind}/{dim}", task).values()) for dim in study.key_dims}
        shown = {dim: values for dim, values in sorted(scores.items()) if values}
        if shown:
            intervals = [Interval(statistics.median(v), min(v), max(v)) for v in shown.values()]
            points(axis, list(shown), intervals, label=label, color=colour, marker=marker)
    for stage, (label, colour, style) in LEVELS.items():
        level = list(study.by_seed(stage, task).values())
        if level:
            axis.axhline(statistics.median(level), color=colour, linestyle=style, label=label, linewidth=1.2)
    axis.set_xscale("log", base=2)
    axis.set_xticks(study.key_dims, [str(dim) for dim in study.key_dims])
    axis.minorticks_off()
    axis.set_title(f"{TITLES[task]}, {SCORES[TASKS[task].metrics]}")
    axis.set(xlabel="shared key dimension", ylabel="score × 100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="record.json of run.py, of one model")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="a .svg, .png or .pdf file")
    add_width_flag(parser)
    args = parser.parse_args()
    file = FigureFile(args.output, args.width or WIDTH)
    draw([load(path, "study") for path in args.records], file)

#!/usr/bin/env python3
"""Draw docs/idea.svg: queries and keys of concatenated and of collaborative heads, for light and dark backgrounds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

#: Okabe and Ito's colours, one per head; TEXT is legible on white and on black
HEADS, SHARED, TEXT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), "#8a8f98", "#7d838c"
SIZE = 4  # dimensions of a concatenated head, and of all shared dimensions
STYLE = {
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": TEXT,
    "svg.fonttype": "none",
    "svg.hashsalt": "idea",
}


def cells(axis: Axes, x: float, y: float, colour: str, opacities: Iterable[float] = (1.0,) * SIZE) -> None:
    """A row of squares, one per dimension, around the height y."""
    for number, alpha in enumerate(opacities):
        axis.add_patch(Rectangle((x + number, y - 0.45), 0.9, 0.9, facecolor=colour, alpha=alpha, linewidth=0))


def words(axis: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axis.text(x, y, text, va="center", **style)


def concatenated(axis: Axes) -> None:
    """Each head has its own dimensions of queries and keys."""
    words(axis, 4, 5.5, "queries")
    words(axis, 10, 5.5, "keys")
    for number, colour in enumerate(HEADS):
        row = 4 - 1.2 * number
        words(axis, 0, row, f"head {number + 1}", color=colour)
        cells(axis, 4, row, colour)
        words(axis, 8.95, row, "·", ha="center", fontsize=24)
        cells(axis, 10, row, colour)
    words(axis, 0, -1.2, "16 dimensions of queries, 16 of keys")


def collaborative(axis: Axes) -> None:
    """All heads share the dimensions; each has a row of the mixing matrix."""
    middle = 4 - 1.2 * (len(HEADS) - 1) / 2
    words(axis, 0, 5.5, "queries")
    cells(axis, 0, middle, SHARED)
    words(axis, 4.95, middle, "⊙", ha="center", fontsize=14)
    words(axis, 6, 5.5, "mixing matrix")
    weights = numpy.random.default_rng(3).uniform(0.15, 1.0, (len(HEADS), SIZE))
    for number, colour in enumerate(HEADS):
        row = 4 - 1.2 * number
        cells(axis, 6, row, colour, weights[number])
        words(axis, 10.2, row, f"head {number + 1}", color=colour)
    words(axis, 14.1, middle, "·", ha="center", fontsize=24)
    words(axis, 15, 5.5, "keys")
    cells(axis, 15, middle, SHARED)
    words(axis, 0, -1.2, "4 shared dimensions of queries, 4 of keys; 16 weights")


def main() -> None:
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(9, 2.5))
    panels = (("Concatenated heads", concatenated), ("Collaborative heads", collaborative))
    for number, (title, draw) in enumerate(panels):
        axis = figure.add_axes((0.01 + 0.4 * number, 0.0, 0.6, 0.88))
        axis.set(xlim=(0, 24), ylim=(-2, 6.4), aspect="equal", anchor="W")
        axis.axis("off")
        axis.set_title(title, color=TEXT, fontweight="bold", loc="left")
        draw(axis)
    figure.savefig(Path(__file__).with_suffix(".svg"), transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()

"""Drawing with matplotlib (the extra `plots`), in the style of the project's other figures."""

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records.drawing import drawing
from collab_fairseq.records.files import PathLike

#: diverging and sequential colours of heat maps
DIVERGING, SEQUENTIAL = "RdBu_r", "Blues"
SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}


class Panel(NamedTuple):
    """One heat map: numbers (None is blank), which of them get a star, and labels (None: 1, 2, …)."""

    title: str
    values: Sequence[Sequence[Optional[float]]]
    stars: Optional[Sequence[Sequence[Optional[bool]]]] = None
    rows: Optional[Sequence[str]] = None
    columns: Optional[Sequence[str]] = None


def draw_panels(
    lines: Sequence[Sequence[Panel]],
    path: PathLike,
    *,
    limits: Tuple[float, float],
    colours: str,
    form: str = "",
    cell: float = 0.42,
    label: str = "",
    title: str = "",
    axes_of: Tuple[str, str] = ("", ""),
) -> None:
    """Heat maps side by side in lines, with one scale of colours.

    Args:
        limits: of that scale. form: format of the numbers that stand in the squares, such as ``.1f``; empty: none.
        cell: side of a square in inches, down to a least size of the panel.
        label: of the colour bar; empty: no bar. title: of the figure. axes_of: labels of rows and of columns.

    Raises:
        PlotError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    shapes = [(len(panel.values), len(panel.values[0])) for line in lines for panel in line]
    height, width = (max(1.2, cell * max(sides)) for sides in zip(*shapes, strict=True))
    across = max(len(line) for line in lines)
    size = ((1.4 if label else 0.8) + across * (0.4 + width), 0.4 + len(lines) * (0.7 + height))
    small: Dict[str, Any] = {"fontsize": "small" if cell > 0.2 else 5}
    with drawing(path, size) as figure:
        axes = figure.subplots(len(lines), across, squeeze=False)
        for row, line in zip(axes, lines, strict=True):
            for axis in row[len(line) :]:
                axis.set_visible(False)
            for axis, panel in zip(row, line, strict=False):
                image = _heat_map(axis, panel, limits, colours, form)
                axis.set_title(panel.title, fontsize="small")
                axis.set_yticks(*_ticks(panel.rows, len(panel.values)), **small)
                axis.set_xticks(*_ticks(panel.columns, len(panel.values[0])), **small)
                if any(len(name) > 3 for name in panel.columns or ()):
                    axis.tick_params("x", rotation=90)
            row[0].set_ylabel(axes_of[0])
        for axis in axes[-1]:
            axis.set_xlabel(axes_of[1])
        figure.suptitle(title, fontsize="medium")
        if label:
            figure.colorbar(image, ax=axes, label=label)


def _heat_map(axis: Any, panel: Panel, limits: Tuple[float, float], colours: str, form: str) -> Any:
    values = numpy.array(panel.values, dtype=float)  # None becomes NaN
    image = axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="equal")
    axis.grid(visible=False)
    for (row, column), value in numpy.ndenumerate(values):
        if form and not numpy.isnan(value):
            place = float(image.norm(value))
            dark = place > 0.75 or (colours == DIVERGING and place < 0.25)
            text = format(value, form) + ("*" if panel.stars and panel.stars[row][column] else "")
            axis.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    return image


def _ticks(names: Optional[Sequence[str]], count: int) -> Tuple[Sequence[int], List[str]]:
    shown = map(str, range(1, count + 1)) if names is None else names
    labels = [name.replace("$", r"\$") for name in shown]  # matplotlib would begin a formula
    return range(len(labels)), labels


def grids(values: Mapping[str, Any]) -> Iterator[Tuple[str, List[List[Optional[Any]]]]]:
    """Head → value as (site, rows of layers × heads), None where a layer has fewer heads."""
    for letter, site in LETTERS.items():
        names = [name.split(":") for name in values if name.startswith(f"{letter}:")]
        if names:
            layers, heads = (max(int(name[place]) for name in names) for place in (1, 2))
            yield site, [[values.get(f"{letter}:{y}:{x}") for x in range(1, heads + 1)] for y in range(1, layers + 1)]


def draw_grids(
    figures: Mapping[str, Mapping[str, float]],
    path: PathLike,
    *,
    colours: str = SEQUENTIAL,
    form: str = ".2f",
    marked: Sequence[Sequence[str]] = (),
    **options: Any,
) -> None:
    """Heat maps of a number of every head: a line of them for every entry of ``figures``, one for each site.

    Args:
        figures: title → head → number. marked: for each entry, the heads that get a star.
        options: of :func:`draw_panels`, which also says what it raises.
    """
    lines = []
    for number, (title, values) in enumerate(figures.items()):
        stars = dict(grids({name: name in marked[number] for name in values})) if marked else {}
        lines.append([
            Panel("\n".join(filter(None, (title, SITE_TITLES[site]))), rows, stars.get(site))
            for site, rows in grids(values)
        ])  # fmt: skip
    draw_panels(lines, path, colours=colours, form=form, axes_of=("layer", "head"), **options)

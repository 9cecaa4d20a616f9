"""Heat maps of one number per head, and names that all figures of heads share."""

import math
import os
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.files import PathLike
from collab_fairseq.modules.head_names import LETTERS
from collab_fairseq.records.drawing import COLOURS, DIVERGING, SEQUENTIAL, SMALL, drawing, number_text, rows_of

SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}
#: width of a square, in inches, from which it shows its number, and from which it shows it in the usual size
WIDTH_WITH_NUMBER, WIDTH_OF_NUMBER = 0.25, 0.36
_DIGIT = 0.075  # inches: the width of a digit of a tick label


class Panel(NamedTuple):
    """A heat map of layers and heads.

    Attributes:
        title: of the panel. rows: value by layer and head; None where a layer has fewer heads. marked: heads with a
            frame, of the same shape.
    """

    title: str
    rows: List[List[Optional[float]]]
    marked: List[List[Optional[bool]]]


class Column(NamedTuple):
    """Heat maps with one colour scale, one below the other.

    Attributes:
        heading: above the panels; may be empty. label: of the colour scale.
        panels: from top to bottom. largest: upper end of the scale.
        signed: the scale starts at -largest instead of 0. lines: values that the colour scale marks.
    """

    heading: str
    label: str
    panels: Sequence[Panel]
    largest: float
    signed: bool = False
    lines: Sequence[float] = ()


def panels_of(values: Mapping[str, float], marked: Sequence[str] = (), what: str = "") -> List[Panel]:
    """One panel for each site with values, in the order of `SITE_TITLES`; ``what`` is added to their titles."""
    frames = dict(grids({head: head in marked for head in values}))
    by_site = dict(grids(values))
    return [
        Panel(SITE_TITLES[site] + (f": {what}" if what else ""), by_site[site], frames[site])
        for site in SITE_TITLES
        if site in by_site
    ]


def names_of_tests(settings: Mapping[str, Any]) -> Dict[str, str]:
    """Test split → name of its reference file without the suffix, from the settings of a record."""
    files = {test["split"]: test["references"]["file"] for test in settings.get("tests", ())}
    if isinstance(settings.get("text"), dict):
        files["text"] = settings["text"]["file"]
    return {split: os.path.splitext(file)[0] for split, file in files.items()}


def grids(values: Mapping[str, Any]) -> Iterator[Tuple[str, List[List[Optional[Any]]]]]:
    """(site, values by layer and head) for each site; None where a layer has fewer heads than the widest one."""
    for letter, site in LETTERS.items():
        names = [name.split(":") for name in values if name.startswith(f"{letter}:")]
        if not names:
            continue
        layers = max(int(layer) for _, layer, _ in names)
        heads = max(int(head) for _, _, head in names)
        rows = []
        for layer in range(1, layers + 1):
            rows.append([values.get(f"{letter}:{layer}:{head}") for head in range(1, heads + 1)])
        yield site, rows


def draw_grids(columns: Sequence[Column], path: PathLike, title: str, description: str) -> None:
    """Columns of heat maps side by side, or one below the other in a narrow figure; wide squares show their numbers."""
    columns = [column for column in columns if column.panels]
    rows = rows_of(path, len(columns))
    heights = [
        sum(0.55 + 0.3 * len(panel.rows) for panel in column.panels) + 0.7 + 0.25 * bool(column.heading)
        for column in columns
    ]
    with drawing(path, sum(heights) if rows > 1 else max(heights), title, description) as figure:
        sizes = {"height_ratios": heights} if rows > 1 else {}
        parts = figure.subfigures(rows, len(columns) // rows, squeeze=False, **sizes).flatten()
        for part, column in zip(parts, columns, strict=True):
            _draw_column(part, column, figure.get_figwidth() / (len(columns) // rows))


def _draw_column(figure: Any, column: Column, width: float) -> None:
    """Draw a column on a part of a figure, `width` inches wide."""
    if column.heading:
        figure.suptitle(column.heading, fontsize="medium", fontweight="bold")
    heights = {"height_ratios": [len(panel.rows) for panel in column.panels]}
    axes = figure.subplots(len(column.panels), 1, squeeze=False, gridspec_kw=heights)[:, 0]
    for axis, panel in zip(axes, column.panels, strict=True):
        _heat_map(axis, panel, column, (width - 0.7) / len(panel.rows[0]))
        axis.set_ylabel("layer")
    axes[-1].set_xlabel("head")
    label = textwrap.fill(column.label, int(12 * width))
    bar = figure.colorbar(axes[0].images[0], ax=axes, location="bottom", label=label, aspect=40)
    for value in column.lines:
        bar.ax.axvline(value, color=COLOURS["collaborative"], linewidth=2)


def _heat_map(axis: Any, panel: Panel, column: Column, width: float) -> None:
    """Draw a panel; `width`: of its squares, in inches."""
    from matplotlib.patches import Rectangle

    values = numpy.array(panel.rows, dtype=float)  # None becomes NaN
    colours = DIVERGING if column.signed else SEQUENTIAL
    lowest = -column.largest if column.signed else 0.0
    image = axis.imshow(values, cmap=colours, vmin=lowest, vmax=column.largest, aspect="auto")
    axis.grid(visible=False)
    decimals = 2 if column.largest <= 1 else 1
    size = SMALL - 1 if width >= WIDTH_OF_NUMBER else SMALL - 2
    for (row, position), value in numpy.ndenumerate(values):
        if numpy.isnan(value):
            continue
        if width >= WIDTH_WITH_NUMBER:
            shade = float(image.norm(value))
            dark = shade > 0.75 or (column.signed and shade < 0.25)
            style = {"ha": "center", "va": "center", "fontsize": size, "color": "white" if dark else "black"}
            axis.text(position, row, number_text(value, decimals), **style)
        if panel.marked[row][position]:
            axis.add_patch(Rectangle((position - 0.46, row - 0.44), 0.92, 0.88, fill=False, linewidth=1.3))
    axis.set_title(panel.title)
    layers, heads = values.shape
    step = math.ceil(_DIGIT * len(str(heads)) / width)  # between heads with a label
    axis.set_yticks(range(layers), [str(number) for number in range(1, layers + 1)])
    axis.set_xticks(range(0, heads, step), [str(number) for number in range(1, heads + 1, step)])

"""Heat maps of a number of every head, and the words that figures of heads have in common."""

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records.drawing import DIVERGING, SEQUENTIAL, SMALL, drawing, number_text
from collab_fairseq.records.files import PathLike

SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}
#: inches of a square: enough for a number
_ENOUGH = 0.3


class Column(NamedTuple):
    """A number of every head, with its own scale of colours.

    Attributes:
        label: of the scale. values: head → number. largest: end of the scale. marked: the heads that get a frame.
        signed: the scale starts at -largest instead of 0.
    """

    label: str
    values: Mapping[str, float]
    largest: float
    marked: Sequence[str] = ()
    signed: bool = False


def test_names(settings: Mapping[str, Any]) -> Dict[str, str]:
    """Test split → name of its file of references, without the ending, from the settings of a record."""
    found = {test["split"]: test["references"]["file"] for test in settings.get("tests", ())}
    if isinstance(settings.get("text"), dict):
        found["text"] = settings["text"]["file"]
    return {split: os.path.splitext(file)[0] for split, file in found.items()}


def grids(values: Mapping[str, Any]) -> Iterator[Tuple[str, List[List[Optional[Any]]]]]:
    """Head → value as (site, rows of layers × heads), None where a layer has fewer heads."""
    for letter, site in LETTERS.items():
        names = [name.split(":") for name in values if name.startswith(f"{letter}:")]
        if names:
            layers = max(int(name[1]) for name in names)
            heads = max(int(name[2]) for name in names)
            yield site, [[values.get(f"{letter}:{y}:{x}") for x in range(1, heads + 1)] for y in range(1, layers + 1)]


def draw_grids(columns: Sequence[Column], path: PathLike, title: str, description: str) -> None:
    """Heat maps: a column of them for every entry of ``columns``, a row for each site. Numbers stand in large squares.

    Raises:
        UserError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    maps = [dict(grids(column.values)) for column in columns]
    sites = [site for site in SITE_TITLES if any(site in of_column for of_column in maps)]
    layers = [max(len(of_column.get(site, ())) for of_column in maps) for site in sites]
    height = sum(0.55 + 0.3 * number for number in layers) + 0.7
    with drawing(path, height, title, description) as figure:
        axes = figure.subplots(len(sites), len(columns), squeeze=False, gridspec_kw={"height_ratios": layers})
        for line, site in zip(axes, sites, strict=True):
            for axis, column, of_column in zip(line, columns, maps, strict=True):
                if site not in of_column:
                    axis.set_visible(False)
                    continue
                width = 6.0 / len(columns) / len(of_column[site][0])
                _heat_map(axis, of_column[site], column, site, with_numbers=width >= _ENOUGH)
            line[0].set_ylabel("layer")
        for number, (column, of_column) in enumerate(zip(columns, maps, strict=True)):
            shown = [axis for axis, site in zip(axes[:, number], sites, strict=True) if site in of_column]
            shown[-1].set_xlabel("head")
            figure.colorbar(shown[0].images[0], ax=axes[:, number], location="bottom", label=column.label, aspect=40)


def _heat_map(axis: Any, rows: Any, column: Column, site: str, with_numbers: bool) -> None:
    from matplotlib.patches import Rectangle

    values = numpy.array(rows, dtype=float)  # None becomes NaN
    marked = {head: head in column.marked for head in column.values}
    frames = dict(grids(marked))[site]
    signed = column.signed
    low = -column.largest if signed else 0.0
    image = axis.imshow(values, cmap=DIVERGING if signed else SEQUENTIAL, vmin=low, vmax=column.largest, aspect="auto")
    axis.grid(visible=False)
    decimals = 2 if column.largest <= 1 else 1
    for (row, place), value in numpy.ndenumerate(values):
        if numpy.isnan(value):
            continue
        if with_numbers:
            shade = float(image.norm(value))
            colour = "white" if shade > 0.75 or (signed and shade < 0.25) else "black"
            text = number_text(value, decimals)
            axis.text(place, row, text, ha="center", va="center", fontsize=SMALL - 1, color=colour)
        if frames[row][place]:
            axis.add_patch(Rectangle((place - 0.46, row - 0.44), 0.92, 0.88, fill=False, linewidth=1.3))
    axis.set_title(SITE_TITLES[site])
    for ticks, count in ((axis.set_yticks, len(values)), (axis.set_xticks, len(values[0]))):
        ticks(range(count), [str(number) for number in range(1, count + 1)])

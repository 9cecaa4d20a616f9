"""Heat maps of one number per head, and names that all figures of heads share."""

import os
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from collab_fairseq.files import PathLike
from collab_fairseq.modules.head_names import LETTERS
from collab_fairseq.records.drawing import DIVERGING, SEQUENTIAL, SMALL, drawing, number_text

SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}
#: width of a square, in inches, from which it shows its number
WIDTH_WITH_NUMBER = 0.3


class Column(NamedTuple):
    """A column of heat maps with its own colour scale.

    Attributes:
        label: of the colour scale. values: head → number. largest: upper end of the scale.
        marked: heads with a frame. signed: the scale starts at -largest instead of 0.
    """

    label: str
    values: Mapping[str, float]
    largest: float
    marked: Sequence[str] = ()
    signed: bool = False


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
    """Heat maps, one row per site; wide squares show their numbers."""
    maps = [dict(grids(column.values)) for column in columns]
    sites = [site for site in SITE_TITLES if any(site in column_maps for column_maps in maps)]
    layers = [max(len(column_maps.get(site, ())) for column_maps in maps) for site in sites]
    height = sum(0.55 + 0.3 * number for number in layers) + 0.7
    with drawing(path, height, title, description) as figure:
        axes = figure.subplots(len(sites), len(columns), squeeze=False, gridspec_kw={"height_ratios": layers})
        for number, (column, column_maps) in enumerate(zip(columns, maps, strict=True)):
            drawn = []
            for axis, site in zip(axes[:, number], sites, strict=True):
                if site not in column_maps:
                    axis.set_visible(False)
                    continue
                width = (figure.get_figwidth() - 1.0) / len(columns) / len(column_maps[site][0])
                _heat_map(axis, column_maps[site], column, site, with_numbers=width >= WIDTH_WITH_NUMBER)
                drawn.append(axis)
            drawn[-1].set_xlabel("head")
            image = drawn[0].images[0]
            label = textwrap.fill(column.label, int(12 * figure.get_figwidth() / len(columns)))
            figure.colorbar(image, ax=axes[:, number], location="bottom", label=label, aspect=40)
        for axis in axes[:, 0]:
            axis.set_ylabel("layer")


def _heat_map(axis: Any, rows: Any, column: Column, site: str, with_numbers: bool) -> None:
    from matplotlib.patches import Rectangle

    values = numpy.array(rows, dtype=float)  # None becomes NaN
    frames = dict(grids({head: head in column.marked for head in column.values}))[site]
    colours = DIVERGING if column.signed else SEQUENTIAL
    lowest = -column.largest if column.signed else 0.0
    image = axis.imshow(values, cmap=colours, vmin=lowest, vmax=column.largest, aspect="auto")
    axis.grid(visible=False)
    decimals = 2 if column.largest <= 1 else 1
    for (row, position), value in numpy.ndenumerate(values):
        if numpy.isnan(value):
            continue
        if with_numbers:
            shade = float(image.norm(value))
            dark = shade > 0.75 or (column.signed and shade < 0.25)
            style = {"ha": "center", "va": "center", "fontsize": SMALL - 1, "color": "white" if dark else "black"}
            axis.text(position, row, number_text(value, decimals), **style)
        if frames[row][position]:
            axis.add_patch(Rectangle((position - 0.46, row - 0.44), 0.92, 0.88, fill=False, linewidth=1.3))
    axis.set_title(SITE_TITLES[site])
    for set_ticks, count in ((axis.set_yticks, len(values)), (axis.set_xticks, len(values[0]))):
        set_ticks(range(count), [str(number) for number in range(1, count + 1)])

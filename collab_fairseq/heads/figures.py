"""Drawing with matplotlib (the extra `plots`), in the style of the project's other figures."""

from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records.drawing import drawing
from collab_fairseq.records.files import PathLike

#: diverging and sequential colours of heat maps
DIVERGING, SEQUENTIAL = "RdBu_r", "Blues"
SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}


def heat_map(
    axis: Any,
    rows: Sequence[Sequence[Optional[float]]],
    *,
    limits: Tuple[float, float],
    colours: str,
    form: str = "",
    stars: Optional[Sequence[Sequence[Optional[bool]]]] = None,
) -> Any:
    """Draw numbers as coloured squares, with their values where ``form`` is a format such as ``.1f``; None is blank.

    ``stars``: True puts a star behind the value.
    """
    import numpy

    values = numpy.array([[numpy.nan if x is None else x for x in row] for row in rows], dtype=float)
    image = axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="equal")
    axis.grid(visible=False)
    if form:
        span = limits[1] - limits[0] or 1.0
        for (row, column), value in numpy.ndenumerate(values):
            if not numpy.isnan(value):
                place = (value - limits[0]) / span
                dark = place > 0.75 or (colours == DIVERGING and place < 0.25)
                text = format(value, form) + ("*" if stars and stars[row][column] else "")
                axis.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    return image


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
    label: str,
    limits: Tuple[float, float],
    colours: str = SEQUENTIAL,
    form: str = ".2f",
    marked: Sequence[Sequence[str]] = (),
) -> None:
    """Heat maps of a number of every head: a row of them for every entry of ``figures``, one for each site.

    Args:
        figures: title → head → number. marked: for each entry, the heads that get a star.

    Raises:
        PlotError: see :func:`drawing`.
    """
    lines = {title: list(grids(values)) for title, values in figures.items()}
    panels = [rows for line in lines.values() for _, rows in line]
    columns = max(len(line) for line in lines.values())
    height, width = max(len(rows) for rows in panels), max(len(rows[0]) for rows in panels)
    size = (1.4 + columns * max(1.6, 0.42 * width), len(lines) * (0.7 + max(1.2, 0.42 * height)))
    with drawing(path, size) as figure:
        axes = figure.subplots(len(lines), columns, squeeze=False)
        for number, (title, line) in enumerate(lines.items()):
            stars = dict(grids({name: name in marked[number] for name in figures[title]})) if marked else {}
            for axis, (site, rows) in zip(axes[number], line, strict=True):
                image = heat_map(axis, rows, limits=limits, colours=colours, form=form, stars=stars.get(site))
                where = SITE_TITLES[site]
                axis.set_title(f"{title}\n{where}" if title else where, fontsize="small")
                axis.set_xticks(range(len(rows[0])), [str(n + 1) for n in range(len(rows[0]))])
                axis.set_yticks(range(len(rows)), [str(n + 1) for n in range(len(rows))])
            axes[number][0].set_ylabel("layer")
        for axis in axes[-1]:
            axis.set_xlabel("head")
        figure.colorbar(image, ax=axes, label=label)

"""Heat maps of a number of every head, with matplotlib (the extra `plots`)."""

from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy

from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records.drawing import drawing
from collab_fairseq.records.files import PathLike

#: diverging and sequential colours
DIVERGING, SEQUENTIAL = "RdBu_r", "Blues"
SITE_TITLES = {"encoder": "encoder", "cross": "encoder–decoder", "decoder": "decoder"}


def grids(values: Mapping[str, Any]) -> Iterator[Tuple[str, List[List[Optional[Any]]]]]:
    """Head → value as (site, rows of layers × heads), None where a layer has fewer heads."""
    for letter, site in LETTERS.items():
        names = [name.split(":") for name in values if name.startswith(f"{letter}:")]
        if names:
            layers = max(int(name[1]) for name in names)
            heads = max(int(name[2]) for name in names)
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
    """Heat maps of a number of every head: a line of them for every entry of ``figures``, one for each site.

    Args:
        figures: title → head → number. label, limits, colours: of the one scale of colours.
        form: format of the numbers in the squares. marked: for each entry, the heads that get a star.

    Raises:
        UserError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    lines = [list(grids(values)) for values in figures.values()]
    shapes = [(len(rows), len(rows[0])) for line in lines for _, rows in line]
    height, width = (max(1.2, 0.42 * max(sides)) for sides in zip(*shapes, strict=True))
    across = max(map(len, lines))
    with drawing(path, (1.4 + across * (0.4 + width), 0.4 + len(lines) * (0.7 + height))) as figure:
        axes = figure.subplots(len(lines), across, squeeze=False)
        for number, (title, line) in enumerate(zip(figures, lines, strict=True)):
            stars = dict(grids({head: head in marked[number] for head in figures[title]})) if marked else {}
            for axis in axes[number][len(line) :]:
                axis.set_visible(False)
            for axis, (site, rows) in zip(axes[number], line, strict=False):
                image = _heat_map(axis, rows, stars.get(site), limits, colours, form)
                axis.set_title("\n".join(filter(None, (title, SITE_TITLES[site]))), fontsize="small")
                axis.set_xlabel("head" if number == len(lines) - 1 else "")
            axes[number][0].set_ylabel("layer")
        figure.colorbar(image, ax=axes, label=label)


def _heat_map(axis: Any, rows: Any, stars: Any, limits: Tuple[float, float], colours: str, form: str) -> Any:
    values = numpy.array(rows, dtype=float)  # None becomes NaN
    image = axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="equal")
    axis.grid(visible=False)
    for (row, column), value in numpy.ndenumerate(values):
        if not numpy.isnan(value):
            shade = float(image.norm(value))
            dark = shade > 0.75 or (colours == DIVERGING and shade < 0.25)
            text = format(value, form) + ("*" if stars and stars[row][column] else "")
            axis.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    for ticks, count in ((axis.set_yticks, len(values)), (axis.set_xticks, len(values[0]))):
        ticks(range(count), [str(number) for number in range(1, count + 1)], fontsize="small")
    return image

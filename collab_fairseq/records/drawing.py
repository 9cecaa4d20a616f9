"""What all figures of the project share: matplotlib (the extra `plots`), their style, and files written atomically.

The style is set here, so that a user's own matplotlib settings change nothing; the same figure and the same matplotlib
give the same file. Every figure shows its title and, below it, a description of what it shows.
"""

import contextlib
import io
import os
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence
from xml.sax.saxutils import escape

from collab_fairseq.records.files import PathLike, check_writable, write_bytes
from fairseq_modern.errors import UserError

#: inches; pages show figures about 700 pixels wide, where a letter of 8 points is 11 pixels high
WIDTH = 7.0
#: of Okabe and Ito, which colour-blind readers can distinguish; each colour has the same meaning in all figures
COLOURS = {
    "standard": "#0072B2", "collaborative": "#D55E00", "encoder": "#009E73", "cross": "#CC79A7", "decoder": "#E69F00",
    "all": "#000000", "reference": "#777777",
}  # fmt: skip
#: marks of the series of a meaning, if there are several
MARKS = {"standard": "ovPX", "collaborative": "s^D*", "encoder": "^", "cross": "D", "decoder": "v", "all": "o"}
#: line styles, of the full key dimension and smaller ones
DASHES = ("-", "--", ":", "-.")
#: colour maps for numbers with and without a sign, and for the layers of a model
DIVERGING, SEQUENTIAL, LAYERS = "RdBu_r", "Blues", "viridis"
SMALL = 8.0  # points
STYLE: Dict[str, Any] = {
    "font.family": ["sans-serif"],  # what a reader without the next one sees; others are narrower
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "savefig.dpi": 150.0,
    "svg.fonttype": "none",  # text stays text: outlines would double the size of the files
    "svg.hashsalt": "collab_fairseq",  # the names of clip paths, random otherwise
}
_TITLE, _DESCRIPTION = (10.0, 86), (SMALL, 112)  # points, and characters of a line
_POINTS = 72  # of an inch


def look(meaning: str, number: int = 0) -> Dict[str, str]:
    """Colour and mark of a series with this meaning (`COLOURS`), for matplotlib; ``number``: among those of one."""
    marks = MARKS[meaning]
    return {"color": COLOURS[meaning], "marker": marks[number % len(marks)]}


def other_look(number: int) -> Dict[str, str]:
    """Colour and mark of a series without a fixed meaning; the first 20 numbers have different ones."""
    meanings = ("all", "encoder", "cross", "decoder")
    return {"color": COLOURS[meanings[number % 4]], "marker": "o^DvP"[(number + number // 4) % 5]}


def points(axis: Any, x: Sequence[float], intervals: Sequence[Any], **style: Any) -> None:
    """A series with error bars.

    Args:
        intervals: mean, low and high of each point; NaN: no error bar. style: of the line, with its label.
    """
    axis.plot(x, [interval.mean for interval in intervals], **style)
    errors = [[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]]
    axis.errorbar(x, [i.mean for i in intervals], yerr=errors, fmt="none", ecolor=style["color"], elinewidth=1.2)


def number_text(value: float, decimals: int) -> str:
    """A number as axes show it, with a minus sign; zero has none."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def check_figure(path: Optional[PathLike]) -> None:
    """Check, before any work, that a figure can be written under this name; None is left out.

    Raises:
        UserError: it does not end in .png or .svg. UserError: see `check_writable`.
    """
    check_writable(path)
    if path is not None and Path(path).suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--figure must end in .png or .svg, got {os.fspath(path)}")


@contextlib.contextmanager
def drawing(path: PathLike, height: float, title: str, description: str) -> Iterator[Any]:
    """A matplotlib SubFigure between a title and a description, which is written to a file atomically.

    Args:
        path: a .png or .svg file.
        height: of the SubFigure, in inches; all figures are `WIDTH` wide.
        title, description: shown, and elements of the SVG file (text fields of the PNG file). The description says what
            points and error bars are, of how many seeds, and which direction is better.

    Raises:
        UserError: matplotlib is not installed. UserError: see `check_figure`.
    """
    check_figure(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "figures need matplotlib, which is not installed: install it, or this project with its extra `plots`"
        ) from error
    above, below = (textwrap.wrap(text, of[1]) for text, of in ((title, _TITLE), (description, _DESCRIPTION)))
    margins = [1.35 * of[0] * (len(lines) + 0.6) / _POINTS for lines, of in ((above, _TITLE), (below, _DESCRIPTION))]
    heights = [margins[0], height, margins[1]]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]  # matplotlib lists every known key
        # a separate Figure needs no display and leaves pyplot's global state alone
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts: Any = figure.subfigures(3, 1, height_ratios=heights, hspace=0.0)
        top, middle, bottom = parts
        text = {"x": 0.012, "linespacing": 1.3, "parse_math": False}
        top.text(y=0.95, s="\n".join(above), va="top", fontsize=_TITLE[0], fontweight="bold", **text)
        bottom.text(y=0.95, s="\n".join(below), va="top", fontsize=_DESCRIPTION[0], color="#333333", **text)
        yield middle
        _round_layout(figure, middle)
        buffer = io.BytesIO()
        # without the date and the version, which change while the figure does not
        ending = Path(path).suffix.lower()
        about = {"Title": title, "Description": description}
        metadata: Dict[str, Any] = {"Date": None, "Creator": None} if ending == ".svg" else {"Software": None}
        figure.savefig(buffer, format=ending[1:], metadata={**about, **metadata})
    content = buffer.getvalue()
    if ending == ".svg":  # matplotlib writes the title as an element, the description as metadata only
        element = f"</title>\n <desc>{escape(description)}</desc>"
        content = content.replace(b"</title>", element.encode(), 1)
    write_bytes(content, path)


def _round_layout(figure: Any, middle: Any) -> None:
    """Lay the figure out, and round what this gives: its last digits differ from one time to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    middle.bbox_relative.set_points(middle.bbox_relative.get_points().round(5))
    for axis in figure.axes:
        axis.set_position([round(number, 5) for number in axis.get_position().bounds])

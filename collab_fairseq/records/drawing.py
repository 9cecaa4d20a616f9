"""Style and output of all figures, with matplotlib (extra `plots`).

The style does not depend on the user's matplotlib settings: the same figure and the same version of matplotlib give the
same file. Every figure has a title and, below it, a description.
"""

import contextlib
import io
import os
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence
from xml.sax.saxutils import escape

from collab_fairseq.records.files import PathLike, check_writable, write_bytes
from fairseq_modern.errors import UserError

#: inches; pages show figures about 700 pixels wide, so that a letter of 8 points is 11 pixels high
WIDTH = 7.0
#: colours of Okabe and Ito, distinguishable for colour-blind readers; each has the same meaning in all figures
COLOURS = {
    "standard": "#0072B2",
    "collaborative": "#D55E00",
    "encoder": "#009E73",
    "cross": "#CC79A7",
    "decoder": "#E69F00",
    "all": "#000000",
    "reference": "#777777",
}
#: markers of series with the same meaning
MARKS = {"standard": "ovPX", "collaborative": "s^D*", "encoder": "^", "cross": "D", "decoder": "v", "all": "o"}
#: line styles of decreasing key dimensions
DASHES = ("-", "--", ":", "-.")
#: colour maps of signed numbers, of unsigned numbers and of layers
DIVERGING, SEQUENTIAL, LAYERS = "RdBu_r", "Blues", "viridis"
SMALL = 8.0  # points
STYLE: Dict[str, Any] = {
    "font.family": ["sans-serif"],  # fallback if the next one is missing; other fonts are narrower
    "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib
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
    "svg.fonttype": "none",  # text stays text: outlines would double the file size
    "svg.hashsalt": "collab_fairseq",  # makes the names of clip paths deterministic
    "pdf.fonttype": 42,  # TrueType, which journals accept
}
_TITLE, _DESCRIPTION = (10.0, 86), (SMALL, 112)  # points, characters per line
_POINTS = 72  # per inch


def look(meaning: str, number: int = 0) -> Dict[str, str]:
    """Colour and marker of a series, for matplotlib; ``number`` counts series with the same meaning."""
    marks = MARKS[meaning]
    return {"color": COLOURS[meaning], "marker": marks[number % len(marks)]}


def other_look(number: int) -> Dict[str, str]:
    """Colour and marker of a series without a fixed meaning, distinct for the first 20 numbers."""
    meanings = ("all", "encoder", "cross", "decoder")
    return {"color": COLOURS[meanings[number % 4]], "marker": "o^DvP"[(number + number // 4) % 5]}


def points(axis: Any, x: Sequence[float], intervals: Sequence[Any], **style: Any) -> None:
    """A series with error bars.

    Args:
        intervals: mean, low and high of each point; NaN draws no error bar.
        style: of the line, with its label.
    """
    means = [i.mean for i in intervals]
    errors = [[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]]
    axis.plot(x, means, **style)
    axis.errorbar(x, means, yerr=errors, fmt="none", ecolor=style["color"], elinewidth=1.2)


def number_text(value: float, decimals: int) -> str:
    """A number as axes show it, with a typographic minus sign and no negative zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def check_figure(path: Optional[PathLike]) -> None:
    """Raise UserError unless matplotlib is installed and can write a .png, .svg or .pdf file; None passes."""
    if path is None:
        return
    check_writable(path)
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"--figure must end in .png, .svg or .pdf; got {os.fspath(path)}")
    if find_spec("matplotlib") is None:
        raise UserError(
            "figures need matplotlib, which is not installed: install it, or this project with its extra `plots`"
        )


def _wrapped(text: str, size: float, width: int) -> Any:
    """Lines of at most ``width`` characters, and their height in inches."""
    lines = textwrap.wrap(text, width)
    return "\n".join(lines), 1.35 * size * (len(lines) + 0.6) / _POINTS


@contextlib.contextmanager
def drawing(path: PathLike, height: float, title: str, description: str) -> Iterator[Any]:
    """A matplotlib SubFigure between a title and a description; the file is written atomically.

    Args:
        path: a .png or .svg file, or a .pdf file for a paper, which shows the SubFigure only.
        height: of the SubFigure, in inches; all figures are `WIDTH` wide.
        title, description: shown, and stored as elements of the SVG file or text fields of the other files. The
            description explains points and error bars, gives the number of seeds and says which direction is better.
    """
    check_figure(path)
    import matplotlib
    from matplotlib.figure import Figure

    above, above_height = _wrapped(title, *_TITLE)
    below, below_height = _wrapped(description, *_DESCRIPTION)
    heights = [above_height, height, below_height]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]  # matplotlib lists every known key
        # a separate Figure needs no display and does not change pyplot's global state
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts: Any = figure.subfigures(3, 1, height_ratios=heights, hspace=0.0)
        top, middle, bottom = parts
        text = {"x": 0.012, "linespacing": 1.3, "parse_math": False}
        top.text(y=0.95, s=above, va="top", fontsize=_TITLE[0], fontweight="bold", **text)
        bottom.text(y=0.95, s=below, va="top", fontsize=_DESCRIPTION[0], color="#333333", **text)
        yield middle
        _round_layout(figure, middle)
        suffix = Path(path).suffix.lower()
        metadata: Dict[str, Any] = {"Title": title, "Description": description}
        # leave out date and version, which change although the figure does not
        metadata.update({"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None})
        options: Dict[str, Any] = {}
        if suffix == ".pdf":
            metadata = {"Title": title, "Subject": description, "CreationDate": None, "Creator": None, "Producer": None}
            options["bbox_inches"] = middle.bbox.transformed(figure.dpi_scale_trans.inverted())
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, **options)
    content = buffer.getvalue()
    if suffix == ".svg":  # matplotlib writes the title as an element, but the description as metadata only
        element = f"</title>\n <desc>{escape(description)}</desc>"
        content = content.replace(b"</title>", element.encode(), 1)
    write_bytes(content, path)


def _round_layout(figure: Any, middle: Any) -> None:
    """Compute the layout and round it: its last digits vary between runs."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    middle.bbox_relative.set_points(middle.bbox_relative.get_points().round(5))
    for axis in figure.axes:
        axis.set_position([round(number, 5) for number in axis.get_position().bounds])

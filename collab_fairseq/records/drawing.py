"""Style and output of all figures, with matplotlib (extra `plots`).

The style does not depend on the user's matplotlib settings: the same figure and the same version of matplotlib give the
same file. Captions are files of their own: papers and pages set them in their own type.
"""

import argparse
import contextlib
import io
import logging
import math
import os
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence
from xml.sax.saxutils import escape

from collab_fairseq.files import PathLike, check_writable, write_bytes
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

#: inches: two columns of a paper, and about 700 pixels on pages
WIDTH = 7.0
#: inches: below this width, panels are one below the other
NARROW = 5.0
#: inches: the height of a line of a legend
LEGEND_LINE = 0.18
_LEGEND = 13  # characters of a legend per inch
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
SUFFIXES = (".png", ".svg", ".pdf")
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


@dataclass(frozen=True)
class FigureFile:
    """Where to write a figure, and its form.

    Attributes:
        path: a .pdf, .svg or .png file.
        width: in inches.
        title: drawn above the figure; None: nothing.
        caption: whether to write the caption to the file with the suffix .txt, and to log it.
    """

    path: PathLike
    width: float = WIDTH
    title: Optional[str] = None
    caption: bool = True

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def add_figure_flags(parser: argparse.ArgumentParser, text: str) -> None:
    """--figure, whose ``text`` says what it draws, --title, --width and --no-caption."""
    group = parser.add_argument_group("figure")
    add = group.add_argument
    add("--figure", metavar="FILE", help=f"{text} (.pdf, .svg or .png), with the caption in FILE.txt")
    add("--title", metavar="TEXT", help="draw a title (default: none)")
    add_width_flag(group)
    add("--no-caption", action="store_true", help="write and print no caption")


def add_width_flag(parser: Any) -> None:
    """--width, which is None by default: `WIDTH`."""
    text = f"width, such as 3.3 for one column (default: {WIDTH:g})"
    parser.add_argument("--width", type=_inches, metavar="INCHES", help=text)


def _inches(text: str) -> float:
    width = float(text)
    if not 2 <= width <= 20:
        raise argparse.ArgumentTypeError(f"must be between 2 and 20 inches; got {width:g}")
    return width


def figure_file(args: argparse.Namespace) -> Optional[FigureFile]:
    """The figure of `add_figure_flags`, or None. Raises UserError if it cannot be drawn."""
    if args.figure is None:
        for flag in ("title", "width", "no_caption"):
            if getattr(args, flag):
                raise UserError(f"--{flag.replace('_', '-')} needs --figure")
        return None
    file = FigureFile(args.figure, args.width or WIDTH, args.title, not args.no_caption)
    check_figure(file)
    return file


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
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UserError(f"--figure must end in .png, .svg or .pdf; got {os.fspath(path)}")
    text = Path(path).with_suffix(".txt")
    others = any(text.with_suffix(suffix).exists() for suffix in SUFFIXES)
    if text.exists() and not others and getattr(path, "caption", True):
        raise UserError(f"the caption of {os.fspath(path)} would replace {text}; choose another name")
    check_packages("figures", "matplotlib")


def check_packages(what: str, *names: str) -> None:
    """Raise UserError unless these packages, which tables or figures (`what`) need, are installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(f"{what} need {', '.join(missing)}: install this project with its extra `plots`")


def is_narrow(path: PathLike) -> bool:
    """Whether a figure is one column of a paper."""
    return isinstance(path, FigureFile) and path.width < NARROW


def rows_of(path: PathLike, panels: int) -> int:
    """Number of rows of equal panels: 1, or one row per panel in a narrow figure."""
    return panels if is_narrow(path) else 1


def legend_columns(path: PathLike, number: int, narrow: int = 2) -> int:
    """Columns of a legend above the panels: ``number`` at the usual width, at most ``narrow`` in a narrow figure."""
    return min(number, narrow) if is_narrow(path) else number


def legend_height(entries: int, columns: int) -> float:
    """Height of a legend above the panels, in inches."""
    return LEGEND_LINE * math.ceil(entries / columns)


@contextlib.contextmanager
def drawing(path: PathLike, height: float, title: str, description: str) -> Iterator[Any]:
    """A matplotlib Figure to draw on; its file, and that of its caption, are written atomically.

    Args:
        path: a file, or a `FigureFile`.
        height: in inches.
        title, description: the caption, also stored in the file. The description explains points and error bars, gives
            the number of seeds and says which direction is better.
    """
    check_figure(path)
    import matplotlib
    from matplotlib.figure import Figure

    file = path if isinstance(path, FigureFile) else FigureFile(path)
    suffix = Path(file).suffix.lower()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]  # matplotlib lists every known key
        # a separate Figure needs no display and does not change pyplot's global state
        figure = Figure(figsize=(file.width, height + (0.25 if file.title else 0)), layout="constrained")
        if file.title:
            figure.suptitle(file.title, x=0.012, ha="left", fontweight="bold", parse_math=False)
        yield figure
        for text in (text for legend in figure.legends for text in legend.get_texts()):
            text.set_text(textwrap.fill(text.get_text(), int(_LEGEND * file.width)))
        _round_layout(figure)
        # leave out date and version, which change although the figure does not
        metadata: Dict[str, Any] = {
            ".svg": {"Title": title, "Description": description, "Date": None, "Creator": None},
            ".png": {"Title": title, "Description": description, "Software": None},
            ".pdf": {"Title": title, "Subject": description, "CreationDate": None, "Creator": None, "Producer": None},
        }
        logging.getLogger("fontTools").setLevel(logging.WARNING)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata[suffix])
    content = buffer.getvalue()
    if suffix == ".svg":  # matplotlib writes the title as an element, but the description as metadata only
        element = f"</title>\n <desc>{escape(description)}</desc>"
        content = content.replace(b"</title>", element.encode(), 1)
    write_bytes(content, file)
    if file.caption:
        caption = f"{title}. {description}"
        write_bytes(f"{caption}\n".encode(), Path(file).with_suffix(".txt"))
        logger.info("caption: %s", caption)


def _round_layout(figure: Any) -> None:
    """Compute the layout and round it: its last digits vary between runs."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        axis.set_position([round(number, 5) for number in axis.get_position().bounds])

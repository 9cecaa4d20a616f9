"""What all figures of the project share: matplotlib (the extra `plots`), its style, and files written atomically.

The style is set here, so that a user's own matplotlib settings change nothing; the same figure and the same matplotlib
give the same file.
"""

import contextlib
import io
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from collab_fairseq.records.files import PathLike, check_targets, write_bytes
from fairseq_modern.errors import UserError

#: Okabe and Ito's colours, which colour-blind readers can distinguish, and a mark for each
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = ("o", "s", "^", "D", "v", "P")
STYLE: Dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.unicode_minus": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 5.0,
    "errorbar.capsize": 3.0,
    "legend.frameon": False,
    "savefig.dpi": 150.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "collab_fairseq",  # the names of clip paths, random otherwise
}


def look(number: int) -> Dict[str, str]:
    """Colour and mark of a series, for matplotlib; the first 36 numbers have different ones."""
    mark = MARKS[(number + number // len(COLOURS)) % len(MARKS)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": mark}


def check_figure(path: Optional[PathLike]) -> None:
    """Check, before any work, that a figure can be written under this name; None is left out.

    Raises:
        UserError: it does not end in .png or .svg. UserError: see `check_targets`.
    """
    check_targets(path)
    if path is not None and Path(path).suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--figure must end in .png or .svg, got {os.fspath(path)}")


@contextlib.contextmanager
def drawing(path: PathLike, size: Tuple[float, float]) -> Iterator[Any]:
    """A matplotlib Figure of ``size`` inches, which is written to a .png or .svg file, atomically.

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
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]  # matplotlib lists every known key
        # a separate Figure needs no display and leaves pyplot's global state alone
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        buffer = io.BytesIO()
        # without the date and the version, which change while the figure does not
        ending = Path(path).suffix.lower()
        metadata: Dict[str, Any] = {"Date": None, "Creator": None} if ending == ".svg" else {"Software": None}
        figure.savefig(buffer, format=ending[1:], metadata=metadata)
    write_bytes(buffer.getvalue(), path)

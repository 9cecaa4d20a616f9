"""Figures as matplotlib drew them, for tests of what a reader sees."""

import contextlib
import itertools


@contextlib.contextmanager
def figures_of(monkeypatch):
    """Within the block, a list of the matplotlib figures that are written."""
    from matplotlib.figure import Figure

    drawn, save = [], Figure.savefig

    def saved(figure, *arguments, **options):
        drawn.append(figure)
        return save(figure, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Figure, "savefig", saved)
        yield drawn


def illegible(figure):
    """The texts that the edge of a figure cuts off, and the tick labels of a horizontal axis that overlap."""
    from matplotlib.axis import Tick
    from matplotlib.text import Text

    figure.canvas.draw()
    outer, margin = figure.bbox, 0.05 * figure.dpi  # the size of text varies a little between formats
    ticks = {label for tick in figure.findobj(Tick) for label in (tick.label1, tick.label2)}
    wrong = []
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        inside = min(box.x0, box.y0, outer.x1 - box.x1, outer.y1 - box.y1) >= -margin
        if not inside and text not in ticks and text.get_visible() and text.get_text().strip():
            wrong.append(text.get_text())
    for axis in figure.axes:
        low, high = sorted(axis.get_xlim())
        labels = [label for label in axis.get_xticklabels() if low <= label.get_position()[0] <= high]
        for left, right in itertools.pairwise(label for label in labels if label.get_text()):
            if left.get_window_extent().overlaps(right.get_window_extent()):
                wrong.append(f"{left.get_text()} {right.get_text()}")
    return wrong

"""Rate and remaining time of long computations: lines in a log, a bar on a terminal."""

import io
import logging

import pytest

from collab_fairseq import progress
from collab_fairseq.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A list whose last number is the time."""
    times = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: times[-1])
    return times


def test_pace():
    """Updates that were made before do not count."""
    shown = Progress("training", 5500, "updates", done=100)
    start = shown._first[0]
    shown.set(1300, "loss 2.5")
    line = "training: 1,300 of 5,500 updates, loss 2.5, 2 updates/s, 10 min elapsed, 35 min left"
    assert shown.line(start + 600) == line
    shown.total = 50_000
    assert shown.line(start + 600).endswith(", 6 h 46 min left")
    shown.set(100)
    assert shown.line(start + 600) == "training: 100 of 50,000 updates, loss 2.5"
    shown.total = 50
    assert shown.line(start + 600) == "training: 100 updates, loss 2.5"


def test_one_line_a_minute(clock, caplog):
    caplog.set_level(logging.INFO)
    with Progress("fit", 10, "layers") as shown:
        for seconds in (20, 20, 20, 20, 61, 1):
            clock.append(clock[-1] + seconds)
            shown.advance()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "fit: 3 of 10 layers, 0.05 layers/s, 60 s elapsed, 2 min left",
        "fit: 5 of 10 layers, 0.035 layers/s, 2 min elapsed, 2 min left",
        "fit: 6 of 10 layers, 0.042 layers/s, 2 min elapsed, 95 s left",
    ]


def test_nothing_is_logged_without_change(clock, caplog):
    caplog.set_level(logging.INFO)
    with Progress("fit", 10, "layers"):
        clock.append(clock[-1] + 600)
    assert not caplog.records


def test_terminal_shows_a_bar_and_no_lines(clock, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("fit", 10, "layers") as shown:
        clock.append(clock[-1] + 100)
        shown.advance(4, "error 0.1")
        with progress.outside_bars():
            pass
    assert "fit:  40%" in terminal.getvalue()
    assert "error 0.1" in terminal.getvalue()
    assert not caplog.records

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
    monkeypatch.setattr("tqdm.std.time", lambda: times[-1])
    return times


def test_pace(clock):
    """Updates that were made before do not count."""
    shown = Progress("training", 5500, "updates", done=100)
    clock.append(clock[-1] + 600)
    shown.advance(600, "loss 2.5")
    shown.skip(600)
    assert str(shown) == "training:  24% 1300/5500 [10:00<1:10:00,  1.00 updates/s, loss 2.5]"
    shown.total = 50  # a folder can have a longer run than the requested one
    assert str(shown) == "training: 1300 updates [10:00,  1.00 updates/s, loss 2.5]"


def test_one_line_a_minute(clock, caplog):
    caplog.set_level(logging.INFO)
    with Progress("fit", 10, "layers") as shown:
        for seconds in (20, 20, 20, 20, 61, 1):
            clock.append(clock[-1] + seconds)
            shown.advance()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "fit:  30% 3/10 [01:00<02:20, 20.00s/ layers]",
        "fit:  50% 5/10 [02:21<02:21, 28.20s/ layers]",
        "fit:  60% 6/10 [02:22<01:34, 23.67s/ layers]",
    ]


def test_nothing_is_logged_without_change(clock, caplog):
    caplog.set_level(logging.INFO)
    with Progress("fit", 10, "layers") as shown:
        clock.append(clock[-1] + 600)
        shown.advance(0)
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

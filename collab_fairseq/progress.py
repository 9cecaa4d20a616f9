"""Progress of long computations: a bar on a terminal, otherwise a line per minute in the log."""

import contextlib
import logging
import sys
import time
from typing import Any, Collection, ContextManager, Iterator, Optional, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 60.0


class _Bar(tqdm):  # type: ignore[type-arg]  # not generic when it runs
    monitor_interval = 0  # no thread: recipes fork


class Progress:
    """Shows how many of ``total`` units are done, with rate, elapsed and remaining time, until it is closed by
    `close` or at the end of a ``with`` block.

    The rate is that of this object: units that were done before, or that are read from a file, do not count.

    Args:
        title: of the computation.
        unit: in the plural, such as "steps".
        done: number of units that are done at the start.
        logger: for the lines; default: that of this module.
    """

    def __init__(
        self, title: str, total: int, unit: str, *, done: int = 0, logger: Optional[logging.Logger] = None
    ) -> None:
        self.title, self.total, self.unit, self.done, self.note = title, total, unit, done, ""
        self._logger = logger or logging.getLogger(__name__)
        self._first = (time.monotonic(), done)
        self._logged = self._first[0]
        self._shown: Any = (done, "")  # the state of the latest line
        options = {"unit": f" {unit}", "leave": False, "dynamic_ncols": True}
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = _Bar(desc=title, total=total, initial=done, file=sys.stderr, **options)  # type: ignore[call-overload]

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar, or log the last state."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._log()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count further units; ``note``, such as a loss, is shown with them."""
        self.set(self.done + units, note)

    def skip(self, units: int) -> None:
        """Count units that were done before; they do not count in the rate."""
        self._first = (self._first[0], self._first[1] + units)
        self.advance(units)

    def set(self, done: int, note: str = "") -> None:
        """Set the number of units that are done."""
        step, self.done, self.note = done - self.done, done, note or self.note
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(step)
        elif time.monotonic() - self._logged >= SECONDS_BETWEEN_LINES:
            self._log()

    def _log(self) -> None:
        if (self.done, self.note) != self._shown:
            self._logger.info("%s", self.line(time.monotonic()))
            self._shown, self._logged = (self.done, self.note), time.monotonic()

    def line(self, now: float) -> str:
        """The state in one line; ``now``: the time in seconds of the clock `time.monotonic`."""
        # a folder can have a longer run than the requested one
        count = f"{self.done:,} of {self.total:,}" if self.done <= self.total else f"{self.done:,}"
        note = f", {self.note}" if self.note else ""
        return f"{self.title}: {count} {self.unit}{note}{self._pace(now)}"

    def _pace(self, now: float) -> str:
        seconds, made = now - self._first[0], self.done - self._first[1]
        if made <= 0 or seconds <= 0:
            return ""
        pace = f", {made / seconds:.2g} {self.unit}/s, {duration(seconds)} elapsed"
        left = max(0, self.total - self.done) * seconds / made
        return f"{pace}, {duration(left)} left" if left else pace


def shown(items: Collection[Item], title: str, unit: str) -> Iterator[Item]:
    """The items, one unit each, with their progress."""
    with Progress(title, len(items), unit) as progress:
        for item in items:
            yield item
            progress.advance()


def duration(seconds: float) -> str:
    """``48 s``, ``12 min`` or ``3 h 5 min``"""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def outside_bars() -> ContextManager[Any]:
    """A block that writes to the terminal above the bars."""
    return _Bar.external_write_mode() if sys.stderr.isatty() else contextlib.nullcontext()

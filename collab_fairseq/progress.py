"""Progress of long computations: a bar on a terminal, otherwise a line per minute in the log."""

import contextlib
import io
import logging
import sys
from typing import Any, Collection, ContextManager, Iterator, Optional, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 60.0


class Progress(tqdm):  # type: ignore[type-arg]  # not generic when it runs
    """Shows how many of ``total`` units are done, with rate, elapsed and remaining time, until it is closed by
    `close` or at the end of a ``with`` block.

    The rate is that of this object: units that were done before, or that are read from a file, do not count.

    Args:
        title: of the computation.
        unit: in the plural, such as "steps".
        done: number of units that are done at the start.
        logger: for the lines; default: that of this module.
    """

    monitor_interval = 0  # no thread: recipes fork

    def __init__(
        self, title: str, total: int, unit: str, *, done: int = 0, logger: Optional[logging.Logger] = None
    ) -> None:
        self._logger = None if sys.stderr.isatty() else logger or logging.getLogger(__name__)
        self._logged: Any = (done, None)  # the state of the latest line
        options: Any = {"leave": False, "dynamic_ncols": True}
        if self._logger:  # without a bar
            options = {"file": io.StringIO(), "ncols": 0, "mininterval": SECONDS_BETWEEN_LINES}
        options.update(desc=title, total=total, unit=f" {unit}", initial=done, disable=False, miniters=0, smoothing=0)
        super().__init__(**options)

    def display(self, msg: Optional[str] = None, pos: Optional[int] = None) -> None:
        if self._logger is None:
            super().display(msg, pos)
        elif (self.n, self.postfix) != self._logged:
            self._logger.info(str(self))
            self._logged = (self.n, self.postfix)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count further units; ``note``, such as a loss, is shown with them."""
        if note:
            self.set_postfix_str(note, refresh=False)
        self.update(units)

    def skip(self, units: int) -> None:
        """Count units that were done before; they do not count in the rate."""
        self.initial += units
        self.update(units)


def shown(items: Collection[Item], title: str, unit: str) -> Iterator[Item]:
    """The items, one unit each, with their progress."""
    with Progress(title, len(items), unit) as progress:
        for item in items:
            yield item
            progress.update()


def outside_bars() -> ContextManager[Any]:
    """A block that writes to the terminal above the bars."""
    return Progress.external_write_mode() if sys.stderr.isatty() else contextlib.nullcontext()

"""Progress of training runs, read from their logs."""

import logging
import math
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from collab_fairseq.progress import SECONDS_BETWEEN_LINES, Progress
from collab_fairseq.records.train_log import read_train_log

logger = logging.getLogger("recipe")

#: between two readings of a log for a bar
SECONDS_BETWEEN_READINGS = 5.0
FINISHED = "finished"


def state(folder: Path, log: Path) -> Tuple[int, str]:
    """Number of updates of the run in a folder, from its log; its current step and latest losses."""
    if (folder / "record.json").exists():
        step = FINISHED
    elif (folder / "averaged.pt").exists():
        step = "translating"
    else:
        step = "training"
    try:
        curves = read_train_log(log)["curves"]
    except OSError:
        return 0, step
    done, losses = 0, []
    for name, split in (("loss", "train"), ("validation", "valid")):
        if curves[split]:
            point = curves[split][-1]
            done = max(done, point["updates"])
            losses.append(f"{name} {point.get('loss', math.nan):.3f}")  # curves have finite numbers only
    return done, ", ".join([step, *losses])


class RunProgress:
    """Shows the progress of training runs within a ``with`` block. Call `poll` repeatedly."""

    def __init__(self) -> None:
        self._shown: Dict[Path, Tuple[Path, Progress]] = {}  # folder → log, progress
        self._seconds = SECONDS_BETWEEN_READINGS if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
        self._read = time.monotonic()

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._set()
        for _log, progress in self._shown.values():
            progress.close()

    def add(self, folder: Path, updates: int, log: Optional[Path] = None) -> None:
        """Show the run in this folder, which has so many updates at its end; ``log``: default: its train.log."""
        log = log or folder / "train.log"
        progress = Progress(folder.name, updates, "updates", done=state(folder, log)[0], logger=logger)
        self._shown[folder] = log, progress

    def poll(self) -> None:
        """Read the logs, if this has not been done for some seconds."""
        if time.monotonic() - self._read >= self._seconds:
            self._set()

    def _set(self) -> None:
        for folder, (log, progress) in list(self._shown.items()):
            done, note = state(folder, log)
            progress.advance(done - progress.n, note)
            if done >= progress.total and note.startswith(FINISHED):
                progress.close()
                del self._shown[folder]
        self._read = time.monotonic()

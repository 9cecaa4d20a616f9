"""Progress of training runs: a line on standard error now and then."""

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from collab_fairseq.records.train_log import read_train_log

SECONDS_BETWEEN_LINES = 20.0


def state(folder: Path, updates: int) -> Tuple[str, int]:
    """Current step, number of updates and latest losses of the run in a folder; the number of updates."""
    if (folder / "record.json").exists():
        step = "finished"
    elif (folder / "averaged.pt").exists():
        step = "translating"
    else:
        step = "training"
    try:
        curves = read_train_log(folder / "train.log")["curves"]
    except OSError:
        return f"{step}, 0 of {updates} updates", 0
    done, losses = 0, []
    for name, split in (("loss", "train"), ("validation", "valid")):
        if curves[split]:
            point = curves[split][-1]
            done = max(done, point["updates"])
            losses.append(f"{name} {point['loss']:.3f}")
    count = f"{done} of {updates} updates" if done <= updates else f"{done} updates"  # the folder has a longer run
    return ", ".join([step, count, *losses]), done


def pace(updates: int, done: int, first: Tuple[float, int], now: float) -> str:
    """Updates per second, elapsed time and time left; ``first``: a time in seconds, and the updates until then."""
    seconds, made = now - first[0], done - first[1]
    if made <= 0 or seconds <= 0:
        return ""
    left = max(0, updates - done) * seconds / made
    return f", {made / seconds:.2g} updates/s, {_minutes(seconds)} elapsed, {_minutes(left)} left"


def _minutes(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextlib.contextmanager
def progress_shown(title: str, updates: int, folders: List[Path]) -> Iterator[None]:
    """Within the block, print the state of each run whenever it has changed."""
    ended = threading.Event()

    def show() -> None:
        printed: Dict[Path, str] = {}
        firsts: Dict[Path, Tuple[float, int]] = {}  # an update takes as long as those of this process
        last = False
        while not last:
            last = ended.wait(SECONDS_BETWEEN_LINES)
            for folder in folders:
                current, done = state(folder, updates)
                if current != printed.get(folder):
                    first = firsts.setdefault(folder, (time.monotonic(), done))
                    timing = pace(updates, done, first, time.monotonic()) if done < updates else ""
                    sys.stderr.write(f"{title}: {folder.name}: {current}{timing}\n")
                printed[folder] = current

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

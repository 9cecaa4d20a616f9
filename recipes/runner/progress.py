"""Progress of training runs: a line on standard error now and then."""

import contextlib
import sys
import threading
from pathlib import Path
from typing import Dict, Iterator, List

from collab_fairseq.records.train_log import read_train_log

SECONDS_BETWEEN_LINES = 20.0


def state(folder: Path, updates: int) -> str:
    """Current step, number of updates and latest losses of the run in a folder."""
    if (folder / "record.json").exists():
        step = "finished"
    elif (folder / "averaged.pt").exists():
        step = "translating"
    else:
        step = "training"
    try:
        curves = read_train_log(folder / "train.log")["curves"]
    except OSError:
        return f"{step}, 0 of {updates} updates"
    done, losses = 0, []
    for name, split in (("loss", "train"), ("validation", "valid")):
        if curves[split]:
            point = curves[split][-1]
            done = max(done, point["updates"])
            losses.append(f"{name} {point['loss']:.3f}")
    count = f"{done} of {updates} updates" if done <= updates else f"{done} updates"  # the folder has a longer run
    return ", ".join([step, count, *losses])


@contextlib.contextmanager
def progress_shown(title: str, updates: int, folders: List[Path]) -> Iterator[None]:
    """Within the block, print the state of each run whenever it has changed."""
    ended = threading.Event()

    def show() -> None:
        printed: Dict[Path, str] = {}
        last = False
        while not last:
            last = ended.wait(SECONDS_BETWEEN_LINES)
            for folder in folders:
                current = state(folder, updates)
                if current != printed.get(folder):
                    sys.stderr.write(f"{title}: {folder.name}: {current}\n")
                printed[folder] = current

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

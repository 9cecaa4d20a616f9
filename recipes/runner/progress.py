"""How trainings get on: a plain line now and then."""

import contextlib
import sys
import threading
from pathlib import Path
from typing import Dict, Iterator, List

from collab_fairseq.records.train_log import read_train_log

_BETWEEN_LINES = 20.0
#: what a run leaves → the step that it is at, the last first
_STEPS = {"record.json": "finished", "averaged.pt": "translating"}


def state(folder: Path, updates: int) -> str:
    """The step that a run is at, its updates so far, its last losses."""
    step = next((step for file, step in _STEPS.items() if (folder / file).exists()), "training")
    try:
        curves = read_train_log(folder / "train.log")["curves"]
    except OSError:
        return f"{step}, 0 of {updates} updates"
    last = {name: curves[side][-1] for name, side in (("loss", "train"), ("validation", "valid")) if curves[side]}
    done = max((point["updates"] for point in last.values()), default=0)
    losses = (f"{name} {point['loss']:.3f}" for name, point in last.items())
    count = f"{done} of {updates} updates" if done <= updates else f"{done} updates"  # of a longer run in the folder
    return ", ".join([step, count, *losses])


@contextlib.contextmanager
def shown(title: str, updates: int, folders: List[Path]) -> Iterator[None]:
    """While this lasts, show on standard error what each run has left so far. Nothing depends on it."""
    over = threading.Event()

    def show() -> None:
        before: Dict[Path, str] = {}
        while True:
            last = over.wait(_BETWEEN_LINES)
            for folder in folders:
                now = state(folder, updates)
                if now != before.get(folder):
                    sys.stderr.write(f"{title}: {folder.name}: {now}\n")
                before[folder] = now
            if last:
                return

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

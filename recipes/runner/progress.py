"""How trainings get on: bars on a terminal, else a plain line now and then."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Iterator, List, Tuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collab_fairseq.records.train_log import read_train_log

_BETWEEN_LINES = 20.0
#: what an earlier file in .done tells → the step that a run is at
_STEPS = {"record": "finished", "translate.test": "scoring", "average": "translating", "train": "averaging"}


def state(folder: Path) -> Tuple[int, str, str]:
    """Updates so far, the last losses, and the step that a run is at."""
    step = next((told for done, told in _STEPS.items() if (folder / ".done" / done).exists()), "training")
    try:
        curves = read_train_log(folder / "train.log")["curves"]
    except OSError:
        return 0, "", step
    last = {name: curves[side][-1] for name, side in (("loss", "train"), ("validation", "valid")) if curves[side]}
    losses = ", ".join(f"{name} {point['loss']:.3f}" for name, point in last.items())
    return max((point["updates"] for point in last.values()), default=0), losses, step


@contextlib.contextmanager
def shown(title: str, updates: int, folders: List[Path]) -> Iterator[None]:
    """While this lasts, show on standard error what train.log and .done of each run tell. Nothing depends on it."""
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(title, updates, folders, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(title: str, updates: int, folders: List[Path], over: threading.Event) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[state]}"))  # fmt: skip
    steps, due = dict.fromkeys(folders, ""), time.monotonic() + _BETWEEN_LINES
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {folder: bars.add_task(folder.name, total=updates, state="") for folder in steps}
        last = False
        while not last:
            last = over.wait(1)
            is_due = time.monotonic() >= due
            for folder, before in steps.items():
                done, losses, step = state(folder)
                bars.update(tasks[folder], completed=done, state=f"{losses}  {step}")
                if not console.is_terminal and (step != before or (is_due and step == "training")):
                    line = f"{title}: {folder.name}: {step}, {done} of {updates} updates, {losses}".rstrip(", ")
                    console.print(line, highlight=False, soft_wrap=True)
                steps[folder] = step
            due = time.monotonic() + _BETWEEN_LINES if is_due else due

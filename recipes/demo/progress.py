#!/usr/bin/env python3
"""Show how the trainings of the demo get on: bars on a terminal, else a plain line now and then.

Reads updates and losses from FOLDER/train.log of every run, and what is finished from its .done. Ends when all runs are
recorded. Shows only; nothing depends on it.
"""

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collab_fairseq.records.train_log import read_train_log

_BETWEEN_LINES = 20.0
#: what an earlier file in .done tells → the step that a run is at
_STEPS = {"record": "finished", "translate.test": "scoring", "average": "translating", "train": "averaging"}


def state(folder: Path) -> "tuple[int, str, str]":
    """Updates so far, the last losses, and the step that a run is at."""
    step = next((told for done, told in _STEPS.items() if (folder / ".done" / done).exists()), "training")
    try:
        curves = read_train_log(folder / "train.log")["curves"]
    except OSError:
        return 0, "", step
    last = {name: curves[side][-1] for name, side in (("loss", "train"), ("validation", "valid")) if curves[side]}
    losses = ", ".join(f"{name} {point['loss']:.3f}" for name, point in last.items())
    return max((point["updates"] for point in last.values()), default=0), losses, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, required=True, help="length of each training")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a run")
    args = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[state]}"))  # fmt: skip
    steps, due = dict.fromkeys(args.folders, ""), time.monotonic() + _BETWEEN_LINES
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {folder: bars.add_task(folder.name, total=args.updates, state="") for folder in steps}
        while set(steps.values()) != {"finished"}:
            time.sleep(1)
            is_due = time.monotonic() >= due
            for folder, before in steps.items():
                done, losses, step = state(folder)
                bars.update(tasks[folder], completed=done, state=f"{losses}  {step}")
                if not console.is_terminal and (step != before or (is_due and step == "training")):
                    line = f"demo: {folder.name}: {step}, {done} of {args.updates} updates, {losses}".rstrip(", ")
                    console.print(line, highlight=False, soft_wrap=True)
                steps[folder] = step
            due = time.monotonic() + _BETWEEN_LINES if is_due else due


if __name__ == "__main__":
    main()

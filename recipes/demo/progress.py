#!/usr/bin/env python3
"""Show how the trainings of the demo get on: bars on a terminal, else a plain line now and then.

Reads `MODEL STEP` lines from standard input (training, averaging, translating, scoring, then finished, failed or
interrupted), updates and losses from FOLDER/MODEL/train.log. Ends with its input. Shows only; nothing depends on it.
"""

import argparse
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collab_fairseq.records.train_log import read_train_log

_BETWEEN_LINES = 20.0


class Steps:
    """The step that each model is at, from lines on standard input."""

    def __init__(self, models: List[str]) -> None:
        self.of = dict.fromkeys(models, "waiting")
        self.open = True
        self._rest = b""

    def read(self, seconds: float) -> None:
        """Wait for that long at most, for news or the end of the input."""
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return
        data = os.read(sys.stdin.fileno(), 1 << 16)
        self.open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            model, _, step = line.decode("utf-8", "replace").partition(" ")
            if model in self.of:
                self.of[model] = step


def position(log: Path) -> Tuple[int, Optional[float], Optional[float]]:
    """Updates so far, the last training loss and the last validation loss; 0 and None where there are none yet."""
    try:
        curves = read_train_log(log)["curves"]
    except OSError:
        return 0, None, None
    train, valid = (curves[name][-1] if curves[name] else {} for name in ("train", "valid"))
    updates = max(train.get("updates", 0), valid.get("updates", 0))
    return updates, train.get("loss"), valid.get("loss")


def losses(train: Optional[float], valid: Optional[float]) -> str:
    shown = [f"{name} {value:.3f}" for name, value in (("loss", train), ("validation", valid)) if value is not None]
    return ", ".join(shown)


def show_bars(folder: Path, steps: Steps, updates: int, console: Console) -> None:
    columns = (TextColumn("{task.description:<17}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[state]}"))  # fmt: skip
    with Progress(*columns, console=console) as progress:
        tasks = {model: progress.add_task(model, total=updates, state="") for model in steps.of}
        while steps.open:
            steps.read(1.0)
            for model, task in tasks.items():
                done, train, valid = position(folder / model / "train.log")
                state = "  ".join(part for part in (losses(train, valid), steps.of[model]) if part)
                progress.update(task, completed=done, state=state)


def show_lines(folder: Path, steps: Steps, updates: int, console: Console) -> None:
    """Plain lines: at every new step, and every 20 seconds while training."""
    begun: Dict[str, Tuple[float, int]] = {}
    before: Dict[str, str] = {}
    due = time.monotonic() + _BETWEEN_LINES
    while steps.open:
        steps.read(1.0)
        now = time.monotonic()
        for model, step in steps.of.items():
            if step != before.get(model, "waiting"):
                console.print(f"demo: {model}: {step}", highlight=False, soft_wrap=True)
                before[model] = step
            if step != "training":
                continue
            done, train, valid = position(folder / model / "train.log")
            start, first = begun.setdefault(model, (now, done))
            if now >= due and done:
                left = f", {(now - start) / (done - first) * (updates - done):.0f} s left" if done > first else ""
                text = f"demo: {model}: {done} of {updates} updates, {losses(train, valid)}{left}"
                console.print(text, highlight=False, soft_wrap=True)
        due = now + _BETWEEN_LINES if now >= due else due


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the demo, with one folder per model in it")
    parser.add_argument("--updates", type=int, required=True, help="length of each training")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the demo, and with it the input
    console = Console()
    show = show_bars if console.is_terminal else show_lines
    show(args.folder, Steps(args.models), args.updates, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())

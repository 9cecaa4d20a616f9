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
from typing import Tuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collab_fairseq.records.train_log import read_train_log

_BETWEEN_LINES = 20.0


def position(log: Path) -> Tuple[int, str]:
    """Updates so far, and the last training and validation loss, as far as there are any."""
    try:
        curves = read_train_log(log)["curves"]
    except OSError:
        return 0, ""
    last = {name: curves[side][-1] for name, side in (("loss", "train"), ("validation", "valid")) if curves[side]}
    shown = [f"{name} {point['loss']:.3f}" for name, point in last.items()]
    return max((point["updates"] for point in last.values()), default=0), ", ".join(shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the demo, with one folder per model in it")
    parser.add_argument("--updates", type=int, required=True, help="length of each training")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the demo, and with it the input
    console = Console()

    def say(model: str, what: str) -> None:
        if not console.is_terminal:
            console.print(f"demo: {model}: {what}", highlight=False, soft_wrap=True)

    columns = (TextColumn("{task.description:<17}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[state]}"))  # fmt: skip
    steps, due = dict.fromkeys(args.models, "waiting"), time.monotonic() + _BETWEEN_LINES
    data, rest = b" ", b""
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {model: bars.add_task(model, total=args.updates, state="") for model in steps}
        while data:  # until the end of the input
            lines = []
            if select.select([sys.stdin], [], [], 1.0)[0]:
                data = os.read(sys.stdin.fileno(), 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                model, _, step = line.decode("utf-8", "replace").partition(" ")
                if steps.get(model, step) != step:
                    steps[model] = step
                    say(model, step)
            is_due = time.monotonic() >= due
            for model, step in steps.items():
                done, losses = position(args.folder / model / "train.log")
                bars.update(tasks[model], completed=done, state="  ".join(filter(None, (losses, step))))
                if is_due and done and step == "training":
                    say(model, f"{done} of {args.updates} updates, {losses}")
            due = time.monotonic() + _BETWEEN_LINES if is_due else due
    return 0


if __name__ == "__main__":
    sys.exit(main())

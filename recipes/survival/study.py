#!/usr/bin/env python3
"""Kill a training again and again, and compare what it ends with to the same training left alone.

    study.py --output DIR --updates N [--kills N] [--seed N] -- fairseq-train DATA ... --max-update N

The command must save often (--save-interval-updates) and log every update (--log-format json --log-interval 1). It is
run once undisturbed (DIR/whole) and once killed (DIR/killed) with SIGKILL at random moments: every other time inside
the write of a checkpoint, which is made sure of by stopping the process there and looking. After each kill every
checkpoint is read and its sums are checked; after each restart of the unchanged command the log must say that it went
on from checkpoint_last.pt, or from the newest of them where that is missing or torn. The result is DIR/survival.json;
the status is 1 if anything was torn, lost or different.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Set

import torch

from collab_fairseq import checkpoints
from collab_fairseq.reporting import environment
from collab_fairseq.reporting.files import write_text

logger = logging.getLogger("survival")

DEADLINE = 600  # seconds to wait for a moment before the study gives up
KINDS = (r"checkpoint_\d+_\d+", "checkpoint_best", "checkpoint_last")  # in the order in which fairseq writes them
PATIENCE = 6  # other files, until one that is not written (there may be no best one any more) is waited for no longer
UPDATE = re.compile(r'"num_updates": "(\d+)"')
LOADED = re.compile(r"Loaded checkpoint \S+ \(epoch \d+ @ (\d+) updates\)")


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"study.py: error: {message}\n")
    sys.exit(1)


class Training:
    """The command at work in a folder, as a process group of its own that is killed when the study ends."""

    def __init__(self, command: List[str], folder: Path, log: Path) -> None:
        self.folder, self.log = folder, log
        with open(log, "wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--save-dir", str(folder)], stdout=stream, stderr=stream, start_new_session=True
            )

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def updates(self) -> int:
        """The last update that the log tells of."""
        found = UPDATE.findall(self.text())
        return int(found[-1]) if found else 0

    def running(self, pause: float) -> Iterator[None]:
        """Once every `pause` seconds while the process is alive; fails if it has ended or nothing happens any more."""
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            if time.monotonic() > end:
                fail(f"nothing has happened for {DEADLINE} seconds, see {self.log}")
            yield
            time.sleep(pause)
        fail(f"the training ended with status {self.process.returncode} before it could be killed, see {self.log}")

    def written(self) -> List[Path]:
        return sorted(self.folder.glob("*.pt.tmp"))

    def kill_while_training(self, delay: float) -> None:
        time.sleep(delay)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_while_writing(self, kind: str, part: float) -> None:
        """Kill inside the write of a file, when about the given part of it is there.

        Args:
            kind: a regular expression for its name. After some saves without such a file any other will do.
            part: between 0 and 1.
        """
        size = max((file.stat().st_size for file in self.folder.glob("*.pt")), default=0)
        others: Set[Path] = set()
        for _ in self.running(0.0002):
            for file in self.written():
                if re.match(kind, file.name) is None and len(others) < PATIENCE:
                    # an update checkpoint has another name each time
                    others.add(file)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_size < part * size:
                        continue
                    os.killpg(self.process.pid, signal.SIGSTOP)
                    os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
                    if file.exists():
                        os.killpg(self.process.pid, signal.SIGKILL)
                        self.process.wait()
                        return
                    os.killpg(self.process.pid, signal.SIGCONT)


def inspect(folder: Path) -> Dict[str, Optional[int]]:
    """Name of each checkpoint → its number of updates, or None where it is torn."""
    found: Dict[str, Optional[int]] = {}
    for file in sorted(folder.glob("*.pt")):
        try:
            with zipfile.ZipFile(file) as archive:
                whole = archive.testzip() is None
            found[file.name] = checkpoints.num_updates(checkpoints.load(file)) if whole else None
        except (zipfile.BadZipFile, checkpoints.CheckpointError):
            found[file.name] = None
    return found


def differences(first: Any, second: Any, name: str = "") -> List[str]:
    """Where two states differ in a bit: paths such as model.encoder.layers.0.fc1.weight."""
    if isinstance(first, torch.Tensor):
        # `_float_tensor` is a marker of fairseq that holds whatever was in its memory
        equal = name.endswith("_float_tensor") or (isinstance(second, torch.Tensor) and torch.equal(first, second))
        return [] if equal else [name]
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [d for key in first for d in differences(first[key], second[key], f"{name}.{key}")]
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        return [d for i, (a, b) in enumerate(zip(first, second, strict=True)) for d in differences(a, b, f"{name}.{i}")]
    return [] if first == second else [name]


def compare(first: Path, second: Path) -> List[str]:
    """Where model, optimizer, number of updates and position in the data of two checkpoints differ."""
    states = []
    for file in (first, second):
        state = checkpoints.load(file)
        kept = {key: state[key] for key in ("model", "last_optimizer_state")}
        # the history has an entry for every start
        kept.update(optimizer=state["optimizer_history"][-1], position=state["extra_state"]["train_iterator"])
        states.append(kept)
    return [name.lstrip(".") for name in differences(*states)]


def kill(number: int, updates: int, command: List[str], folder: Path, chance: random.Random) -> Dict[str, Any]:
    """Start the command, kill it after the given update at the latest, and report."""
    before = inspect(folder) if folder.exists() else {}
    newest = before.get("checkpoint_last.pt") or max((n for n in before.values() if n is not None), default=None)
    inside = number % 2 == 1
    with Training(command, folder, folder.with_name(f"killed.{number}.log")) as training:
        for _ in training.running(0.01):
            if training.updates() >= updates:
                break
        if inside:
            training.kill_while_writing(chance.choice(KINDS), chance.uniform(0, 0.95))
        else:
            training.kill_while_training(chance.uniform(0, 0.2))
        left_over = [f"{file.name} ({file.stat().st_size} bytes)" for file in training.written()]
        reached = training.updates()
        text = training.text()
    loaded = LOADED.search(text)
    after = inspect(folder) if folder.exists() else {}
    return {
        "moment": "writing" if inside else "training",
        "after_update": reached,
        "left_over": left_over,
        "torn": [name for name, found in after.items() if found is None],
        "newest_checkpoint_at_start": newest,
        "went_on_from": int(loaded.group(1)) if loaded else None,
    }


def study(args: argparse.Namespace) -> Dict[str, Any]:
    """Run the command undisturbed and killed; returns the report."""
    whole, killed = args.output / "whole", args.output / "killed"
    chance = random.Random(args.seed)
    logger.info("the training, undisturbed")
    with Training(args.command, whole, args.output / "whole.log") as training:
        if training.process.wait() != 0:
            fail(f"the undisturbed training failed, see {training.log}")
    shutil.rmtree(killed, ignore_errors=True)
    # not in the last tenth, in which no write might follow
    moments = sorted(chance.sample(range(1, args.updates * 9 // 10), args.kills))
    kills = []
    for number, updates in enumerate(moments):
        done = kill(number, updates, args.command, killed, chance)
        kills.append(done)
        logger.info("kill %d of %d, while %s, after update %d; went on from %s; left over: %s; torn: %s", number + 1,
                    args.kills, done["moment"], done["after_update"], done["went_on_from"] or "the beginning",
                    ", ".join(done["left_over"]) or "nothing", ", ".join(done["torn"]) or "nothing")  # fmt: skip
    logger.info("the same command again, to the end")
    with Training(args.command, killed, args.output / "killed.log") as training:
        if training.process.wait() != 0:
            fail(f"the training could not be finished, see {training.log}")
    different = {name: compare(whole / name, killed / name) for name in ("checkpoint_last.pt", "checkpoint_best.pt")}
    elsewhere = sum(k["went_on_from"] != k["newest_checkpoint_at_start"] for k in kills)
    return {
        "kills": len(kills),
        "kills_inside_a_write": sum(bool(k["left_over"]) for k in kills),
        "torn_checkpoints": sum(len(k["torn"]) for k in kills),
        "restarts_from_another_than_the_newest": elsewhere,
        "left_over_files_at_the_end": sorted(file.name for file in killed.glob("*.tmp")),
        "different_from_undisturbed": different,
        "each_kill": kills,
        "seed": args.seed,
        "updates": args.updates,
        **environment.circumstances(os.path.dirname(os.path.abspath(__file__)), device="cpu"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True, help="of the command")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    args = parser.parse_args()
    if not 1 <= args.kills <= args.updates // 2:
        parser.error(f"--kills must be from 1 to half the number of updates ({args.updates // 2}), got {args.kills}")
    logging.basicConfig(format="survival: %(message)s", level=logging.INFO)
    args.output.mkdir(parents=True, exist_ok=True)
    report = study(args)
    write_text(json.dumps(report, indent=2) + "\n", args.output / "survival.json")
    failures = [
        name
        for name in ("torn_checkpoints", "restarts_from_another_than_the_newest", "left_over_files_at_the_end")
        if report[name]
    ]
    failures += [f"{name} differs" for name, where in report["different_from_undisturbed"].items() if where]
    logger.info(
        "%d kills, %d inside a write: %s",
        report["kills"],
        report["kills_inside_a_write"],
        ", ".join(failures) or "no checkpoint torn, every restart from the newest one, the end equal bit for bit",
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

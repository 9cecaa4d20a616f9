"""Recipe runs killed thirty times end in the same results as an uninterrupted run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collab_fairseq import checkpoints
from tests.common import BIN, ROOT
from tests.fairseq.models import same_model

ROUNDS, UPDATES, INTERVAL = 5, 60, 10
TARGETS = ("runner", "group", "child")
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
PATIENCE = 300


def count(folder, pattern):
    return len(list(folder.glob(pattern)))


#: phase → whether a run is in it, by the files in its folder; `score` begins with the finished translation
PHASES = {
    "train": lambda run, goal: f'"num_updates": "{goal}"' in log(run),
    "save": lambda run, goal: count(run, "checkpoints/*.tmp") > 0,
    "average": lambda run, goal: count(run, "checkpoints/*_60.pt") > 0 and log(run).count("done training") > 0,
    "generate": lambda run, goal: count(run, "test.generate.log.*.tmp") > 0,
    "score": lambda run, goal: (run / "test.generate.log").exists(),
    "record": lambda run, goal: (run / "test.scores.json").exists(),
}
#: phase → file that appears at its end
ENDS = {
    "train": "averaged.pt",
    "save": "averaged.pt",
    "average": "averaged.pt",
    "generate": "test.generate.log",
    "score": "test.scores.json",
    "record": "record.json",
}


def log(run):
    file = run / "train.log"
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def start(data, run):
    command = [ROOT / "recipes" / "toy" / "run.sh", "--data", data, "--output", run, "--updates", UPDATES]
    command += ["--average", 3, "--device", "cpu", "--threads", 1, "lr_scheduler.warmup_updates=20"]
    command += ["common.log_interval=5", f"checkpoint.save_interval_updates={INTERVAL}"]
    environment = {**os.environ, "PYTHON": str(BIN / "python"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment["OMP_NUM_THREADS"] = "1"
    run.mkdir(exist_ok=True)
    with open(run.with_suffix(".out"), "ab") as out:
        words = [str(word) for word in command]
        return subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True)


def finish(data, run):
    process = start(data, run)
    assert process.wait(PATIENCE) == 0, run.with_suffix(".out").read_text()[-3000:]


def kill(data, run, phase, target, number, chance):
    """Start the run and kill it in a phase. Returns whether the kill came before the end of the phase."""
    goal = chance.randrange(5, UPDATES, 5)
    process = start(data, run)
    end = time.monotonic() + PATIENCE
    while not PHASES[phase](run, goal):
        assert process.poll() is None, run.with_suffix(".out").read_text()[-3000:]
        assert time.monotonic() < end
        time.sleep(0.001)
    if phase != "save":  # takes a few milliseconds only
        time.sleep(chance.uniform(0, 0.05))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if target == "group":
        os.killpg(process.pid, number)
    elif target == "child" and children:
        os.kill(int(children[0]), number)
    else:
        os.kill(process.pid, number)
    process.wait(PATIENCE)
    return process.returncode != 0 and not (run / ENDS[phase]).exists()


def state(run):
    """Record and hypotheses, without times and files that contain times."""
    record = json.loads((run / "record.json").read_text())
    for field in ("created", "command"):
        del record[field]
    for entry in record["settings"]["averaged_from"]:
        del entry["sha256"]
    training = record["parts"]["training"]
    for field in ("wall_seconds", "train_seconds", "words_per_second", "peak_memory_bytes", "parts"):
        del training[field]
    for score in record["parts"]["scores"].values():
        score.pop("files", None)
    hypotheses = {path.name: path.read_bytes() for path in sorted((run / "hypotheses").iterdir())}
    return record, hypotheses


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and PR_SET_PDEATHSIG of Linux")
def test_killed_runs_equal_uninterrupted_run(tmp_path):
    data = tmp_path / "data"
    prepare = [ROOT / "data_prep" / "toy.sh", "--train", 600, "--valid", 40, "--test", 40, "--vocab-size", 400]
    words = [str(word) for word in [*prepare, "--output", data, "--python", BIN / "python"]]
    subprocess.run(words, check=True, capture_output=True)
    finish(data, tmp_path / "uninterrupted")
    expected = state(tmp_path / "uninterrupted")
    weights = checkpoints.load(tmp_path / "uninterrupted" / "averaged.pt")["model"]
    hits = {phase: [] for phase in PHASES}

    def interrupted(number):
        chance = random.Random(number)
        run = tmp_path / f"run{number}"
        for position, phase in enumerate(PHASES):
            target, signum = TARGETS[(number + position) % 3], SIGNALS[(number + position // 2) % 2]
            if kill(data, run, phase, target, signum, chance):
                hits[phase].append((target, signum.name))
        finish(data, run)
        record, hypotheses = state(run)
        assert record == expected[0]
        assert hypotheses == expected[1]
        assert same_model(checkpoints.load(run / "averaged.pt")["model"], weights)
        assert not list(run.rglob("*.tmp"))

    with ThreadPoolExecutor(2) as lanes:
        list(lanes.map(interrupted, range(ROUNDS)))
    assert all(len(of_phase) >= 3 for of_phase in hits.values()), hits

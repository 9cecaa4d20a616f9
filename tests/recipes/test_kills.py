"""Recipe runs that are killed, thirty times on one node or once per node of two, equal uninterrupted runs.

KILL_ROUNDS=20 pytest tests/recipes/test_kills.py kills 120 times on one node, six times per round.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from collab_fairseq import checkpoints
from fairseq_modern import processor
from tests import forked
from tests.common import ROOT, free_port
from tests.models.cases import same_model

ROUNDS = int(os.environ.get("KILL_ROUNDS", 5))
TARGETS = ("runner", "group", "child")
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
TIMEOUT = 300
#: phase → whether a run is in it, by the files in its folder, and the file that appears at its end
PHASES = {
    "train": (lambda run, update: f'"num_updates": "{update}"' in log(run), "averaged.pt"),
    "save": (lambda run, update: any(run.glob("checkpoints/*.tmp")), "averaged.pt"),
    "average": (
        lambda run, update: any(run.glob("checkpoints/*_6[0-9].pt")) and "done training" in log(run),
        "averaged.pt",
    ),
    "generate": (lambda run, update: any(run.glob("test.generate.log.*.tmp")), "test.generate.log"),
    "score": (lambda run, update: (run / "test.generate.log").exists(), "test.scores.json"),
    "record": (lambda run, update: (run / "test.scores.json").exists(), "record.json"),
}
ONE_NODE = ["--updates", 60, "--average", 3, "lr_scheduler.warmup_updates=20", "common.log_interval=5"]
ONE_NODE += ["checkpoint.save_interval_updates=10"]
#: a round kills a run of one of these kinds; an epoch has 11 updates
KINDS = {
    "fp32": ONE_NODE,
    "bf16": [*ONE_NODE, "--precision", "bf16"],
    "two processes": [*ONE_NODE, "--gpus", 2, "recipe.batch_tokens=4000"],
    "stages": [*ONE_NODE, "--stages", 2],
    "saves at the end of epochs": [*ONE_NODE, "--updates", 66, "checkpoint.save_interval_updates=11"],
}
if not processor.bfloat16_units():
    del KINDS["bf16"]  # recipes reject it
TWO_NODES = ["--nodes", 2, "--gpus", 1, "--updates", 24, "--average", 2, "lr_scheduler.warmup_updates=4"]
TWO_NODES += ["recipe.batch_tokens=2400", "checkpoint.save_interval_updates=4"]


def log(run):
    file = run / "train.log"
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "toy"
    sizes = ["--train", "600", "--valid", "40", "--test", "40", "--vocab-size", "400"]
    command = [ROOT / "data_prep" / "toy.sh", *sizes, "--output", folder]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def seconds_by_the_log(run):
    """Recorded seconds of each part, those from the first to the last line of its log, and its exit status."""
    lines = [json.loads(line) for line in (run / "train.usage.jsonl").read_text().splitlines()]
    text, seconds = (run / "train.log").read_bytes(), []
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        stamps = re.findall(rb"(?m)^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ", text[begin["log_from"] : end["log_to"]])
        first, last = (datetime.fromisoformat(stamps[place].decode()) for place in (0, -1)) if stamps else (0, 0)
        seconds.append((end["train_seconds"], (last - first).total_seconds() if stamps else 0, end.get("exit_status")))
    return seconds


def start(data, run, *flags):
    command = [ROOT / "recipes" / "toy" / "run.sh", "--data", data, "--output", run, *flags]
    words = [str(word) for word in (*command, "--device", "cpu", "--threads", 1)]
    with open(run.with_suffix(".out"), "ab") as out:
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # see ended()
        return subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True, env=environment)


def start_nodes(data, run, *of_second):
    """Start both nodes on this machine. They use the same folder, as on a shared disk of a cluster."""
    words = [*TWO_NODES, "--master", f"127.0.0.1:{free_port()}"]
    return [start(data, run, *words, "--node-rank", 0), start(data, run, *words, "--node-rank", 1, *of_second)]


def ended(process, run):
    """Wait for the end. If it takes too long, fail with the stacks of all its processes."""
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        time.sleep(2)
        pytest.fail(run.with_suffix(".out").read_text()[-6000:] + log(run)[-6000:])


def finish(run, *processes):
    statuses = {ended(process, run) for process in processes}
    assert statuses == {0}, run.with_suffix(".out").read_text()[-3000:]


def kill(data, run, flags, phase, target, number, chance):
    """Start the run and kill it in a phase. Returns whether the kill came before the end of the phase."""
    update = chance.randrange(5, 60, 5)
    process = start(data, run, *flags)
    is_in_phase, last_file = PHASES[phase]
    # an earlier kill may have come too late; the run has then finished, and never is in this phase again
    forked.wait_for(lambda: is_in_phase(run, update) or process.poll() == 0, process, run.with_suffix(".out"))
    if process.poll() == 0:
        return False
    if phase != "save":  # takes a few milliseconds only
        time.sleep(chance.uniform(0, 0.05))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if target == "group":
        os.killpg(process.pid, number)
    elif target == "child" and children:
        os.kill(int(children[0]), number)
    else:
        os.kill(process.pid, number)
    return ended(process, run) != 0 and not (run / last_file).exists()


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
def test_killed_runs_equal_uninterrupted_run(data, tmp_path):
    hits = {phase: [] for phase in PHASES}

    def uninterrupted(kind):
        run = tmp_path / kind.replace(" ", "-")
        finish(run, start(data, run, *KINDS[kind]))
        return run

    def interrupted(number):
        kind = [*KINDS][number % len(KINDS)]
        chance = random.Random(number)
        run = tmp_path / f"run{number}"
        for position, phase in enumerate(PHASES):
            # independent of the kind: `number // len(KINDS)` differs between rounds of one kind
            shift = number % len(KINDS) + number // len(KINDS)
            target, signum = TARGETS[(shift + position) % 3], SIGNALS[(shift + position // 2) % 2]
            if kill(data, run, KINDS[kind], phase, target, signum, chance):
                hits[phase].append((target, signum.name))
        finish(run, start(data, run, *KINDS[kind]))
        assert state(run) == expected[kind], kind
        assert same_model(checkpoints.load(run / "averaged.pt")["model"], weights[kind]), kind
        assert not list(run.rglob("*.tmp"))
        for measured, by_log, status in seconds_by_the_log(run):  # time stamps are rounded down to seconds
            assert measured > by_log - 1.1
            # a process that saves or fails ends some time after its last line
            assert measured < by_log + 2.1 or status not in (None, -signal.SIGKILL)

    with ThreadPoolExecutor(2) as lanes:
        references = dict(zip(KINDS, lanes.map(uninterrupted, KINDS), strict=True))
        expected = {kind: state(run) for kind, run in references.items()}
        weights = {kind: checkpoints.load(run / "averaged.pt")["model"] for kind, run in references.items()}
        list(lanes.map(interrupted, range(ROUNDS)))
    assert all(len(of_phase) >= 3 for of_phase in hits.values()), hits


@pytest.mark.slow
def test_two_nodes_resume_after_either_is_killed(data, tmp_path):
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    finish(uninterrupted, *start_nodes(data, uninterrupted))
    for rank, update in ((0, 8), (1, 16)):
        nodes, saved = start_nodes(data, killed), f"checkpoints/checkpoint_*_{update}.pt"
        forked.wait_for(lambda saved=saved: any(killed.glob(saved)), nodes[0], killed.with_suffix(".out"))
        nodes[rank].send_signal(signal.SIGKILL)
        statuses = [ended(node, killed) for node in nodes]
        assert statuses[rank] == -signal.SIGKILL
        assert statuses[1 - rank] != 0
        assert not list(killed.glob("averaged*"))
    finish(killed, *start_nodes(data, killed))
    states = [checkpoints.load(run / "averaged.pt") for run in (uninterrupted, killed)]
    assert [entry["num_updates"] for entry in states[1]["extra_state"]["averaged_from"]] == [24, 20]
    assert same_model(*(state["model"] for state in states))


@pytest.mark.slow
def test_nodes_with_different_settings_do_not_train(data, tmp_path):
    run = tmp_path / "run"
    assert [ended(node, run) for node in start_nodes(data, run, "--seed", 2)] == [1, 1]
    messages = run.with_suffix(".out").read_text()
    assert messages.count("common.seed must be the same on all nodes; got 1 on node 0 and 2 on node 1") == 2
    assert not list(run.glob("checkpoints/*.pt"))
    finish(run, *start_nodes(data, run))  # control

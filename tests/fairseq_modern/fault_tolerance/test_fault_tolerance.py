"""Training runs that are stopped, killed, run out of memory or disk, resume with other processes; moving averages."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests import forked
from tests.common import BIN, TINY_MODEL, TINY_TRAINING, descendants, free_port, run
from tests.models.cases import same_training

# A --user-dir that sends a signal to one process, or makes it run out of memory, at a given update.
TROUBLE = """
import os, signal
from fairseq.tasks.translation import TranslationTask
published, here = TranslationTask.train_step, os.environ["THIS_RANK"]

def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False, **rest):
    for name in ("SIGTERM", "SIGKILL"):
        if os.environ.get(f"{name}_AT") == f"{update_num}@{here}":
            os.kill(os.getpid(), getattr(signal, name))
    if os.environ.get("MEMORY_ENDS_AT") == f"{update_num}@{here}":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return published(self, sample, model, criterion, optimizer, update_num, ignore_grad, **rest)

TranslationTask.train_step = train_step
"""


@pytest.fixture(scope="module")
def troubled(tiny_data, tmp_path_factory):
    """Name of a run → its folder, and the outputs and exit statuses of its processes."""
    folder = tmp_path_factory.mktemp("troubled")
    trouble = forked.user_dir(folder / "trouble", TROUBLE)
    saving = ["--save-interval-updates", 15, "--no-epoch-checkpoints", "--save-interval", 100]
    updates = ["--max-tokens", 100, "--max-update", 40, "--dropout", 0.3, "--validate-interval", 100]
    flags = [tiny_data, "--user-dir", trouble, *TINY_MODEL, *TINY_TRAINING, *updates, *saving]

    runs = {}

    def train(name, processes=1, more=(), **options):
        runs[name] = folder / name, forked.train(folder / name, [*flags, *more], processes, **options)

    train("one")
    train("killed", env={"SIGKILL_AT": "22@0"})
    train("after the kill", copy=folder / "killed")
    train("reset", more=["--reset-optimizer"], copy=folder / "killed")
    train("while saving", env={"SIGTERM_AT": "29@0"})
    train("two", 2)
    train("two stopped", 2, env={"SIGTERM_AT": "22@1"})
    train("two resumed", 2, copy=folder / "two stopped")
    train("by one", 1, ["--update-freq", 2], copy=folder / "two stopped")
    train("hungry", 2, env={"MEMORY_ENDS_AT": "22@1"})
    start = ["--restore-file", folder / "two" / "checkpoint_last.pt", "--reset-optimizer", "--reset-dataloader"]
    train("restored", 2, start, env={"SIGTERM_AT": "12@1"})
    runs["restored again"] = folder / "restored", forked.train(folder / "restored", [*flags, *start], 2)
    return runs


def state(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=False)


def test_sigterm_saves_and_the_resumed_run_equals_an_uninterrupted_one(troubled):
    folder, done = troubled["two stopped"]
    assert set(done["statuses"]) == {75}
    assert "stopped after update 23, saved" in done["outputs"][0]
    kept = state(folder)
    assert kept["optimizer_history"][-1]["num_updates"] == 23
    assert kept["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert sum(output.count("begin validation") for output in done["outputs"]) == 1, "of update 15 only"

    final = [state(troubled[name][0]) for name in ("two", "two resumed")]
    assert set(troubled["two resumed"][1]["statuses"]) == {0}
    assert "@ 23 updates)" in troubled["two resumed"][1]["outputs"][0]
    assert same_training(*final)
    assert not same_training(final[0], kept)
    assert final[0]["extra_state"]["val_loss"] == final[1]["extra_state"]["val_loss"]


def test_all_processes_of_a_repeated_command_resume_without_the_flags_that_started_the_run(troubled):
    folder, first = troubled["restored"]
    again = troubled["restored again"][1]
    assert set(first["statuses"]) == {75}
    assert "stopped after update 13, saved; the same command resumes from there" in first["outputs"][0]
    assert set(again["statuses"]) == {0}
    assert re.search(rf"Loaded checkpoint {folder}/checkpoint_last.pt \(epoch \d @ 13 updates\)", again["outputs"][0])
    assert "--reset-optimizer --reset-dataloader, which applied when it started" in again["outputs"][0]
    final = state(folder)
    assert final["optimizer_history"][-1]["num_updates"] == 40
    assert final["cfg"]["checkpoint"]["reset_optimizer"], "the flags of the command are stored"


@pytest.mark.parametrize(("more", "last_epoch"), [([], 4), (["--reset-meters"], 5)])
def test_a_resumed_run_remembers_its_patience(tiny_data, tmp_path, more, last_epoch):
    """The score never improves: validations 2 to 4 exhaust a patience of 3, of which 3 and 4 follow in the second run.

    The control, which forgets the first two validations, does not stop early.
    """
    flags = [tiny_data, *TINY_MODEL, *TINY_TRAINING, "--lr", 1e-30, "--patience", 3, "--no-epoch-checkpoints"]
    for max_epoch, flag in ((2, []), (5, more)):
        done = forked.train(tmp_path, [*flags, *flag, "--max-epoch", max_epoch])
        assert done["statuses"] == [0]
    assert ("early stop since" in done["outputs"][0]) is (not more)
    assert f"end of epoch {last_epoch} " in done["outputs"][0]
    assert f"end of epoch {last_epoch + 1} " not in done["outputs"][0]


@pytest.mark.parametrize(
    ("limit", "updates"),
    [
        (["--stop-time-hours", 1e-9], 1),
        pytest.param(*(["--patience", 1, "--lr", 1e-30, "--validate-interval-updates", 1], 2), marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_stays_as_it_is_when_its_command_is_repeated(tiny_data, tmp_path, limit, updates):
    """The control makes one more update."""
    flags = [tiny_data, *TINY_MODEL, *TINY_TRAINING, *limit, "--no-epoch-checkpoints"]
    for skip, expected in (("", updates), ("", updates), ("finished", updates + 1)):
        done = forked.train(tmp_path, flags, env={"FAIRSEQ_MODERN_SKIP": skip})
        assert done["statuses"] == [0]
        assert state(tmp_path)["optimizer_history"][-1]["num_updates"] == expected


@pytest.mark.parametrize(("processes", "on"), [(1, 1), pytest.param(2, 1, marks=pytest.mark.slow), (1, 0)])
def test_losses_in_the_log_are_the_same_after_resuming_at_the_end_of_an_epoch(tiny_data, tmp_path, processes, on):
    """A line averages two updates, and an epoch has five, or three in two processes. In the control, it is off."""
    flags = [tiny_data, *TINY_MODEL, *TINY_TRAINING, "--dropout", 0.3, "--log-format", "json", "--log-interval", 2]
    lines = {}
    for name, ends in (("once", [2]), ("resumed", [1, 2])):
        for end in ends:
            env = {"FAIRSEQ_MODERN_FAULT_TOLERANCE": str(on)}
            done = forked.train(tmp_path / name, [*flags, "--max-epoch", end], processes, env)
            assert set(done["statuses"]) == {0}
            logged = [json.loads(line) for line in re.findall(r"train_inner \| (\{.*\})", done["outputs"][0])]
            lines[name] = lines.get(name, []) + [(line["num_updates"], line["loss"]) for line in logged]
    assert len(lines["once"]) == (3 if processes == 2 else 5)
    assert (lines["once"] == lines["resumed"]) is (on == 1)


def test_a_killed_run_resumes_from_its_last_checkpoint_and_equals_an_uninterrupted_one(troubled):
    assert troubled["killed"][1]["statuses"] == [-signal.SIGKILL]
    kept = state(troubled["killed"][0])
    assert kept["optimizer_history"][-1]["num_updates"] == 15
    assert kept["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    uninterrupted, resumed, reset = (state(troubled[name][0]) for name in ("one", "after the kill", "reset"))
    assert same_training(uninterrupted, resumed)
    assert not same_training(uninterrupted, reset)  # the control


def test_sigterm_before_a_save_is_due_validates_and_saves_once(troubled):
    folder, done = troubled["while saving"]
    assert done["statuses"] == [75]
    assert state(folder)["optimizer_history"][-1]["num_updates"] == 30
    assert state(folder)["extra_state"]["val_loss"] is not None
    assert list(folder.glob("checkpoint_*_30.pt"))
    assert done["outputs"][0].count("Finished saving checkpoint") == 2


def test_another_number_of_processes_resumes_at_the_next_epoch(troubled):
    folder, done = troubled["by one"]
    assert done["statuses"] == [0]
    epoch = state(troubled["two stopped"][0])["extra_state"]["train_iterator"]["epoch"]
    assert f"(processes 2 → 1): resuming at epoch {epoch + 1} after update 23" in done["outputs"][0]
    assert f"begin training epoch {epoch}\n" not in done["outputs"][0]
    final = state(folder)
    assert final["optimizer_history"][-1]["num_updates"] == 40
    assert final["extra_state"]["train_iterator"]["epoch"] > epoch


def test_a_process_that_runs_out_of_memory_ends_the_run_with_one_sentence(troubled):
    folder, done = troubled["hungry"]
    assert 0 not in done["statuses"]
    assert done["statuses"][1] == 1
    last = done["outputs"][1].strip().splitlines()[-1]
    assert "fairseq-train: error: out of GPU memory; lower --max-tokens" in last
    assert "fairseq-train: error: another process of this training run has ended" in done["outputs"][0]
    assert "Traceback" not in done["outputs"][1]
    assert state(folder)["optimizer_history"][-1]["num_updates"] == 15


@contextlib.contextmanager
def torchrun_training(data, folder, *more):
    """Start torchrun with two processes; yield it and its log after update 20, while training continues."""
    port = str(free_port())
    launch = [BIN / "torchrun", "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", port]
    train = [BIN / "fairseq-train", data, *TINY_MODEL, *TINY_TRAINING, "--save-dir", folder / "run"]
    train += ["--max-tokens", "100", "--distributed-world-size", "2", "--distributed-backend", "gloo"]
    train += ["--log-interval", "1", "--log-format", "json", "--save-interval", "100000", "--no-epoch-checkpoints"]
    log, env = folder / "log", {**os.environ, "OMP_NUM_THREADS": "1", "FAIRSEQ_MODERN_FAULT_TOLERANCE": "1"}
    command = [*launch, *train, "--disable-validation", "--max-update", "100000", *more]
    with open(log, "w") as stream, subprocess.Popen(command, stdout=stream, stderr=stream, env=env) as process:
        forked.wait_for(lambda: '"num_updates": "20"' in log.read_text(), process, log)
        yield process, log


@pytest.mark.slow
def test_sigterm_to_torchrun_saves(tiny_data, tmp_path):
    """torchrun forwards it to the process groups of its workers, which include the processes that load data."""
    with torchrun_training(tiny_data, tmp_path, "--num-workers", "1") as (process, log):
        process.terminate()
        assert process.wait(timeout=120) != 0
    text = log.read_text()
    stopped = int(re.search(r"stopped after update (\d+), saved", text).group(1))
    assert state(tmp_path / "run")["optimizer_history"][-1]["num_updates"] == stopped >= 20
    assert "SIGKILL" not in text


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_no_worker_outlives_a_killed_torchrun(tiny_data, tmp_path):
    with torchrun_training(tiny_data, tmp_path, "--num-workers", "0") as (process, _):
        workers = descendants(process.pid)
        assert len(workers) == 2
        process.kill()
        process.wait(timeout=30)
    end = time.monotonic() + 30
    while alive := [pid for pid in workers if os.path.exists(f"/proc/{pid}")]:
        if time.monotonic() > end:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{len(alive)} workers outlived torchrun by 30 s")
        time.sleep(0.05)


def test_a_failed_write_is_one_error_and_leaves_the_last_checkpoint(tiny_data, tiny_run, tmp_path):
    shutil.copy(tiny_run / "checkpoint_last.pt", tmp_path)
    flags = ["--max-epoch", 3, "--no-epoch-checkpoints", "--disable-validation", "--save-interval-updates", 1]
    command = ["fairseq-train", tiny_data, *TINY_MODEL, *TINY_TRAINING, *flags, "--save-dir", tmp_path]
    limit = (resource.RLIMIT_FSIZE, (60_000, 60_000))
    done = run(*command, check=False, preexec_fn=lambda: resource.setrlimit(*limit))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (error,) = (line for line in done.stderr.splitlines() if "error:" in line)
    assert "could not be written (File too large); an existing file is unchanged" in error
    assert state(tmp_path)["extra_state"]["train_iterator"]["epoch"] == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_a_moving_average_starts_at_the_model_of_a_checkpoint_without_one(tiny_data, tiny_run, tmp_path):
    """Unpatched, --store-ema then ends in a KeyError."""
    source = tiny_run / "checkpoint_best.pt"
    flags = ["--store-ema", "--ema-decay", 1.0, "--finetune-from-model", source, "--max-update", 1]
    run("fairseq-train", tiny_data, *TINY_MODEL, *TINY_TRAINING, *flags, "--save-dir", tmp_path)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    start, average = torch.load(source, weights_only=False)["model"], state["extra_state"]["ema"]
    weights = [name for name in start if name.endswith("weight")]
    assert all(torch.equal(average[name], start[name]) for name in weights)
    assert not any(torch.equal(state["model"][name], start[name]) for name in weights)


def test_the_moving_average_of_a_resumed_run_is_that_of_an_uninterrupted_one(tiny_data, tmp_path):
    flags = [*TINY_MODEL, *TINY_TRAINING, "--store-ema", "--ema-decay", 0.5, "--ema-update-freq", 3]
    states = []
    for name, ends in (("once", [8]), ("resumed", [4, 8])):
        for end in ends:
            run("fairseq-train", tiny_data, *flags, "--max-update", end, "--save-dir", tmp_path / name)
        states.append(torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False))
    once, resumed = states
    for model, other in ((once["model"], resumed["model"]), *[[s["extra_state"]["ema"] for s in states]]):
        assert all(torch.equal(model[name], other[name]) for name in model)
    assert not all(torch.equal(once["model"][name], tensor) for name, tensor in once["extra_state"]["ema"].items())

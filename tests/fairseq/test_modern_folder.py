"""The checkpoint folder: stale temporary files, the lock, and the position within an epoch."""

import logging
import os
import select
import signal
import subprocess
import sys

import pytest

from fairseq_modern import files
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance import position, resuming
from fairseq_modern.files import atomic_write
from tests.fairseq import forked


def killed_write(path, folder_too=False):
    """Let a child process be killed while it writes a file."""
    pid = os.fork()
    if pid == 0:
        with atomic_write(str(path)):
            if folder_too:
                os.mkdir(f"{path}.{16 * 'b'}.tmp")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_removes_stale_temp_files_and_nothing_else(tmp_path):
    for name in ["thesis.tmp", "checkpoint_last.pt"]:
        (tmp_path / name).write_bytes(b"x")
    killed_write(tmp_path / "checkpoint_1_20.pt")
    (tmp_path / f"model.{16 * 'a'}.tmp").mkdir()  # left by an export
    (tmp_path / f"model.{16 * 'a'}.tmp" / "weights").write_bytes(b"x")
    assert len(files.remove_stale_temp_files(str(tmp_path))) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_last.pt", "thesis.tmp"]


@pytest.mark.parametrize("folder_too", [False, True])
def test_the_next_write_removes_temp_files_of_a_killed_one_but_not_of_a_running_one(tmp_path, folder_too):
    path = tmp_path / "averaged.pt"
    for name in ("averaged.pt.tmp", f"other.pt.{16 * 'a'}.tmp", f"averaged.pt.{15 * 'a'}.tmp"):
        (tmp_path / name).write_bytes(b"x")
    kept = sorted(tmp_path.iterdir())
    killed_write(path, folder_too)
    assert len(list(tmp_path.iterdir())) == len(kept) + 1 + folder_too
    with atomic_write(str(path)) as slow:
        with atomic_write(str(path)) as fast:
            fast.write(b"fast")
        slow.write(b"slow")
    assert path.read_bytes() == b"slow"
    assert sorted(tmp_path.iterdir()) == sorted([*kept, path])


def test_one_run_at_a_time_uses_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_PATIENCE", 0.3)
    code = "import filelock, sys\nwith filelock.FileLock(sys.argv[1]): print(flush=True); input()"
    command = [sys.executable, "-c", code, tmp_path / ".lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another training run is active in"):
            resuming.lock(str(tmp_path))
        other.kill()
    resuming.lock(str(tmp_path))  # the lock of a killed process is released
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert not select.select([other.stdout], [], [], 0.5)[0]
        resuming.unlock()
        assert other.stdout.readline() == b"\n"
        other.kill()


def adapted_position(saved, directory, changes):
    """Return the position from which a run with changed settings resumes."""
    before, now = forked.training_config(directory), forked.training_config(directory)
    for (section, key), value in changes.items():
        now[section][key] = value
    state = {"extra_state": {"train_iterator": {**saved}}, "cfg": before, "optimizer_history": [{"num_updates": 30}]}
    position.adapt(state, now)
    return state["extra_state"]["train_iterator"]


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({("optimization", "update_freq"): [4], ("dataset", "num_workers"): 7}, True),
        ({("distributed_training", "distributed_world_size"): 2}, False),
        ({("dataset", "max_tokens"): 100}, False),
        ({("common", "seed"): 2}, False),
    ],
)
def test_other_batches_resume_at_the_next_epoch(tmp_path, caplog, changes, is_same):
    saved = {"version": 2, "epoch": 3, "iterations_in_epoch": 5, "shuffle": True}
    with caplog.at_level(logging.WARNING):
        adapted = adapted_position(saved, tmp_path, changes)
    assert adapted == (saved if is_same else {**saved, "epoch": 4, "iterations_in_epoch": 0})
    assert ("resuming at epoch 4 after update 30" in caplog.text) is not is_same
    start = {**saved, "iterations_in_epoch": 0}
    assert adapted_position(start, tmp_path, changes) == start

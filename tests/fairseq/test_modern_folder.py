"""Where a training resumes: in a folder of its own, at a position that still holds."""

import logging
import os
import select
import signal
import subprocess
import sys

import pytest

from fairseq_modern import files
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance import folder, position
from fairseq_modern.files import atomic_write
from tests.fairseq import forked

# --- the folder ----------------------------------------------------------------------------------------------------


def test_stale_temp_files_are_removed_and_nothing_else(tmp_path):
    for name in ["thesis.tmp", "checkpoint_last.pt"]:
        (tmp_path / name).write_bytes(b"x")
    pid = os.fork()
    if pid == 0:  # a training that is killed while it writes
        with atomic_write(str(tmp_path / "checkpoint_1_20.pt")):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (tmp_path / f"model.{16 * 'a'}.tmp").mkdir()  # of an export that was killed
    (tmp_path / f"model.{16 * 'a'}.tmp" / "weights").write_bytes(b"x")
    assert len(list(tmp_path.iterdir())) == 4
    assert len(files.remove_stale_temp_files(str(tmp_path))) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_last.pt", "thesis.tmp"]


@pytest.mark.parametrize("folder_too", [False, True])
def test_the_next_write_removes_what_a_killed_one_left_and_nothing_of_a_live_one(tmp_path, folder_too):
    path = tmp_path / "averaged.pt"
    for name in ("averaged.pt.tmp", f"other.pt.{16 * 'a'}.tmp", f"averaged.pt.{15 * 'a'}.tmp"):
        (tmp_path / name).write_bytes(b"x")
    kept = sorted(tmp_path.iterdir())
    pid = os.fork()
    if pid == 0:
        with atomic_write(str(path)):
            if folder_too:
                os.mkdir(f"{path}.{16 * 'b'}.tmp")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == len(kept) + 1 + folder_too
    with atomic_write(str(path)) as slow:
        with atomic_write(str(path)) as fast:
            fast.write(b"fast")
        slow.write(b"slow")
    assert path.read_bytes() == b"slow"
    assert sorted(tmp_path.iterdir()) == sorted([*kept, path])


def other_program(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_one_training_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_PATIENCE", 0.3)
    wait = "import filelock, sys\nwith filelock.FileLock(sys.argv[1]): print(flush=True); input()"
    with other_program(wait, tmp_path / ".lock") as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another training run is active in"):
            folder.lock(str(tmp_path))
        other.kill()
    folder.lock(str(tmp_path))  # released with the process that held it
    with other_program(wait, tmp_path / ".lock") as other:
        assert not select.select([other.stdout], [], [], 0.5)[0]
        folder.unlock()
        assert other.stdout.readline() == b"\n"
        other.kill()


# --- another number of processes -----------------------------------------------------------------------------------


def position_after_loading(kept, directory, changes):
    """The position that a training with changed settings resumes from."""
    before, now = forked.training_config(directory), forked.training_config(directory)
    for (section, key), value in changes.items():
        now[section][key] = value
    history = [{"num_updates": 30}]
    state = {"extra_state": {"train_iterator": {**kept}}, "cfg": before, "optimizer_history": history}
    position.adapt(state, now)
    return state["extra_state"]["train_iterator"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({("optimization", "update_freq"): [4], ("dataset", "num_workers"): 7}, True),
        ({("distributed_training", "distributed_world_size"): 2}, False),
        ({("dataset", "max_tokens"): 100}, False),
        ({("common", "seed"): 2}, False),
    ],
)
def test_a_position_holds_for_the_batches_that_it_was_counted_in(tmp_path, caplog, changes, same):
    kept = {"version": 2, "epoch": 3, "iterations_in_epoch": 5, "shuffle": True}
    with caplog.at_level(logging.WARNING):
        found = position_after_loading(kept, tmp_path, changes)
    assert found == (kept if same else {**kept, "epoch": 4, "iterations_in_epoch": 0})
    assert ("resuming at epoch 4 after update 30; the rest of epoch 3 is left out" in caplog.text) is not same
    start = {**kept, "iterations_in_epoch": 0}
    assert position_after_loading(start, tmp_path, changes) == start

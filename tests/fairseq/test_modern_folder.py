"""The checkpoint folder: atomic writes and copies, stale temporary files, the lock, and the position in an epoch."""

import logging
import multiprocessing
import os
import select
import signal
import stat
import subprocess
import sys

import pytest
from fairseq import checkpoint_utils, file_io

from fairseq_modern import files
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance import position, resuming
from fairseq_modern.files import atomic_write
from tests.fairseq import forked


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def check_killed(function):
    """Call a function, which must kill its process, in a child process."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_concurrent_writers_are_independent_and_follow_no_link(tmp_path):
    (victim := tmp_path / "victim").write_bytes(b"precious")
    (target := tmp_path / "checkpoint_last.pt").symlink_to(victim)
    (tmp_path / "checkpoint_last.pt.tmp").symlink_to(victim)
    umask = os.umask(0o027)
    try:
        with atomic_write(str(target)) as one:
            one.write(b"one, the ")
            with atomic_write(str(target)) as other:
                other.write(b"other")
            assert target.read_bytes() == b"other"
            one.write(b"slower")
    finally:
        os.umask(umask)
    assert (target.read_bytes(), victim.read_bytes()) == (b"one, the slower", b"precious")
    assert stat.filemode(target.lstat().st_mode) == "-rw-r-----"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint_last.pt", "checkpoint_last.pt.tmp", "victim"]


@pytest.mark.parametrize(
    ("manager", "killed_in", "expected"),
    [
        (checkpoint_utils.PathManager, ["os.fsync"], b"old"),
        (checkpoint_utils.PathManager, ["os.replace"], b"old"),
        # unpatched: the process is killed while the target is open, and the old file is lost
        (file_io.PathManager, ["shutil._fastcopy_sendfile", "shutil.copyfileobj"], b""),
    ],
)
def test_a_kill_while_copying_leaves_the_old_file(tmp_path, monkeypatch, manager, killed_in, expected):
    source, target = tmp_path / "new.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new" * 1000)
    target.write_bytes(b"old")

    def copy():
        for function in killed_in:
            monkeypatch.setattr(function, kill)
        manager.copy(str(source), str(target), overwrite=True)

    check_killed(copy)
    assert target.read_bytes() == expected


def test_removes_temp_files_of_killed_writes_and_nothing_else(tmp_path):
    path, other = tmp_path / "averaged.pt", tmp_path / f"other.pt.{16 * 'a'}.tmp"
    for name in ("thesis.tmp", "averaged.pt.tmp", f"averaged.pt.{15 * 'a'}.tmp"):
        (tmp_path / name).write_bytes(b"x")
    kept = sorted(tmp_path.iterdir())
    other.mkdir()  # left by an export
    (other / "weights").write_bytes(b"x")

    def write():
        with atomic_write(str(path)):
            kill()

    check_killed(write)
    assert len(list(tmp_path.iterdir())) == len(kept) + 2
    with atomic_write(str(path)) as new:
        new.write(b"new")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, path, other])
    assert files.remove_stale_temp_files(str(tmp_path)) == [other.name]
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


@pytest.mark.parametrize("batches", [0, 5])
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
def test_other_batches_resume_at_the_next_epoch(tmp_path, caplog, changes, is_same, batches):
    before, now = forked.training_config(tmp_path), forked.training_config(tmp_path)
    for (section, key), value in changes.items():
        now[section][key] = value
    saved = {"version": 2, "epoch": 3, "iterations_in_epoch": batches, "shuffle": True}
    state = {"extra_state": {"train_iterator": {**saved}}, "cfg": before, "optimizer_history": [{"num_updates": 30}]}
    with caplog.at_level(logging.WARNING):
        position.adapt(state, now)
    stays = is_same or batches == 0  # at the start of an epoch
    expected = saved if stays else {**saved, "epoch": 4, "iterations_in_epoch": 0}
    assert state["extra_state"]["train_iterator"] == expected
    assert ("resuming at epoch 4 after update 30" in caplog.text) is not stays

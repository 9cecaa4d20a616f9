"""What a training goes on from: the newest whole checkpoint, in a folder with room, at a position that still holds."""

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fairseq_modern import resuming
from fairseq_modern.errors import UserError
from tests.common import run
from tests.fairseq import forked

# --- which checkpoint training goes on from ------------------------------------------------------------------------


def checkpoint(folder, name, updates, score=None, best=None, weights=7.0, age=0):
    """A file such as fairseq leaves, `age` seconds old."""
    state = {
        "model": OrderedDict(weight=torch.full((1000,), weights)),
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"state": {}},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": updates}, "val_loss": score, "best": best,
        },
    }  # fmt: skip
    path = folder / name
    torch.save(state, path)
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((10,), 7.0).numpy().tobytes())] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one bit": flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_whole_checkpoint_is_found(tmp_path, damage):
    older = checkpoint(tmp_path, "checkpoint_1_10.pt", 10, age=20)
    newer = checkpoint(tmp_path, "checkpoint_1_20.pt", 20, age=10)
    last = checkpoint(tmp_path, "checkpoint_last.pt", 20, age=10)
    assert resuming.newest_whole(str(tmp_path)).path == str(last)
    DAMAGE[damage](last)
    assert resuming.newest_whole(str(tmp_path)).path == str(newer)
    DAMAGE[damage](newer)
    assert resuming.newest_whole(str(tmp_path)) == resuming.Checkpoint(str(older), 10, False)
    DAMAGE[damage](older)
    assert resuming.newest_whole(str(tmp_path)) is None


def test_torch_alone_does_not_notice_a_flipped_bit(tmp_path):
    path = checkpoint(tmp_path, "checkpoint_last.pt", 20)
    assert resuming.is_whole(str(path))
    flip_a_bit(path)
    weight = torch.load(path, weights_only=True)["model"]["weight"]
    assert weight[0] != 7
    assert not resuming.is_whole(str(path))


def test_what_counts_as_a_checkpoint_to_go_on_from(tmp_path):
    last = checkpoint(tmp_path, "checkpoint_last.pt", 10)
    checkpoint(tmp_path, "averaged.pt", 90)
    checkpoint(tmp_path, "checkpoint_1_80.pt.tmp", 80)
    average = torch.load(checkpoint(tmp_path, "checkpoint_best.pt", 70), weights_only=True)
    torch.save({**average, "last_optimizer_state": None}, tmp_path / "checkpoint_best.pt")
    torch.save({**average, "extra_state": {}}, tmp_path / "checkpoint6.pt")  # such as crash.pt
    torch.save({**average, "plugin": Path("x")}, tmp_path / "checkpoint5.pt")  # a class that loading refuses
    assert resuming.newest_whole(str(tmp_path)).path == str(last)

    # of an older torch: no archive
    torch.save(average, tmp_path / "checkpoint_1_75.pt", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(tmp_path / "checkpoint_1_75.pt")
    assert resuming.newest_whole(str(tmp_path)).updates == 70


def test_a_checkpoint_put_in_the_place_of_the_last_one_counts(tmp_path):
    checkpoint(tmp_path, "checkpoint_1_20.pt", 20, age=10)
    put_there = checkpoint(tmp_path, "checkpoint_last.pt", 10, age=5)
    assert resuming.newest_whole(str(tmp_path)).path == str(put_there)
    os.utime(put_there, (0, 0))
    assert resuming.newest_whole(str(tmp_path)).updates == 20


def copy(source, target, overwrite):
    assert overwrite
    shutil.copyfile(source, target)


def updates(path):
    return torch.load(path, weights_only=True)["optimizer_history"][-1]["num_updates"]


@pytest.mark.parametrize(("score", "best_updates"), [(2.5, 20), (3.5, 10)])
def test_an_interrupted_save_is_completed(tmp_path, score, best_updates):
    """Killed after checkpoint_1_20.pt was written and before the copies: the best one is made if it is the best."""
    checkpoint(tmp_path, "checkpoint_last.pt", 10, 3.0, 3.0, age=10)
    checkpoint(tmp_path, "checkpoint_best.pt", 10, 3.0, 3.0, age=10)
    checkpoint(tmp_path, "checkpoint_1_20.pt", 20, score, min(score, 3.0))
    resuming.complete(str(tmp_path), copy)
    assert updates(tmp_path / "checkpoint_last.pt") == 20
    assert updates(tmp_path / "checkpoint_best.pt") == best_updates
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    resuming.complete(str(tmp_path), copy)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_damaged_last_checkpoint_is_kept_aside(tmp_path, caplog):
    checkpoint(tmp_path, "checkpoint_1_10.pt", 10)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"torn")
    with caplog.at_level(logging.WARNING):
        resuming.complete(str(tmp_path), copy)
    assert updates(tmp_path / "checkpoint_last.pt") == 10
    assert (tmp_path / "checkpoint_last.pt.damaged").read_bytes() == b"torn"
    assert "checkpoint_last.pt is damaged" in caplog.text
    assert "going on from" in caplog.text


def test_nothing_is_touched_where_no_checkpoint_is_whole(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"torn")
    resuming.complete(str(tmp_path), copy)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_last.pt"]


def test_left_overs_are_removed_and_nothing_else(tmp_path):
    left_over = ["checkpoint_1_10.pt.tmp", "checkpoint_last.pt.tmp", "crash.pt.tmp"]
    for name in [*left_over, "thesis.tmp", "checkpoint_last.pt"]:
        (tmp_path / name).write_bytes(b"x")
    resuming.remove_left_overs(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_last.pt", "thesis.tmp"]


def test_the_newest_checkpoint_is_printed_for_scripts(tmp_path):
    def printed(*folder):
        done = run("python", "-m", "fairseq_modern.resuming", *folder, check=False)
        return done.returncode, done.stdout + done.stderr[-80:]

    assert printed(tmp_path) == (0, "")
    path = checkpoint(tmp_path, "checkpoint_1_10.pt", 10)
    assert printed(tmp_path) == (0, f"{path}\n")
    assert "nowhere is not a directory" in printed(tmp_path / "nowhere")[1]


# --- the folder ----------------------------------------------------------------------------------------------------


def test_one_training_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "PATIENCE", 0.3)
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another training is at work in"):
            resuming.lock(str(tmp_path))
        other.kill()
    resuming.lock(str(tmp_path))  # gone with the process that held it
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    resuming.unlock()
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4),  # of the epoch, best, last, and the one being written
        ({"no_epoch_checkpoints": True}, 3),
        ({"no_epoch_checkpoints": True, "no_last_checkpoints": True}, 2),
        ({"no_epoch_checkpoints": True, "save_interval_updates": 100}, 4),
        ({"keep_last_epochs": 10, "save_interval_updates": 100, "keep_interval_updates": 5}, 18),
        ({"keep_best_checkpoints": 2}, 6),
    ],
)
def test_space_is_needed_for_as_many_files_as_are_kept(tmp_path, options, expected):
    assert resuming.number_of_files(forked.training_config(tmp_path, **options)) == expected


def test_too_little_space_is_refused_before_training(tmp_path, monkeypatch):
    model = torch.nn.Linear(999, 1000)  # a million parameters: 12 MB with Adam
    free = SimpleNamespace(f_bavail=47_999, f_frsize=1000)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    with pytest.raises(UserError, match=r"has 48\.0 MB free, .* 4 more checkpoints of 12\.0 MB"):
        resuming.check_space(forked.training_config(tmp_path), model)
    free.f_bavail = 48_000
    resuming.check_space(forked.training_config(tmp_path), model)
    free.f_bavail = 47_999
    resuming.check_space(forked.training_config(tmp_path), model.half())  # 10 bytes for each
    # three files of 2 kB are there: room is needed for the one that is being written
    for name in ("checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        (tmp_path / name).write_bytes(bytes(2000))
    free.f_bavail = 2
    resuming.check_space(forked.training_config(tmp_path), model)
    free.f_bavail = 1
    with pytest.raises(UserError, match="1 more checkpoint of 0"):
        resuming.check_space(forked.training_config(tmp_path), model)


# --- another number of processes -----------------------------------------------------------------------------------


def position_after_loading(position, folder, changes):
    """The position that a trainer with changed settings goes on from."""
    before, now = forked.training_config(folder), forked.training_config(folder)
    for (section, key), value in changes.items():
        now[section][key] = value
    state = {"train_iterator": {**position, resuming.MADE_FOR: resuming.batch_settings(before)}}
    module = SimpleNamespace(Trainer=type("Trainer", (), {"load_checkpoint": lambda self, filename: state}))
    resuming.mend_trainer(module)
    trainer = module.Trainer()
    trainer.cfg, trainer.is_data_parallel_master, trainer.get_num_updates = now, True, lambda: 30
    return trainer.load_checkpoint("checkpoint_last.pt")["train_iterator"]


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
    position = {"version": 2, "epoch": 3, "iterations_in_epoch": 5, "shuffle": True}
    with caplog.at_level(logging.WARNING):
        found = position_after_loading(position, tmp_path, changes)
    assert found == (position if same else {**position, "epoch": 4, "iterations_in_epoch": 0})
    assert ("going on at epoch 4 after update 30; the rest of epoch 3 is left out" in caplog.text) is not same
    start = {**position, "iterations_in_epoch": 0}
    assert position_after_loading(start, tmp_path, changes) == start

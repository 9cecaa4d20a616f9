"""Where training goes on: in a folder that is its own and has room, at a position that still holds."""

import logging
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fairseq.trainer import Trainer

from fairseq_modern.errors import UserError
from fairseq_modern.files import whole_or_not_at_all
from fairseq_modern.survival import folder, position
from tests.fairseq import forked, models

# --- the folder ----------------------------------------------------------------------------------------------------


def test_left_overs_are_removed_and_nothing_else(tmp_path):
    left_over = ["checkpoint_1_10.pt.tmp", "checkpoint_last.pt.tmp", "crash.pt.tmp"]
    for name in [*left_over, "thesis.tmp", "checkpoint_last.pt"]:
        (tmp_path / name).write_bytes(b"x")
    pid = os.fork()
    if pid == 0:  # a training that is killed while it writes
        with whole_or_not_at_all(str(tmp_path / "checkpoint_1_20.pt")):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 6
    folder.remove_left_overs(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_last.pt", "thesis.tmp"]


def other_program(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_one_training_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "PATIENCE", 0.3)
    (tmp_path / ".lock").touch()
    # what NFS keeps: a lock of fcntl on a file open for writing
    wait = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with other_program(wait, tmp_path / ".lock") as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another training is at work in"):
            folder.lock(str(tmp_path))
        other.kill()
    folder.lock(str(tmp_path))  # gone with the process that held it
    with other_program(wait, tmp_path / ".lock") as other:
        assert not select.select([other.stdout], [], [], 0.5)[0]
        folder.unlock()
        assert other.stdout.readline() == b"\n"
        other.kill()


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
    assert folder.number_of_files(forked.training_config(tmp_path, **options)) == expected


def test_too_little_space_is_refused_before_training(tmp_path, monkeypatch):
    model = torch.nn.Linear(999, 1000)  # a million parameters: 12 MB with Adam
    free = SimpleNamespace(f_bavail=47_999, f_frsize=1000)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    with pytest.raises(UserError, match=r"has 48\.0 MB free, .* 4 more checkpoints of 12\.0 MB"):
        folder.check_space(forked.training_config(tmp_path), model)
    free.f_bavail = 48_000
    folder.check_space(forked.training_config(tmp_path), model)
    # three files of 2 kB are there: room is needed for the one that is being written
    for name in ("checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        (tmp_path / name).write_bytes(bytes(2000))
    free.f_bavail = 2
    folder.check_space(forked.training_config(tmp_path), model)
    free.f_bavail = 1
    with pytest.raises(UserError, match="1 more checkpoint of 0"):
        folder.check_space(forked.training_config(tmp_path), model)


@pytest.mark.parametrize(
    ("common", "bytes_each"),  # of a shared embedding, which nearly all parameters are
    [({}, 12), ({"bf16": True}, 24), ({"bf16": True, "memory_efficient_bf16": True}, 20)],
    ids=["fp32", "bf16", "memory-efficient"],
)
def test_a_checkpoint_is_as_large_as_expected(common, bytes_each, tmp_path):
    cfg, model = forked.training_config(tmp_path), models.build(vocabulary=9000, **models.SMALL)
    cfg.common.update(cpu=True, **common)
    cfg.optimizer = {"_name": "adam", "lr": [0.1], "adam_betas": "(0.9, 0.98)", "weight_decay": 0.0}
    cfg.model, cfg.task, cfg.criterion = {}, {}, {}
    cfg.lr_scheduler, cfg.distributed_training.distributed_world_size = {"_name": "fixed"}, 1
    trainer = Trainer(cfg, SimpleNamespace(state_dict=dict), model, torch.nn.Module())
    trainer.optimizer.backward(sum(parameter.sum() for parameter in model.parameters()))
    trainer.optimizer.step()
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "checkpoint1.pt"), {"train_iterator": {"epoch": 1}})
    expected, written = folder.checkpoint_size(cfg, model), (tmp_path / "checkpoint1.pt").stat().st_size
    assert 0 < written - expected < 130_000 < expected / 10  # settings, names, the heads of files
    assert expected / sum(p.numel() for p in model.parameters()) == pytest.approx(bytes_each, rel=0.05)


# --- another number of processes -----------------------------------------------------------------------------------


def position_after_loading(kept, directory, changes):
    """The position that a trainer with changed settings goes on from."""
    before, now = forked.training_config(directory), forked.training_config(directory)
    for (section, key), value in changes.items():
        now[section][key] = value
    state = {"train_iterator": {**kept, position.MADE_FOR: position.batch_settings(before)}}
    module = SimpleNamespace(Trainer=type("Trainer", (), {"load_checkpoint": lambda self, filename: state}))
    position.patch_trainer(module)
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
    kept = {"version": 2, "epoch": 3, "iterations_in_epoch": 5, "shuffle": True}
    with caplog.at_level(logging.WARNING):
        found = position_after_loading(kept, tmp_path, changes)
    assert found == (kept if same else {**kept, "epoch": 4, "iterations_in_epoch": 0})
    assert ("going on at epoch 4 after update 30; the rest of epoch 3 is left out" in caplog.text) is not same
    start = {**kept, "iterations_in_epoch": 0}
    assert position_after_loading(start, tmp_path, changes) == start

"""Resuming: from which checkpoint, at which position in an epoch, and by one training run at a time."""

import errno
import fcntl
import logging
import os
import select
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import FairseqDataset, iterators
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig
from fairseq.trainer import Trainer

from fairseq_modern import fault_tolerance
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance import position, resuming
from fairseq_modern.fault_tolerance.checkpoints import latest_valid_checkpoint
from fairseq_modern.fault_tolerance.interrupted_save import restore_last
from fairseq_modern.files import atomic_write, remove_stale_temp_files
from tests import forked
from tests.forked import write_checkpoint

DAMAGE = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one bit": forked.flip_a_bit,
}


def restore(folder):
    restore_last(checkpoint_utils, forked.training_config(folder).checkpoint, latest_valid_checkpoint(str(folder)))


@pytest.mark.parametrize("damage", DAMAGE)
def test_finds_the_latest_valid_checkpoint(tmp_path, damage):
    older = write_checkpoint(tmp_path / "checkpoint_1_10.pt", 10)
    newer = write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20)
    last = write_checkpoint(tmp_path / "checkpoint_last.pt", 20)
    assert latest_valid_checkpoint(str(tmp_path)).path == str(last)
    DAMAGE[damage](last)
    assert latest_valid_checkpoint(str(tmp_path)).path == str(newer)
    DAMAGE[damage](newer)
    assert latest_valid_checkpoint(str(tmp_path)).path == str(older)
    DAMAGE[damage](older)
    assert latest_valid_checkpoint(str(tmp_path)) is None
    restore(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([older, newer, last])


def test_ignores_checkpoints_from_which_training_cannot_resume(tmp_path):
    last = write_checkpoint(tmp_path / "checkpoint_last.pt", 10)
    write_checkpoint(tmp_path / "averaged.pt", 90)
    write_checkpoint(tmp_path / "checkpoint_1_80.pt.tmp", 80)
    average = torch.load(write_checkpoint(tmp_path / "checkpoint_best.pt", 70), weights_only=True)
    torch.save({**average, "last_optimizer_state": None}, tmp_path / "checkpoint_best.pt")
    torch.save({**average, "extra_state": {}}, tmp_path / "checkpoint6.pt")  # such as crash.pt
    torch.save({**average, "plugin": Path("x")}, tmp_path / "checkpoint5.pt")  # a class that loading rejects
    assert latest_valid_checkpoint(str(tmp_path)).path == str(last)
    last.unlink()
    assert latest_valid_checkpoint(str(tmp_path)) is None

    old = tmp_path / "checkpoint_1_75.pt"  # in the format of torch < 1.6
    torch.save(average, old, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(old)
    assert latest_valid_checkpoint(str(tmp_path)).path == str(old)

    # any valid checkpoint_last.pt wins, here an average
    shutil.copy(tmp_path / "checkpoint_best.pt", last)
    assert latest_valid_checkpoint(str(tmp_path)).path == str(last)


def updates(path):
    return torch.load(path, weights_only=True)["optimizer_history"][-1]["num_updates"]


def files(folder):
    return {path.name: (path.read_bytes(), path.lstat().st_mtime_ns) for path in folder.iterdir()}


ROLL_BACK = {
    "mv": lambda chosen, last: os.replace(chosen, last),
    "cp -p": lambda chosen, last: shutil.copy2(chosen, last),
    "ln -s": lambda chosen, last: (last.unlink(), last.symlink_to(chosen.name)),
    "restored with an old time": lambda chosen, last: (shutil.copy(chosen, last), os.utime(last, (0, 0))),
}


@pytest.mark.parametrize("way", ROLL_BACK)
def test_resumes_from_the_checkpoint_that_the_user_has_chosen(tmp_path, way):
    """Whatever its age, and without changing any other checkpoint."""
    for name, number in (("checkpoint_1_40.pt", 40), ("checkpoint_best.pt", 70), ("checkpoint_last.pt", 70)):
        write_checkpoint(tmp_path / name, number, score=2.0, best=2.0)
    last = tmp_path / "checkpoint_last.pt"
    ROLL_BACK[way](tmp_path / "checkpoint_1_40.pt", last)
    before = files(tmp_path)
    restore(tmp_path)
    assert updates(last) == 40
    assert files(tmp_path) == before


@pytest.mark.parametrize("last", ["missing", "damaged", "a link to nothing"])
@pytest.mark.parametrize(("score", "best_updates"), [(2.5, 20), (3.5, 10)])
def test_restores_the_last_and_the_best_checkpoint(tmp_path, caplog, score, best_updates, last):
    write_checkpoint(tmp_path / "checkpoint_best.pt", 10, score=3.0, best=3.0)
    write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20, score=score, best=min(score, 3.0))
    if last == "damaged":
        forked.flip_a_bit(write_checkpoint(tmp_path / "checkpoint_last.pt", 30))
    elif last == "a link to nothing":
        (tmp_path / "checkpoint_last.pt").symlink_to("checkpoint_1_30.pt")
    with caplog.at_level(logging.WARNING):
        restore(tmp_path)
    assert updates(tmp_path / "checkpoint_last.pt") == 20
    assert updates(tmp_path / "checkpoint_best.pt") == best_updates
    assert "resuming from" in caplog.text
    assert ("checkpoint_last.pt is damaged" in caplog.text) is (last == "damaged")
    assert (last != "damaged") or updates(tmp_path / "checkpoint_last.pt.damaged") == 30  # kept aside
    before = files(tmp_path)
    restore(tmp_path)
    assert files(tmp_path) == before


def test_rejects_a_missing_restore_file_if_fault_tolerance_is_on(tmp_path, monkeypatch):
    trainer = SimpleNamespace(cfg=forked.training_config(tmp_path), checkpoint_suffix="")
    typo, default = str(tmp_path / "typo.pt"), str(tmp_path / "checkpoint_last.pt")
    there = str(write_checkpoint(tmp_path / "checkpoint1.pt", 10))
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: True)
    for missing in (typo, str(tmp_path / "elsewhere" / "checkpoint_last.pt")):
        with pytest.raises(UserError, match=f"there is no checkpoint {missing}"):
            resuming.check_exists(trainer, missing)
    resuming.check_exists(trainer, there)
    resuming.check_exists(trainer, default)  # a new run
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: False)
    resuming.check_exists(trainer, typo)  # unpatched: from scratch


def test_one_run_at_a_time_uses_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_modern.files.LOCK_TIMEOUT", 0.3)
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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_excludes_nobody(number, tmp_path, monkeypatch):
    stale = tmp_path / f"averaged.pt.{16 * 'a'}.tmp"
    stale.touch()

    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            resuming.lock(str(tmp_path))
        return
    for _ in range(2):
        resuming.lock(str(tmp_path))
    assert remove_stale_temp_files(str(tmp_path)) == [stale.name]


def test_locks_of_temporary_files_work_on_nfs(tmp_path, monkeypatch):
    """NFS needs a readable descriptor for a shared lock, and a writable one for an exclusive lock."""
    flock = fcntl.flock

    def of_nfs(descriptor, operation):
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if access == (os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY):
            raise OSError(errno.EBADF, "access")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    path, stale = tmp_path / "averaged.pt", tmp_path / f"averaged.pt.{16 * 'a'}.tmp"
    with atomic_write(str(path)) as new:
        stale.touch()
        new.write(b"new")
        for target in ("averaged.pt", None):
            assert remove_stale_temp_files(str(tmp_path), target) == [stale.name] * (target is not None)
    assert path.read_bytes() == b"new"


def test_a_file_that_another_user_writes_stays(tmp_path, monkeypatch):
    opened = os.open

    def open_of_others(path, flags, *mode):
        if flags & os.O_RDWR and not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "denied")
        return opened(path, flags, *mode)

    with atomic_write(str(tmp_path / "averaged.pt")) as new:
        new.write(b"new")
        monkeypatch.setattr(os, "open", open_of_others)
        assert remove_stale_temp_files(str(tmp_path)) == []
        monkeypatch.undo()
    assert (tmp_path / "averaged.pt").read_bytes() == b"new"


@pytest.mark.parametrize("batches", [0, 5])
@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({("optimization", "update_freq"): [5], ("dataset", "num_workers"): 7}, True),
        ({("optimization", "update_freq"): [4]}, False),
        ({("optimization", "update_freq"): [4, 4, 5, 4]}, True),  # one value per epoch
        ({("optimization", "update_freq"): [5, 4]}, False),
        ({("distributed_training", "distributed_world_size"): 2}, False),
        ({("dataset", "max_tokens"): 100}, False),
        ({("dataset", "grouped_shuffling"): True}, False),
        ({("dataset", "update_ordered_indices_seed"): True}, False),
        ({("optimization", "skip_remainder_batch"): True}, False),
        ({("common", "seed"): 2}, False),
        ({("task", "data"): "moved"}, True),
        ({("task", "max_source_positions"): 512}, False),
        ({("task", "max_target_positions"): 512}, False),
        ({("task", "truncate_source"): True}, False),
        ({("task", "num_batch_buckets"): 3}, False),
        ({("task", "upsample_primary"): 2}, False),
    ],
)
def test_other_batches_resume_at_the_next_epoch(tmp_path, caplog, changes, is_same, batches):
    before, now = forked.training_config(tmp_path), forked.training_config(tmp_path)
    for cfg in (before, now):
        cfg.task = TranslationConfig(data="data")
    for (section, key), value in changes.items():
        now[section][key] = value
    saved = {"version": 2, "epoch": 3, "iterations_in_epoch": batches, "shuffle": True}
    state = {"extra_state": {"train_iterator": {**saved}}, "cfg": before}
    state["optimizer_history"] = [{"num_updates": 30}]
    with caplog.at_level(logging.WARNING):
        position.adapt(state, now)
    stays = is_same or batches == 0  # at the start of an epoch
    expected = saved if stays else {**saved, "epoch": 4, "iterations_in_epoch": 0}
    assert state["extra_state"]["train_iterator"] == expected
    assert ("resuming at epoch 4 after update 30" in caplog.text) is not stays


def test_tasks_without_a_dataclass_have_batch_settings():
    cfg = {"task": Namespace(max_source_positions=9), "common": {"seed": 1}}
    assert position.batch_settings(cfg) == {"--max-source-positions": 9, "--seed": 1}
    cfg = {"task": Namespace(tokens_per_sample=512, sample_break_mode="eos")}  # of language models
    assert position.batch_settings(cfg) == {"--tokens-per-sample": 512, "--sample-break-mode": "eos"}


def iterator(**options):
    data, batches = torch.utils.data.TensorDataset(torch.arange(100)), [[number] for number in range(100)]
    return iterators.EpochBatchIterator(data, list, batches, **options)


def numbers(batches):
    return [int(number) for ((number,),) in batches]


@pytest.mark.parametrize("offset", [0, 30, 98])
def test_the_last_batch_of_an_epoch_is_left_out_after_resuming_too(offset, monkeypatch):
    """Unpatched, 39 of 69 batches would follow batch 30, and none batch 60."""
    monkeypatch.setenv("FAIRSEQ_MODERN_FAULT_TOLERANCE", "1")
    batches = iterator(skip_remainder_batch=True)
    batches.load_state_dict({"epoch": 1, "iterations_in_epoch": offset, "shuffle": False})
    assert numbers(batches.next_epoch_itr(shuffle=False)) == list(range(offset, 99))


def test_batches_are_shuffled_after_a_curriculum_and_resume_where_they_were():
    """The references make a data loader for each epoch, as fairseq does without `reuse_dataloader`."""
    kept, fresh, epochs = iterator(reuse_dataloader=True), iterator(), []
    for epoch in (1, 2, 3):
        epochs.append(numbers(kept.next_epoch_itr(shuffle=epoch > 1)))
        assert epochs[-1] == numbers(fresh.next_epoch_itr(shuffle=epoch > 1))
    assert epochs[0] == sorted(epochs[1]) == sorted(epochs[2]) == list(range(100))
    assert epochs[0] != epochs[1] != epochs[2]
    resumed = iterator(reuse_dataloader=True)
    resumed.load_state_dict({"epoch": 2, "iterations_in_epoch": 20, "shuffle": True})
    assert numbers(resumed.next_epoch_itr(shuffle=True)) == epochs[1][20:]


class Sentences(FairseqDataset):
    """Sentences of one token, in random order."""

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 40

    def num_tokens_vec(self, indices):
        return numpy.ones(len(indices), dtype=numpy.int64)

    def ordered_indices(self):
        return numpy.random.permutation(len(self))

    def collater(self, samples):
        return samples


@pytest.mark.parametrize("seed_changes", [True, False])
def test_a_run_whose_order_changes_with_the_epoch_resumes_where_it_was(tmp_path, seed_changes):
    cfg = forked.training_config(tmp_path)
    cfg.dataset.update({"batch_size": 4, "num_workers": 0, "update_ordered_indices_seed": seed_changes})

    def trainer():
        task = FairseqTask(TranslationConfig(data="data"))
        task.datasets["train"] = Sentences()
        model = SimpleNamespace(max_positions=lambda: None)
        ranks = {"data_parallel_world_size": 1, "data_parallel_rank": 0, "tpu": False}
        return SimpleNamespace(cfg=cfg, task=task, model=model, reset_dummy_batch=lambda batch: None, **ranks)

    once, epochs = trainer(), []
    for epoch in (1, 2):
        batches = Trainer.get_train_iterator(once, epoch, load_dataset=False)
        epochs.append(list(batches.next_epoch_itr()))
    resumed = Trainer.get_train_iterator(trainer(), 2, load_dataset=False)
    resumed.load_state_dict({"epoch": 2, "iterations_in_epoch": 3, "shuffle": True})
    assert list(resumed.next_epoch_itr()) == epochs[1][3:]
    sets = [{frozenset(batch) for batch in batches} for batches in epochs]
    assert (sets[0] == sets[1]) is not seed_changes

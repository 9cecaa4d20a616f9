"""Repeated commands with flags that apply when a run starts: --restore-file, --reset-..., --finetune-from-model."""

import logging
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import resuming, stopping
from tests.fairseq import forked

RESET = {"reset_optimizer": True, "reset_dataloader": True}
PRETRAINED = "pretrained.pt"


@pytest.fixture(autouse=True)
def fault_tolerant(monkeypatch):
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: True)
    yield
    resuming.unlock()


def configuration(folder, learning_rate=0.1, data="DATA", **checkpoint):
    """The configuration of a run; names of files get the folder."""
    cfg = forked.training_config(folder)
    cfg.task = {"_name": "translation", "data": data}
    cfg.optimization.lr = [learning_rate]
    for name, value in checkpoint.items():
        cfg.checkpoint[name] = str(folder / value) if str(value).endswith(".pt") else value
    return cfg


class Trainer:
    """Records what fairseq loads."""

    is_data_parallel_master = True
    data_parallel_world_size = 1
    checkpoint_suffix = ""
    tpu = False

    def __init__(self, cfg):
        self.cfg = cfg

    def load_checkpoint(self, path, reset_optimizer, *_, **__):
        updates = torch.load(path, weights_only=True)["optimizer_history"][-1]["num_updates"]
        self.loaded = updates, reset_optimizer, self.cfg.checkpoint.reset_dataloader

    def get_train_iterator(self, **_):
        return SimpleNamespace(epoch=1)

    def lr_step(self, epoch):
        pass


def loaded(cfg):
    """The number of updates of the checkpoint that fairseq loads, and whether it resets the optimizer and the data."""
    trainer = Trainer(cfg)
    before = OmegaConf.to_container(cfg)
    checkpoint_utils.load_checkpoint(cfg.checkpoint, trainer)
    resuming.unlock()
    assert OmegaConf.to_container(cfg) == before, "checkpoints store the flags of the command"
    return trainer.loaded


@pytest.mark.parametrize("flags", [{"restore_file": PRETRAINED, **RESET}, {"restore_file": PRETRAINED}, RESET])
def test_the_same_command_resumes_its_run(tmp_path, caplog, flags):
    first = (7 if "restore_file" in flags else 5000, "reset_optimizer" in flags, "reset_dataloader" in flags)
    last = tmp_path / "checkpoint_last.pt"
    forked.write_checkpoint(tmp_path / PRETRAINED, 7, configuration(tmp_path))
    forked.write_checkpoint(last, 5000, configuration(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert loaded(configuration(tmp_path, **flags)) == first
    assert caplog.text == ""

    forked.write_checkpoint(last, 30, configuration(tmp_path, **flags))
    with caplog.at_level(logging.WARNING):
        assert loaded(configuration(tmp_path, **flags)) == (30, False, False)
    assert "resuming this run from checkpoint_last.pt (30 updates), without --re" in caplog.text
    assert "to start it again, give an empty --save-dir" in caplog.text
    first = (7 if "restore_file" in flags else 30, *first[1:])
    for others in ({"learning_rate": 0.2}, {"data": "OTHER"}, {"reset_meters": True}):
        assert loaded(configuration(tmp_path, **{**flags, **others})) == first, "another command"

    with last.open("r+b") as file:
        file.truncate(100)
    forked.write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20, configuration(tmp_path, **flags))
    assert loaded(configuration(tmp_path, **flags)) == (20, False, False)


def test_a_damaged_checkpoint_of_another_run_stays(tmp_path):
    flags = {"restore_file": PRETRAINED, **RESET}
    forked.write_checkpoint(tmp_path / PRETRAINED, 7, configuration(tmp_path))
    forked.write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20, configuration(tmp_path))
    (tmp_path / "checkpoint_last.pt").write_bytes(b"damaged")
    assert loaded(configuration(tmp_path, **flags)) == (7, True, True)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"damaged"


@pytest.mark.parametrize("flags", [{"no_last_checkpoints": True}, {"checkpoint_suffix": "-part"}])
def test_the_message_says_if_the_same_command_does_not_resume(tmp_path, caplog, flags):
    """Checkpoints in parts have other names; the control has one part."""
    messages = []
    for more in ({}, flags):
        cfg = configuration(tmp_path, restore_file=PRETRAINED, **more, **RESET)
        forked.write_checkpoint(tmp_path / PRETRAINED, 7, cfg)
        trainer = Trainer(cfg)
        trainer.get_num_updates = lambda: 30
        trainer.checkpoint_suffix = cfg.checkpoint.checkpoint_suffix
        module = SimpleNamespace(save_checkpoint=lambda *_: None)
        caplog.clear()
        with pytest.raises(stopping.Stopped), caplog.at_level(logging.WARNING):
            stopping.stop(module, cfg, trainer, None)
        messages.append(caplog.messages[-1])
    assert messages[0] == "stopped after update 30, saved; the same command resumes from there"
    if "checkpoint_suffix" in flags:
        leave_out = f"leave out --restore-file {tmp_path / PRETRAINED} --reset-optimizer --reset-dataloader"
        assert messages[1] == f"stopped after update 30, saved; to resume from there, {leave_out}"
    else:
        assert messages[1] == "stopped after update 30, without a checkpoint, as configured"


@pytest.mark.parametrize("source", ["finetune_from_model", "continue_once"])
def test_a_run_from_another_checkpoint_of_its_folder_starts_there(tmp_path, source, monkeypatch):
    """And an interrupted one resumes, also if `checkpoint_last.pt` is damaged."""
    flags = {source: "checkpoint_best.pt"}
    resets = source == "finetune_from_model"
    for name in ("checkpoint_best.pt", "checkpoint_1_9000.pt"):
        forked.write_checkpoint(tmp_path / name, 7000 if "best" in name else 9000, configuration(tmp_path))
    assert loaded(configuration(tmp_path, **flags)) == (7000, resets, False)
    assert not (tmp_path / "checkpoint_last.pt").exists()
    with monkeypatch.context() as unpatched:
        unpatched.setattr(fault_tolerance, "is_on", lambda: False)
        with pytest.raises(FileNotFoundError):
            loaded(configuration(tmp_path))
    assert loaded(configuration(tmp_path)) == (9000, False, False)  # the control

    (tmp_path / "checkpoint_last.pt").write_bytes(b"damaged")
    forked.write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20, configuration(tmp_path, learning_rate=0.2, **flags))
    assert loaded(configuration(tmp_path, **flags)) == (20, False, False)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_checkpoint_with_the_most_updates_wins_if_checkpoint_last_is_not_updated(tmp_path, asynchronous):
    """fairseq does not update it with --write-checkpoints-asynchronously."""
    cfg = configuration(tmp_path, write_checkpoints_asynchronously=asynchronous)
    last = tmp_path / "checkpoint_last.pt"
    forked.write_checkpoint(last, 20, cfg)
    forked.write_checkpoint(tmp_path / "checkpoint_1_10.pt", 10, cfg)
    assert loaded(cfg)[0] == 20
    forked.write_checkpoint(tmp_path / "checkpoint_1_30.pt", 30, cfg)
    assert loaded(cfg)[0] == (30 if asynchronous else 20)
    assert not list(tmp_path.glob("*.damaged"))

    average = torch.load(last, weights_only=True)
    average["last_optimizer_state"] = None
    torch.save(average, tmp_path / "average.pt")
    shutil.copy(tmp_path / "average.pt", last)
    loaded(cfg)
    assert last.read_bytes() == (tmp_path / "average.pt").read_bytes(), "the user has chosen it"

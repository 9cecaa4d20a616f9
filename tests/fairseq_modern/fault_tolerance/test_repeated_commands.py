"""Repeated commands with flags that apply when a run starts: --restore-file, --reset-..., --finetune-from-model."""

import logging
import pickle
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import resuming, stopping
from tests import forked
from tests.commands import hydra_command
from tests.common import TINY_MODEL, TINY_TRAINING, run
from tests.models.cases import same_training

RESET = {"reset_optimizer": True, "reset_dataloader": True}
PRETRAINED = "pretrained.pt"


@pytest.fixture(autouse=True)
def fault_tolerant(monkeypatch):
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: True)
    yield
    resuming.unlock()


def configuration(folder, learning_rate=0.1, data="DATA", seed=1, **checkpoint):
    """The configuration of a run; names of files get the folder."""
    cfg = forked.training_config(folder)
    cfg.task = {"_name": "translation", "data": data}
    cfg.optimization.lr, cfg.common.seed = [learning_rate], seed
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
    try:
        checkpoint_utils.load_checkpoint(cfg.checkpoint, trainer)
    finally:
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
    for others in ({"learning_rate": 0.2}, {"data": "OTHER"}, {"reset_meters": True}, {"seed": 2}):
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


@pytest.mark.parametrize(
    "flags", [{"no_last_checkpoints": True}, {"checkpoint_suffix": "-part"}, {"no_save_optimizer_state": True}]
)
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
    elif "no_save_optimizer_state" in flags:
        assert messages[1] == f"stopped after update 30, saved; {resuming.INCOMPLETE}"
        assert "same command resumes" not in messages[1]
        resuming.prepare_folder(checkpoint_utils, cfg.checkpoint, trainer)
        assert caplog.messages[-1] == resuming.INCOMPLETE, "before training, too"
    else:
        assert messages[1] == "stopped after update 30, without a checkpoint, as configured"


@pytest.mark.parametrize("source", ["finetune_from_model", "continue_once"])
def test_a_run_from_another_checkpoint_of_its_folder_starts_there(tmp_path, source, monkeypatch):
    """And an interrupted one resumes, also if `checkpoint_last.pt` is damaged; the control is another command."""
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
    with pytest.raises(pickle.UnpicklingError):
        loaded(configuration(tmp_path, **flags))
    forked.write_checkpoint(tmp_path / "checkpoint_1_20.pt", 20, configuration(tmp_path, **flags))
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


def training(folder):
    """Checkpoint of the last update, and how many updates its optimizer has made."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    return state, state["optimizer_history"][-1]["num_updates"]


@pytest.fixture(scope="module")
def repeat(tiny_data, tmp_path_factory):
    """Trains 6 updates from another run's checkpoint; returns a function that changes and repeats that command."""
    folder = tmp_path_factory.mktemp("reset") / "run"
    flags = [tiny_data, *TINY_MODEL, *TINY_TRAINING[4:], "--disable-validation", "--no-epoch-checkpoints", "--seed", 1]
    flags += ["--optimizer", "adam"]
    flags += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 3]  # which changes a setting when it is built
    assert forked.train(folder, [*flags, "--max-update", 4])["statuses"] == [0]
    flags += ["--max-update", 6, "--reset-optimizer", "--reset-lr-scheduler", "--reset-dataloader"]
    assert forked.train(folder, flags)["statuses"] == [0]
    assert training(folder)[1] == 6, "the control: it has not resumed after update 4"
    before = shutil.copytree(folder, folder.with_name("before"))

    def train(*changes, fault_tolerance=1):
        shutil.rmtree(folder)
        words = [str(word).replace("FOLDER", str(folder)) for word in (*flags, *changes)]
        done = forked.train(folder, words, env={"FAIRSEQ_MODERN_FAULT_TOLERANCE": str(fault_tolerance)}, copy=before)
        assert done["statuses"] == [0], done["outputs"]
        return done["outputs"][0], *training(folder)

    return train


@pytest.mark.parametrize(
    "changes",
    [
        ["--seed", 2],
        pytest.param(["--optimizer", "adamax", "--adamax-betas", "(0.9, 0.98)"], marks=pytest.mark.slow),
        ["--restore-file", "FOLDER/checkpoint_last.pt", "--max-update", 7],
    ],
)
def test_flags_of_another_command_apply_as_in_fairseq(repeat, changes):
    output, ours, updates = repeat(*changes)
    _, reference, expected = repeat(*changes, fault_tolerance=0)
    assert "resuming this run" not in output
    assert "another command has written checkpoint_last.pt" in output
    assert updates == expected
    assert reference["model"].keys() == ours["model"].keys()
    assert all(torch.equal(ours["model"][name], weight) for name, weight in reference["model"].items())


def test_the_same_command_on_another_machine_resumes(repeat):
    output, _, updates = repeat("--log-interval", 3, "--log-format", "json", "--distributed-port", 1234)
    assert "resuming this run from checkpoint_last.pt (6 updates), without --reset-optimizer" in output
    assert "this run has already finished, after 6 updates (--max-update 6)" in output
    assert updates == 6
    output, _, updates = repeat(fault_tolerance=0)
    assert "finished, after" not in output
    assert updates == 6, "the control starts again"


@pytest.mark.slow  # three runs of fairseq-hydra-train
def test_the_same_command_of_hydra_resumes_after_a_kill(tiny_data, tmp_path):
    """fairseq-hydra-train starts from a config, has nested settings, and a log file with a time in its name."""
    last, killed = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "killed.pt"
    settings = ["optimization.max_update=4", "checkpoint.save_interval_updates=2"]
    settings += ["lr_scheduler._name=inverse_sqrt", "+lr_scheduler.warmup_updates=3", "dataset.disable_validation=true"]
    settings.append("checkpoint.reset_optimizer=true")
    command = [*hydra_command(tiny_data, tmp_path / "run", tmp_path / "config"), *settings]
    run(*command)
    uninterrupted = training(tmp_path / "run")[0]
    shutil.move(tmp_path / "run" / "checkpoint_1_2.pt", last)  # as after a kill between updates 2 and 4
    shutil.copy(last, killed)
    output = run(*command).stdout
    assert "resuming this run from checkpoint_last.pt (2 updates), without --reset-optimizer" in output
    assert same_training(training(tmp_path / "run")[0], uninterrupted)
    shutil.copy(killed, last)
    assert "resuming this run" not in run(*command, "common.seed=2").stdout

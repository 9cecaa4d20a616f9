"""fairseq's programs: several runs in one process, exit statuses, errors, `--help`, chains of configs."""

import contextlib
import gc
import math
import signal
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq_cli import hydra_train as program
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from fairseq_modern import errors, hydra_train, optional_packages, wrappers
from tests.commands import hydra_command
from tests.common import run
from tests.forked import training_config
from tests.models.cases import SMALL


def test_every_run_of_a_hydra_multirun_writes_its_best_checkpoint(tiny_data, tmp_path):
    tool, *config = hydra_command(tiny_data, "checkpoints", tmp_path, optimization={"max_update": 3}, **SMALL)
    # the second run is worse than the first, whose best score it must not inherit
    sweep = ["optimization.lr=[0.005],[0.00001]", f"hydra.sweep.dir={tmp_path}/jobs"]
    run(tool, "--multirun", *config, *sweep, cwd=tmp_path)
    best = [torch.load(f, weights_only=False)["extra_state"] for f in sorted(tmp_path.glob("jobs/*/*/*_best.pt"))]
    assert len(best) == 2
    assert best[0]["best"] < best[1]["best"] == best[1]["val_loss"]


def test_a_failed_run_of_a_multirun_does_not_end_the_others(tiny_data, tmp_path):
    tool, *config = hydra_command(tiny_data, "checkpoints", tmp_path, optimization={"max_update": 3}, **SMALL)
    sweep = ["optimization.lr=[1e30],[0.005]", f"hydra.sweep.dir={tmp_path}/jobs"]
    done = run(tool, "--multirun", *config, *sweep, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "fairseq-hydra-train: error: training diverged" in done.stderr
    (checkpoint,) = tmp_path.glob("jobs/*/*/checkpoint_last.pt")
    assert torch.load(checkpoint, weights_only=False)["cfg"]["optimization"]["lr"] == [0.005]


def test_the_error_of_a_run_of_a_multirun_does_not_hold_its_model(monkeypatch):
    models = []

    def train(cfg):
        models.append(weakref.ref(model := torch.nn.Linear(1, 1)))
        raise errors.UserError(f"no luck with {len(list(model.parameters()))} parameters")

    module = SimpleNamespace(_hydra_main=train, add_defaults=lambda cfg: None)
    wrappers.patch_hydra_train(module)
    monkeypatch.setattr(sys, "argv", ["fairseq-hydra-train"])
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(mode=RunMode.MULTIRUN))
    with pytest.raises(errors.UserError, match="no luck"):
        module._hydra_main(OmegaConf.create())
    gc.collect()
    assert models[0]() is None


@pytest.mark.parametrize(("name", "message"), [("config", None), ("mine", "--config-name mine needs --config-dir")])
def test_configs_in_the_working_directory_need_config_dir(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["fairseq-hydra-train"])
    with pytest.raises(errors.UserError, match=message) if message else contextlib.nullcontext():
        program.hydra_init(name)


def test_settings_may_refer_to_defaults_of_a_task(monkeypatch):
    given = []
    monkeypatch.setattr(program.distributed_utils, "call_main", lambda cfg, main, **_: given.append(cfg))
    monkeypatch.setattr(program, "reset_logging", lambda: None)
    task = {"_name": "language_modeling", "data": "x"}
    model = {"_name": "transformer_lm", "max_target_positions": "${task.tokens_per_sample}"}
    cfg = OmegaConf.structured(FairseqConfig())
    with open_dict(cfg):
        cfg.task, cfg.model, cfg.recipe = task, model, {"width": 3}
    program._hydra_main(cfg)
    assert given[0].model.max_target_positions == 1024


@pytest.mark.parametrize("maximize", [True, False])
def test_sweepers_receive_the_best_score(monkeypatch, maximize):
    """Unpatched, they receive None."""
    scores = vars(checkpoint_utils.save_checkpoint)
    monkeypatch.setattr(program.distributed_utils, "call_main", lambda *_, **__: scores.update(best=3.0))
    monkeypatch.setattr(program, "reset_logging", lambda: None)
    cfg = OmegaConf.structured(FairseqConfig())
    with open_dict(cfg):
        cfg.task, cfg.model = {"_name": "language_modeling", "data": "x"}, {"_name": "transformer_lm"}
    cfg.checkpoint.maximize_best_checkpoint_metric = maximize
    assert program.hydra_main(cfg) == 3.0
    del scores["best"]
    monkeypatch.setattr(program.distributed_utils, "call_main", lambda *_, **__: None)
    assert program.hydra_main(cfg) == (-math.inf if maximize else math.inf)


@pytest.mark.parametrize(
    ("section", "setting", "value", "modules"),
    [
        ("checkpoint", "write_checkpoints_asynchronously", True, ["iopath"]),
        ("common", "wandb_project", "x", ["wandb"]),
        ("common", "tensorboard_logdir", "x", ["torch.utils.tensorboard", "tensorboardX"]),
        ("common", "aim_repo", "x", ["aim"]),
        ("common", "azureml_logging", True, ["azureml", "azureml.core"]),
    ],
)
def test_a_flag_whose_package_is_missing_is_an_error(section, setting, value, modules, tmp_path, monkeypatch):
    """Unpatched, `main` trains nothing or without this log."""
    from fairseq_cli import train  # configures logging

    cfg = training_config(tmp_path)
    cfg.dataset.max_tokens = 100
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    optional_packages.check(cfg)  # control: without the flag
    cfg[section][setting] = value
    for function in (train.main, optional_packages.check):
        with pytest.raises(errors.UserError, match=f"--{setting.replace('_', '-')} needs .* run: pip install "):
            function(cfg)
    for module in modules[-1:]:
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    if modules[0] == "azureml":
        monkeypatch.setitem(sys.modules, "azureml", SimpleNamespace(__path__=[]))
    optional_packages.check(cfg)  # control: with the package


PREFETCHES = """
import sys, torch
from fairseq.data.iterators import BufferedIterator

class Slow(list):
    def __iter__(self):
        for _ in range(len(self)):
            square = torch.ones(300, 300)
            yield [torch.mm(square, square) for _ in range(100)]  # a tenth of a second

next(BufferedIterator(10, Slow([None] * 100)))
sys.exit(75)
"""


@pytest.mark.parametrize(("skip", "status"), [("", 75), ("prefetching", -signal.SIGABRT)])
def test_a_run_that_ends_within_an_epoch_keeps_its_status(skip, status):
    done = run("python", "-c", PREFETCHES, check=False, env={"FAIRSEQ_MODERN_SKIP": skip})
    assert done.returncode == status


@pytest.mark.parametrize(
    ("program", "name", "wants_traceback"),
    [
        ("/usr/bin/fairseq-train", "fairseq-train", "0"),
        ("/usr/bin/fairseq-train", "fairseq-train", "1"),
        ("/lib/fairseq_cli/train.py", "fairseq_cli.train", "0"),
        ("/home/me/my_script.py", None, "0"),
        ("", None, "0"),
    ],
)
def test_only_fairseqs_programs_shorten_errors(program, name, wants_traceback, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("FAIRSEQ_MODERN_TRACEBACK", wants_traceback)
    tracebacks = []
    monkeypatch.setattr(sys, "excepthook", lambda cls, error, traceback: tracebacks.append(error))
    errors.show_user_errors(SimpleNamespace())
    layer_error = type("LayerError", (ValueError,), {"user_error": True})  # in a module that imports torch only
    raised = [errors.UserError("a file\nis missing"), layer_error("a flag is wrong"), ValueError("a bug")]
    for error in raised:
        sys.excepthook(type(error), error, None)
    assert errors.tool_name() == name
    is_shortened = name is not None and wants_traceback == "0"
    assert tracebacks == raised[2 if is_shortened else 0 :]
    lines = f"{name}: error: a file is missing\n{name}: error: a flag is wrong\n"
    assert capsys.readouterr().err == (lines if is_shortened else "")


def test_help_lists_the_flags_of_the_model():
    helps = [run("fairseq-train", *arch, "--help").stdout for arch in (["--arch", "transformer_tiny"], [])]
    assert ["--encoder-ffn-embed-dim" in text for text in helps] == [True, False]
    assert all("--max-update" in text for text in helps)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("_self_", "own/one"),
        ("../base@_global_", "own/../base"),
        ("/base@_global_", "base"),
        ("two", "own/two"),
        ("elsewhere", "own/one"),
        ("model: two", "own/one"),
    ],
)
def test_finds_the_config_on_which_others_build(first, expected, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/one.yaml").write_text(f"defaults:\n  - {first}\n")
    for name in ("base", "own/two"):
        (tmp_path / f"{name}.yaml").write_text("common: {seed: 1}\n")
    assert hydra_train.base(str(tmp_path), "own/one") == expected

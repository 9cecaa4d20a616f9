"""`--amp`, `--bf16` and `--fp16` on a CPU: arithmetic, errors, resuming, translating."""

import json
import math
import os
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import tasks
from fairseq.optim import AMPOptimizer
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from fairseq_modern import processor
from fairseq_modern.errors import UserError
from tests.common import run
from tests.fairseq.commands import USER_DIR, train_command
from tests.fairseq.models import SMALL


@pytest.fixture
def units(monkeypatch):
    """A CPU with native bf16 support, whatever this one has."""
    monkeypatch.setenv(processor.ASSUMED, "some")


def optimizer_of(parameter):
    """fairseq's AMP optimizer with plain gradient descent."""
    common = {"fp16_init_scale": 4, "amp_scale_window": None, "min_loss_scale": 1e-4}
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]}
    return AMPOptimizer.build_optimizer(OmegaConf.create({"optimizer": sgd, "common": common}), [parameter])


def unpatched_step(optimizer):
    optimizer.scaler.step(optimizer.fp32_optimizer)
    optimizer.scaler.update()


@pytest.mark.parametrize(
    ("step", "factor", "moved", "norm", "scale"),
    [
        (AMPOptimizer.step, 1.0, [1.5, 2.0], 5.0, 1024),
        (AMPOptimizer.step, math.inf, [0.0, 0.0], math.inf, 512),
        (unpatched_step, 1.0, [1.5 / 1024, 2.0 / 1024], 5.0, 1024),
    ],
    ids=["one step", "overflow", "unpatched"],
)
def test_amp_divides_by_the_scale_once_and_skips_overflows(step, factor, moved, norm, scale, units):
    start = torch.tensor([1.0, -2.0])
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optimizer_of(parameter)
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # as on a GPU
    optimizer.backward((parameter * torch.tensor([3.0, 4.0]) * factor).sum())
    assert optimizer.clip_grad_norm(0.0) == norm
    step(optimizer)
    assert torch.equal(start - parameter, torch.tensor(moved))
    assert optimizer.scaler.get_scale() == scale


class Model(torch.nn.Linear):
    def set_num_updates(self, number):
        pass


def train_step(optimizer_for):
    """One step of a task on a linear model: the dtype of its output, loss, gradient, optimizer and model."""
    torch.manual_seed(0)
    model, types = Model(8, 8), []

    def criterion(model, sample):
        output = model(sample)
        types.append(output.dtype)
        return output.float().square().sum(), 1, {}

    optimizer, sample = optimizer_for(model.weight), torch.randn(3, 8)
    loss, *_ = tasks.FairseqTask.train_step(
        SimpleNamespace(), sample=sample, model=model, criterion=criterion, optimizer=optimizer, update_num=1
    )
    return types[0], float(loss.detach()), model.weight.grad.clone(), optimizer, model


def test_amp_on_a_cpu_computes_in_bfloat16_and_steps_in_float32(units):
    dtype, loss, gradient, optimizer, model = train_step(optimizer_of)
    plain_dtype, plain_loss, plain_gradient, *_ = train_step(lambda _: SimpleNamespace(backward=torch.Tensor.backward))
    assert (dtype, plain_dtype) == (torch.bfloat16, torch.float32)
    assert 1e-5 < abs(loss / plain_loss - 1) < 0.02
    assert gradient.dtype == torch.float32
    assert 1e-4 < float((gradient - plain_gradient).norm() / plain_gradient.norm()) < 0.02
    before = model.weight.detach().clone()
    norm = optimizer.clip_grad_norm(0.0)
    optimizer.step()
    assert torch.allclose(model.weight, before - 0.5 * gradient)
    assert norm == pytest.approx(float(gradient.norm()))
    assert optimizer.scaler.get_scale() == 1.0
    model.weight.grad[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        optimizer.clip_grad_norm(1.0)


def test_amp_rejects_a_cpu_without_native_bf16_support(monkeypatch):
    monkeypatch.setenv(processor.ASSUMED, "none")
    monkeypatch.setattr(processor, "name", lambda: "Old CPU")
    with pytest.raises(UserError, match=r"--amp needs .*; got Old CPU"):
        optimizer_of(torch.nn.Parameter(torch.ones(2)))


@pytest.mark.parametrize(("wanted", "cores"), [("", 2), ("0", 2), ("5", 5), ("4,2", 4)])
def test_usable_cores_are_those_of_the_job(wanted, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert processor.usable_cores() == cores


X86 = "model name\t: A CPU\nflags\t: fpu amx_bf16 avx512f avx512_bf16\n"
ARM, OLD_ARM = "Features\t: fp asimd sve bf16\n", "Features\t: fp asimd\n"


@pytest.mark.parametrize(
    ("text", "assumed", "name", "units"),
    [
        (X86, "", "A CPU", ["AMX", "AVX-512"]),
        (X86, "none", "A CPU", []),
        (X86, "some", "A CPU", ["AMX", "AVX-512"]),
        (ARM, "", "aarch64", ["Arm"]),
        (OLD_ARM, "", "aarch64", []),
        (OLD_ARM, "some", "aarch64", ["emulated"]),
    ],
)
def test_name_and_units_are_those_of_the_kernel_unless_overridden(text, assumed, name, units, monkeypatch):
    monkeypatch.setenv(processor.ASSUMED, assumed)
    monkeypatch.setattr(processor, "read", lambda path: text if path == "/proc/cpuinfo" else "")
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor.platform, "processor", lambda: "aarch64")
    for function in (processor.flags, processor.name):
        monkeypatch.setattr(processor, function.__name__, function.__wrapped__)  # without its cache
    assert (processor.name(), processor.bfloat16_units()) == (name, units)


def losses(log):
    return [json.loads(line)["loss"] for line in re.findall(r"train_inner \| (\{.*\})", log)]


@pytest.mark.parametrize("flag", ["amp", "bf16"])
def test_a_resumed_run_equals_an_uninterrupted_one(flag, tiny_data, tmp_path, units):
    loss = {"criterion": "label_smoothed_cross_entropy_chunked", "disable_validation": True}
    saving = {"max_update": 6, "save_interval_updates": 3, "no_epoch_checkpoints": True}
    options = {flag: True, "key_dim": 8, "log_format": "json", "log_interval": 1, **loss, **saving, **SMALL}
    done = run(*train_command(tiny_data, tmp_path / "uninterrupted", **options))
    assert "slower than fp32" not in done.stdout
    assert flag == "amp" or "Warning" not in done.stderr  # fairseq's autocast for CUDA warns
    uninterrupted = losses(done.stdout)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "uninterrupted" / "checkpoint_1_3.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    resumed = losses(run(*train_command(tiny_data, tmp_path / "resumed", **options)).stdout)
    assert len(uninterrupted) == 6
    assert len(set(uninterrupted)) == 6
    assert resumed == uninterrupted[3:]
    last = [checkpoints.load(tmp_path / name / "checkpoint_last.pt") for name in ("uninterrupted", "resumed")]
    moments = [c["last_optimizer_state"]["state"][0]["exp_avg"] for c in last]
    assert torch.equal(*moments)
    kept = last[0]["model"]["encoder.layers.0.fc1.weight"]
    assert torch.equal(kept, kept.bfloat16().float()) == (flag == "bf16")
    if flag == "bf16":
        command = ["fairseq-generate", tiny_data, "--user-dir", USER_DIR, "--cpu", "--beam", 2, "--max-len-b", 5]
        command += ["--path", tmp_path / "uninterrupted" / "checkpoint_last.pt"]
        scores = [re.findall(r"^H-\S+\t(\S+)", run(*command, *more).stdout, re.MULTILINE) for more in ((), ("--bf16",))]
        assert len(scores[0]) == len(scores[1]) == 20
        done = run(*command, "--bf16", env={processor.ASSUMED: "none"})
        assert "--bf16 is several times slower than fp32 on this CPU" in done.stdout + done.stderr
        assert 0 < max(abs(float(a) - float(b)) for a, b in zip(*scores, strict=True)) < 0.2

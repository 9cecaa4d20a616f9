"""`--amp`, `--bf16` and `--fp16` on a CPU: arithmetic, errors, resuming, translating."""

import contextlib
import json
import math
import os
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import tasks
from fairseq.dataclass.configs import FairseqConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from fairseq_modern import amp, processor
from fairseq_modern.errors import UserError
from tests.commands import USER_DIR, train_command
from tests.common import run
from tests.models.cases import SMALL, Task, build


@pytest.fixture
def units(monkeypatch):
    """A CPU with native bf16 support, whatever this one has."""
    monkeypatch.setenv(processor.ASSUMED, "some")


def optimizer_of(parameter, optimizer=AMPOptimizer, **settings):
    """A mixed-precision optimizer of fairseq with plain gradient descent."""
    common = {"fp16_init_scale": 4, "amp_init_scale": 128, "amp_scale_window": None, "min_loss_scale": 1e-4}
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]}
    cfg = OmegaConf.create({"optimizer": sgd, "common": {**common, **settings}})
    return optimizer.build_optimizer(cfg, [parameter])


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


@pytest.mark.parametrize("window", [None, 300])
def test_amp_has_its_own_initial_scale_and_number_of_updates_between_increases(window, monkeypatch):
    class Scaler(torch.amp.GradScaler):
        def __init__(self, **options):
            super().__init__("cpu", **options)

    monkeypatch.setattr("torch.cuda.amp.GradScaler", Scaler)  # as on a GPU
    parameter = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizer = optimizer_of(parameter, amp_scale_window=window)
    assert optimizer.scaler.get_growth_interval() == (window or Scaler().get_growth_interval())
    assert optimizer.scaler.get_scale() == 128, "not the 4 of --fp16-init-scale"


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
    assert (processor.name(), processor.bfloat16_units()) == (name, units)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"fp16": True, "fp16_no_flatten_grads": True}, "--fp16"),
        ({"fp16": True, "memory_efficient_fp16": True}, "--memory-efficient-fp16"),
        ({"bf16": True, "memory_efficient_bf16": True}, None),
    ],
)
def test_fp16_needs_a_gpu(settings, flag, units):
    """Otherwise, training ends when the gradients overflow."""
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.common.update(cpu=True, **settings)
    if flag is None:
        amp.check_precision(cfg)
        return
    with pytest.raises(UserError, match=f"^{flag} needs a GPU, but --cpu is given; leave out {flag} or give --amp"):
        amp.check_precision(cfg)


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize("is_flat", [False, True])
def test_fp32_parameters_are_restored_unless_the_model_was_changed(is_flat, is_edited, monkeypatch, caplog):
    monkeypatch.setattr("torch.cuda.current_device", lambda: None)  # the device index of CPU tensors
    half = {"fp16_scale_window": 100, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None}
    half["fp16_no_flatten_grads"] = not is_flat
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]).half())
    saved = optimizer_of(parameter, FP16Optimizer, **half)
    (fp32,) = amp.fp32_tensors(saved)
    fp32.add_(1e-3)
    saved._sync_fp32_params_to_fp16()
    state = saved.state_dict()
    if is_edited:
        parameter.data[1] = 7.0
    rounded = parameter.detach().float()
    assert not torch.equal(rounded, fp32)
    resumed = optimizer_of(parameter, FP16Optimizer, **half)
    resumed.load_state_dict(state)
    assert torch.equal(*amp.fp32_tensors(resumed), rounded if is_edited else fp32)
    assert ("ignored the fp32 parameters in the checkpoint" in caplog.text) is is_edited


def loss_scales(build, overflows, resume_at=None):
    """The loss scale after each of 40 steps, as with one optimizer, or with a second one from a certain step on."""
    optimizer, scales = build(), []
    for number in range(40):
        if number == resume_at:
            state = optimizer.state_dict()
            optimizer = build()
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        optimizer.backward((optimizer.scaled * (math.inf if number in overflows else 1.0)).sum())
        with contextlib.suppress(OverflowError):
            optimizer.clip_grad_norm(0.0)
            optimizer.step()
        scaler = optimizer.scaler
        scales.append(getattr(scaler, "loss_scale", None) or scaler.get_scale())
    return scales


@pytest.mark.parametrize("build", [FP16Optimizer, MemoryEfficientFP16Optimizer, AMPOptimizer])
def test_loss_scale_of_a_resumed_run_changes_after_the_same_updates(build, units, monkeypatch):
    monkeypatch.setattr("torch.cuda.current_device", lambda: None)  # the device index of CPU tensors
    monkeypatch.setattr("fairseq.optim.sgd.SGD.supports_memory_efficient_fp16", True)
    settings = {"fp16_scale_window": 10, "fp16_scale_tolerance": 0.25, "threshold_loss_scale": None}
    settings["fp16_no_flatten_grads"] = True

    def optimizer():
        parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float32 if build is AMPOptimizer else torch.half))
        built = optimizer_of(parameter, build, **settings)
        built.scaled = parameter
        if build is AMPOptimizer:
            built._grad_scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10)  # as on a GPU
        return built

    overflows = (3, 4, 20)
    scales = loss_scales(optimizer, overflows)
    assert len(set(scales)) > 2
    for number in (5, 15, 24):
        assert loss_scales(optimizer, overflows, number) == scales
    state, old = optimizer().state_dict(), optimizer()
    old.load_state_dict({name: value for name, value in state.items() if name in ("state", "param_groups")})


@pytest.mark.parametrize(("path", "dtype"), [(None, torch.float32), ("model.pt", torch.bfloat16)])
def test_only_programs_convert_models_to_bfloat16(path, dtype):
    """`from_pretrained` has the configuration of the training run."""
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.common.bf16, cfg.common_eval.path = True, path
    task, model = Task(), build("transformer", **SMALL)
    task.max_positions = model.max_positions
    hub = GeneratorHubInterface(cfg, task, [model])
    assert {parameter.dtype for parameter in hub.models.parameters()} == {dtype}


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

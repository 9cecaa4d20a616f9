"""`--amp` and `--bf16` on a CPU: what is computed in bfloat16, what is refused, resuming, translating."""

import copy
import json
import math
import os
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import tasks
from fairseq.optim import AMPOptimizer, FP16Optimizer
from omegaconf import OmegaConf

import collab_fairseq.training.fused_adam  # noqa: F401  (registers it)
from collab_fairseq import checkpoints
from fairseq_modern import flat, processor
from fairseq_modern.errors import UserError
from tests.common import run
from tests.fairseq.commands import USER_DIR, train_command
from tests.fairseq.models import SMALL

ADAFACTOR = {
    "adafactor_eps": "(1e-30, 1e-3)", "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None,
    "scale_parameter": False, "relative_step": False, "warmup_init": False,
}  # fmt: skip


@pytest.fixture
def units(monkeypatch):
    """A CPU with units for bfloat16, whatever this one has."""
    monkeypatch.setenv(processor.ASSUMED, "some")


def optimizer_of(parameter):
    """fairseq's AMP optimizer around plain gradient descent."""
    common = {"fp16_init_scale": 4, "amp_scale_window": None, "min_loss_scale": 1e-4}
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]}
    return AMPOptimizer.build_optimizer(OmegaConf.create({"optimizer": sgd, "common": common}), [parameter])


def as_published(optimizer):
    optimizer.scaler.step(optimizer.fp32_optimizer)
    optimizer.scaler.update()


@pytest.mark.parametrize(
    ("step", "factor", "moved", "scale"),
    [
        (AMPOptimizer.step, 1.0, [1.5, 2.0], 1024),
        (AMPOptimizer.step, math.inf, [0, 0], 512),
        (as_published, 1, None, 0),
    ],
    ids=["one step", "overflow", "as published"],
)
def test_amp_divides_by_the_scale_once_and_skips_what_overflows(step, factor, moved, scale, units):
    start = torch.tensor([1.0, -2.0])
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optimizer_of(parameter)
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # as on a GPU
    optimizer.backward((parameter * torch.tensor([3.0, 4.0]) * factor).sum())
    norm = optimizer.clip_grad_norm(0.0)
    step(optimizer)
    if moved is None:
        assert (parameter - start).abs().max() < 0.01, "twice unscaled, it hardly moves"
    else:
        assert torch.equal(start - parameter, torch.tensor(moved))
        assert norm == 5 if factor == 1 else not norm.isfinite()
        assert optimizer.scaler.get_scale() == scale


class Model(torch.nn.Linear):
    def set_num_updates(self, number):
        pass


def train_step(optimizer_for):
    """One step of a task on a linear model: its output's type, its loss and what is left of its gradient."""
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


def test_a_cpu_without_the_units_refuses(monkeypatch):
    monkeypatch.setenv(processor.ASSUMED, "none")
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"sse2", "avx2"}))
    monkeypatch.setattr(processor, "name", lambda: "Old CPU")
    with pytest.raises(UserError, match=r"no units for it \(Old CPU with avx2\); leave out --amp") as error:
        optimizer_of(torch.nn.Parameter(torch.ones(2)))
    assert error.value.user_error


@pytest.mark.parametrize(
    ("flag", "assumed", "found"),
    [("avx512_bf16", "", ["AVX-512"]), ("avx512_bf16", "none", []), ("avx512_bf16", "some", ["AVX-512"]),
     ("avx2", "", []), ("avx2", "none", []), ("avx2", "some", ["emulated"])],
)  # fmt: skip
def test_units_can_be_assumed(flag, assumed, found, monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset({flag}))
    monkeypatch.setenv(processor.ASSUMED, assumed)
    assert processor.bfloat16_units() == found
    monkeypatch.setenv(processor.ASSUMED, "yes")
    with pytest.raises(UserError, match="CPU_BFLOAT16_UNITS must be none or some, got 'yes'"):
        processor.bfloat16_units()


@pytest.mark.parametrize(("wanted", "cores"), [("", 2), ("0", 2), ("5", 5), ("4,2", 4)])
def test_cores_are_those_of_the_job(wanted, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert processor.usable_cores() == cores


@pytest.mark.parametrize(
    ("text", "name", "bfloat16", "vectors"),
    [
        (
            "model name\t: A CPU\nflags\t\t: fpu avx2 amx_bf16 avx512f avx512_bf16\n",
            "A CPU",
            ["AMX", "AVX-512"],
            "avx512f",
        ),
        ("Features\t: fp asimd sve bf16\n", "aarch64", ["Arm"], "sve"),
    ],
)
def test_what_the_kernel_says_of_the_cpu(text, name, bfloat16, vectors, monkeypatch):
    monkeypatch.delenv(processor.ASSUMED, raising=False)
    monkeypatch.setattr(processor, "read", lambda path: text if path == "/proc/cpuinfo" else "")
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor.platform, "processor", lambda: "aarch64")
    for function in (processor.flags, processor.name):
        monkeypatch.setattr(processor, function.__name__, function.__wrapped__)  # without its memory
    assert (processor.name(), processor.bfloat16_units(), processor.vector_units()) == (name, bfloat16, vectors)


def half_optimizer(start, monkeypatch=None, **settings):
    """fairseq's optimizer of --bf16, and its parameters; as on a GPU where ``monkeypatch`` is given."""
    if monkeypatch:
        monkeypatch.setattr(flat, "on_gpu", lambda params: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of a CPU
    common = {"bf16": True, "fp16_no_flatten_grads": False, "fp16_scale_window": 1, "fp16_init_scale": 4,
              "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None, "min_loss_scale": 1e-4}  # fmt: skip
    adam = {"_name": "adam", "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1, "lr": [0.1]}
    groups = {"optimizer": {**adam, "tpu": False, **settings.pop("optimizer", {})}, "common": {**common, **settings}}
    groups["distributed_training"] = {"zero_sharding": "none"}
    parameters = [torch.nn.Parameter(x.bfloat16()) for x in start]
    made = FP16Optimizer.build_optimizer(OmegaConf.create(groups), parameters)
    monkeypatch and monkeypatch.undo()
    return made, parameters


def half_updates(optimizer, parameters, seed):
    random = torch.Generator().manual_seed(seed)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward(sum((p * torch.randn(p.shape, generator=random).bfloat16()).sum() for p in parameters))
        optimizer.clip_grad_norm(0.5)
        optimizer.step()


@pytest.mark.parametrize("name", ["adam", "fused_adam"])
@pytest.mark.parametrize("resumed", ["apart", "flat"])
def test_bf16_on_a_card_is_flat_and_takes_up_checkpoints_of_either(resumed, name, monkeypatch):
    start = [torch.randn(size, generator=torch.Generator().manual_seed(1)) for size in ((4, 3), (5,), (2, 2))]
    given = {"optimizer": {"_name": name}}
    apart, parameters = half_optimizer(start, **given)
    flat_one, flat_parameters = half_optimizer(start, monkeypatch=monkeypatch, **given)
    assert flat_one.scaler is None
    assert [p.shape for p in flat_one.fp32_params.values()] == [(21,)]
    assert isinstance(apart.fp32_params, list)
    for optimizer, of in ((apart, parameters), (flat_one, flat_parameters)):
        half_updates(optimizer, of, 1)
    state, halves = copy.deepcopy((flat_one if resumed == "apart" else apart).state_dict()), list(parameters)
    assert len(state["state"]) == (1 if resumed == "apart" else 3)
    other, others = half_optimizer(halves, monkeypatch=None if resumed == "apart" else monkeypatch, **given)
    assert len(other.optimizer.param_groups[0]["params"]) == (3 if resumed == "apart" else 1)
    other.load_state_dict(state)
    for optimizer, of in ((apart, parameters), (flat_one, flat_parameters), (other, others)):
        half_updates(optimizer, of, 2)
    for one, two, three, before in zip(parameters, flat_parameters, others, start, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
        assert (one - before.bfloat16()).abs().max() > 0.1


def test_what_cannot_be_flat_stays_apart(monkeypatch):
    start = [torch.ones(2, 2), torch.ones(3)]
    shy = half_optimizer(start, monkeypatch=monkeypatch, optimizer={"_name": "adafactor", **ADAFACTOR})[0]
    asked = half_optimizer(start, monkeypatch=monkeypatch, fp16_no_flatten_grads=True)[0]
    assert [type(made.fp32_params) for made in (shy, asked)] == [list, list]
    assert shy.scaler is None
    optimizer, parameters = half_optimizer(start)
    half_updates(optimizer, parameters, 1)
    state = optimizer.state_dict()
    del state["state"][1]
    with pytest.raises(UserError, match=r"state of all 2 parameters, .* of 1; train on with --reset-optimizer"):
        half_optimizer(start, monkeypatch=monkeypatch)[0].load_state_dict(state)


def losses(log):
    return [json.loads(line)["loss"] for line in re.findall(r"train_inner \| (\{.*\})", log)]


@pytest.mark.parametrize("flag", ["amp", "bf16"])
def test_a_resumed_training_ends_at_the_same_number(flag, tiny_data, tmp_path, units):
    options = {
        flag: True, "key_dim": 8, "criterion": "label_smoothed_cross_entropy_chunked", "max_update": 6,
        "save_interval_updates": 3, "log_format": "json", "log_interval": 1, "no_epoch_checkpoints": True,
        "disable_validation": True, **SMALL,
    }  # fmt: skip
    done = run(*train_command(tiny_data, tmp_path / "whole", **options))
    assert "slower than fp32" not in done.stdout
    # fairseq's own autocast tells a CPU that there is no CUDA; all else that no user can change is kept quiet
    assert flag == "amp" or "Warning" not in done.stderr
    whole = losses(done.stdout)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint_1_3.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    resumed = losses(run(*train_command(tiny_data, tmp_path / "resumed", **options)).stdout)
    assert len(whole) == 6
    assert len(set(whole)) == 6
    assert resumed == whole[3:]
    last = [checkpoints.load(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "resumed")]
    moments = [c["last_optimizer_state"]["state"][0]["exp_avg"] for c in last]
    assert torch.equal(*moments)
    kept = last[0]["model"]["encoder.layers.0.fc1.weight"]
    assert torch.equal(kept, kept.bfloat16().float()) == (flag == "bf16")
    if flag == "bf16":
        command = ["fairseq-generate", tiny_data, "--user-dir", USER_DIR, "--cpu", "--beam", 2, "--max-len-b", 5]
        command += ["--path", tmp_path / "whole" / "checkpoint_last.pt"]
        scores = [re.findall(r"^H-\S+\t(\S+)", run(*command, *more).stdout, re.MULTILINE) for more in ((), ("--bf16",))]
        assert len(scores[0]) == len(scores[1]) == 20
        done = run(*command, "--bf16", env={processor.ASSUMED: "none"})
        warned = r"--bf16 is several times slower than fp32 on this CPU, .* \(.+ with \w+\)"
        assert re.search(warned, done.stdout + done.stderr)
        assert 0 < max(abs(float(a) - float(b)) for a, b in zip(*scores, strict=True)) < 0.2

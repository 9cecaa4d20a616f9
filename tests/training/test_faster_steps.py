"""`--optimizer fused_adam` and `--fast-dropout` compared with fairseq's Adam and dropout."""

import copy
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.modules import FairseqDropout
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.training.dropout import FastDropout, factors
from collab_fairseq.training.fused_adam import FairseqFusedAdam, FusedAdam
from fairseq_modern.errors import UserError
from tests.common import DEVICES
from tests.models.cases import SMALL, batch, build


def updates(optimizer, parameters, number, seed=0):
    """Make updates with shrinking gradients, so that ε matters."""
    random = torch.Generator().manual_seed(seed)
    for n in range(number):
        for p in parameters:
            p.grad = (torch.randn(p.shape, generator=random, dtype=torch.float64) * 10.0 ** (-n)).to(p)
        optimizer.step()


def start():
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(4, 3, dtype=torch.float64)), nn.Parameter(torch.randn(5, dtype=torch.float64))]


def distance(parameters, others):
    return max((a.cpu() - b.cpu()).abs().max() for a, b in zip(parameters, others, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_fused_adam_makes_fairseqs_updates(eps, dtype, bound, device):
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": eps, "weight_decay": 0.1}
    theirs, torchs, before = start(), start(), start()
    ours = [nn.Parameter(p.detach().to(device, dtype)) for p in start()]
    updates(Adam(theirs, **options), theirs, 5)
    optimizer = FusedAdam(ours, **options)
    updates(optimizer, ours, 5)
    updates(torch.optim.AdamW(torchs, **options), torchs, 5)
    assert distance(ours, theirs) < bound
    assert distance(before, theirs) > 0.1
    if eps > 1e-3:  # control: PyTorch's ε
        assert distance(torchs, theirs) > 1e-3
    assert optimizer.param_groups[0]["eps"] == eps


LAYOUTS = {
    "rows": lambda x: x.clone(),
    "columns": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: x.repeat(1, 2)[:, :3],
}


@pytest.mark.parametrize(("of_parameter", "of_gradient", "of_moments"), [*itertools.product(LAYOUTS, repeat=3)])
def test_fused_adam_supports_all_memory_layouts(of_parameter, of_gradient, of_moments):
    """Compared with PyTorch's unfused Adam, with an ε that does not matter."""
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-30}
    value = start()[0].data
    expected, actual = nn.Parameter(value.clone()), nn.Parameter(LAYOUTS[of_parameter](value))
    plain, fused = torch.optim.Adam([expected], fused=False, foreach=False, **options), FusedAdam([actual], **options)
    for step in range(3):
        expected.grad = torch.sin(value + step)
        actual.grad = LAYOUTS[of_gradient](expected.grad)
        plain.step()
        fused.step()
        if step == 0:
            state = fused.state[actual]
            state.update({name: LAYOUTS[of_moments](state[name]) for name in ("exp_avg", "exp_avg_sq")})
    assert (actual - expected).abs().max() < 1e-13
    assert (actual - value).abs().max() > 0.1
    assert fused.param_groups[0]["fused"]


@pytest.mark.parametrize(("first", "second"), [(Adam, FusedAdam), (FusedAdam, Adam), (FusedAdam, FusedAdam)])
def test_either_optimizer_loads_the_state_of_the_other(first, second):
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-3}
    uninterrupted, resumed = start(), start()
    optimizer = Adam(uninterrupted, **options)
    updates(optimizer, uninterrupted, 2)
    updates(optimizer, uninterrupted, 2, seed=1)
    optimizer = first(resumed, **options)
    updates(optimizer, resumed, 2)
    state = copy.deepcopy(optimizer.state_dict())
    assert state["state"][0]["step"] == 2
    assert type(state["state"][0]["step"]) is int
    optimizer = second(resumed, **options)
    optimizer.load_state_dict(state)
    updates(optimizer, resumed, 2, seed=1)
    assert distance(uninterrupted, resumed) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_fast_dropout_has_the_right_distribution_and_scale(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(101, 999, dtype=dtype)
    output = FastDropout(p).train()(x)
    assert output.dtype == dtype
    dropped, deviation = (output == 0).double().flatten(), math.sqrt(p * (1 - p) / x.numel())
    assert abs(dropped.mean() - p) < 4 * deviation + 2**-15
    kept = output[output != 0].unique()
    assert kept.tolist() == pytest.approx([1 / (1 - p)], rel=1e-4 if dtype == torch.float32 else 8e-3)
    for lane in range(4):  # the four elements of a draw have the same probability
        assert abs(dropped[lane::4].mean() - p) < 8 * deviation + 2**-15
    pairs = dropped[: x.numel() // 2 * 2].view(-1, 2)
    assert abs(pairs.prod(1).mean() - p * p) < 4 * math.sqrt(p * p / len(pairs))  # neighbours are independent


def test_fast_dropout_depends_on_the_seed_and_has_the_gradient_of_its_mask():
    x = torch.randn(7, 5, requires_grad=True)
    module = FastDropout(0.4).train()
    torch.manual_seed(3)
    output = module(x)
    torch.manual_seed(3)
    mask = factors(x, 0.4)
    assert torch.equal(output, x * mask)
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], mask)
    assert not torch.equal(module(x), output)
    assert module.eval()(x) is x
    assert FastDropout(0.0).train()(x) is x
    assert not FastDropout(1.0).train()(x).any()
    module.apply_during_inference = True
    assert (module(x) == 0).any()


def test_fast_dropout_flag_replaces_every_dropout_module():
    flags = {**SMALL, "dropout": 0.2, "activation_dropout": 0.1}
    plain, fast = build(**flags).train(), build(**flags, fast_dropout=True).train()
    types = [{type(m) for m in model.modules() if isinstance(m, FairseqDropout)} for model in (plain, fast)]
    assert types == [{FairseqDropout}, {FastDropout}]
    assert torch.equal(plain.eval()(*batch())[0], fast.eval()(*batch())[0])
    outputs = [fast.train()(*batch())[0] for _ in range(2)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


def test_fused_adam_rejects_moments_in_half_precision():
    settings = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.0, "lr": [0.1]}
    parameter = torch.nn.Parameter(torch.ones(2))
    FairseqFusedAdam(SimpleNamespace(**settings, fp16_adam_stats=False), [parameter])
    with pytest.raises(UserError, match="--fp16-adam-stats needs --optimizer adam"):
        FairseqFusedAdam(SimpleNamespace(**settings, fp16_adam_stats=True), [parameter])

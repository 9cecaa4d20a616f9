"""What `--optimizer fused_adam` and `--fast-dropout` compute, compared with fairseq's own."""

import copy
import itertools
import math

import pytest
import torch
from fairseq.modules import FairseqDropout
from fairseq.optim.adam import Adam
from torch import nn

from collab_fairseq.training.dropout import FastDropout, factors
from collab_fairseq.training.fused_adam import FusedAdam
from tests.fairseq.models import SMALL, batch, build


def updates(optimizer, parameters, number, seed=0):
    """Make updates with gradients whose size shrinks, so that ε comes to matter."""
    random = torch.Generator().manual_seed(seed)
    for n in range(number):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=random, dtype=p.dtype) * 10.0 ** (-n)
        optimizer.step()


def start(dtype=torch.float64):
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(4, 3, dtype=dtype)), nn.Parameter(torch.randn(5, dtype=dtype))]


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_fused_adam_makes_fairseqs_updates(eps):
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": eps, "weight_decay": 0.1}
    theirs, ours, torchs, before = start(), start(), start(), start()
    updates(Adam(theirs, **options), theirs, 5)
    optimizer = FusedAdam(ours, **options)
    updates(optimizer, ours, 5)
    updates(torch.optim.AdamW(torchs, **options), torchs, 5)
    assert max((a - b).abs().max() for a, b in zip(ours, theirs, strict=True)) < 1e-13
    assert max((a - b).abs().max() for a, b in zip(before, theirs, strict=True)) > 0.1
    if eps > 1e-3:  # the control: torch's own ε
        assert max((a - b).abs().max() for a, b in zip(torchs, theirs, strict=True)) > 1e-3
    assert optimizer.param_groups[0]["eps"] == eps


LAYOUTS = {
    "rows": lambda x: x.clone(),
    "columns": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: x.repeat(1, 2)[:, :3],
}


@pytest.mark.parametrize(("of_parameter", "of_gradient", "of_moments"), [*itertools.product(LAYOUTS, repeat=3)])
def test_fused_adam_minds_how_tensors_lie_in_memory(of_parameter, of_gradient, of_moments):
    """Against torch's plain Adam, with an ε that both have."""
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-30}
    value = start()[0].data
    expected, found = nn.Parameter(value.clone()), nn.Parameter(LAYOUTS[of_parameter](value))
    plain, fused = torch.optim.Adam([expected], fused=False, foreach=False, **options), FusedAdam([found], **options)
    for step in range(3):
        expected.grad = torch.sin(value + step)
        found.grad = LAYOUTS[of_gradient](expected.grad)
        plain.step()
        fused.step()
        if step == 0:
            state = fused.state[found]
            state.update({name: LAYOUTS[of_moments](state[name]) for name in ("exp_avg", "exp_avg_sq")})
    assert (found - expected).abs().max() < 1e-13
    assert (found - value).abs().max() > 0.1
    assert fused.param_groups[0]["fused"]


@pytest.mark.parametrize(("first", "second"), [(Adam, FusedAdam), (FusedAdam, Adam), (FusedAdam, FusedAdam)])
def test_a_checkpoint_of_either_continues_with_the_other(first, second):
    options = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-3}
    whole, parts = start(), start()
    optimizer = Adam(whole, **options)
    updates(optimizer, whole, 2)
    updates(optimizer, whole, 2, seed=1)
    optimizer = first(parts, **options)
    updates(optimizer, parts, 2)
    state = copy.deepcopy(optimizer.state_dict())
    assert state["state"][0]["step"] == 2
    assert type(state["state"][0]["step"]) is int
    optimizer = second(parts, **options)
    optimizer.load_state_dict(state)
    updates(optimizer, parts, 2, seed=1)
    assert max((a - b).abs().max() for a, b in zip(whole, parts, strict=True)) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_fast_dropout_keeps_as_many_and_scales_them(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(101, 999, dtype=dtype)
    found = FastDropout(p).train()(x)
    assert found.dtype == dtype
    share, deviation = float((found == 0).double().mean()), math.sqrt(p * (1 - p) / x.numel())
    assert abs(share - p) < 4 * deviation + 2**-15
    kept = found[found != 0].unique()
    assert kept.tolist() == pytest.approx([1 / (1 - p)], rel=1e-4 if dtype == torch.float32 else 8e-3)
    for lane in range(4):  # none of the four elements of a draw is dropped more often
        part = found.flatten()[lane::4]
        assert abs(float((part == 0).double().mean()) - p) < 8 * deviation + 2**-15
    pairs = found.flatten()[: x.numel() // 2 * 2].view(-1, 2)
    both = float((pairs == 0).all(1).double().mean())
    assert abs(both - p * p) < 4 * math.sqrt(p * p / len(pairs))  # neighbours are independent


def test_fast_dropout_has_the_gradient_of_its_mask_and_follows_the_seed():
    x = torch.randn(7, 5, requires_grad=True)
    module = FastDropout(0.4).train()
    torch.manual_seed(3)
    found = module(x)
    torch.manual_seed(3)
    mask = factors(x, 0.4)
    assert torch.equal(found, x * mask)
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], mask)
    assert not torch.equal(module(x), found)
    assert module.eval()(x) is x
    assert FastDropout(0.0).train()(x) is x
    assert not FastDropout(1.0).train()(x).any()
    module.apply_during_inference = True
    assert (module(x) == 0).any()


def test_the_flag_is_off_by_default_and_reaches_every_dropout_of_the_model():
    flags = {**SMALL, "dropout": 0.2, "activation_dropout": 0.1}
    plain, fast = build(**flags).train(), build(**flags, fast_dropout=True).train()
    kinds = [{type(m) for m in model.modules() if isinstance(m, FairseqDropout)} for model in (plain, fast)]
    assert kinds == [{FairseqDropout}, {FastDropout}]
    assert torch.equal(plain.eval()(*batch())[0], fast.eval()(*batch())[0])
    outputs = [fast.train()(*batch())[0] for _ in range(2)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3

"""The head loop in bfloat16 against float64: at most twice as wrong as the plain way in bfloat16."""

import math

import pytest
import torch

from collab_fairseq.attention.kernels import head_loop_half
from tests.unit.attention_cases import H, N, T, call, tensors
from tests.unit.test_kernels import seq_first

KEYS = 9


def arguments(content, mixing_dtype=torch.bfloat16, laid_out=torch.clone):
    """query, mixing, key, value and content in bfloat16, and the same numbers in float64."""
    half = tensors(KEYS, 24, 8, False, torch.bfloat16)
    half[0], half[1] = laid_out(half[0]), half[1].to(mixing_dtype)
    found = [x.double().requires_grad_() for x in half], [x.requires_grad_() for x in half]
    exact, half = (x if content else [*x[:4], None] for x in found)
    return half, exact


def mask_of(name):
    if name == "none":
        return None
    if name == "padding":
        mask = torch.zeros(N, 1, 1, KEYS)
        mask[1, ..., 5:] = mask[2, ..., :4] = -math.inf
        return mask
    return -1e4 + torch.randn(N, H, T, KEYS, generator=torch.Generator().manual_seed(4))


def everything(kernel, inputs, mask, dropout, seed=7):
    """Context, weights, and the gradients of both in a fixed direction."""
    torch.manual_seed(seed)
    results = call(kernel, *inputs, mask, dropout, need_weights=True)
    random, leaves = torch.Generator().manual_seed(5), [x for x in inputs if x is not None]
    directions = [torch.randn(x.shape, generator=random).to(x) for x in results]
    pairs = zip(results, directions, strict=True)
    gradients = [torch.autograd.grad(x, leaves, d, retain_graph=True, allow_unused=True) for x, d in pairs]
    return [
        *results,
        *(torch.zeros_like(x) if g is None else g for found in gradients for x, g in zip(leaves, found, strict=True)),
    ]


def errors(found, exact):
    scale = [max(float(e.norm()), 1e-6) for e in exact]
    return [float((a.double().cpu() - b.double()).norm()) / s for a, b, s in zip(found, exact, scale, strict=True)]


@pytest.mark.parametrize("laid_out", [torch.clone, seq_first])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "finite"])
def test_at_most_twice_as_wrong_as_the_plain_way(mask, content, dropout, laid_out, monkeypatch):
    monkeypatch.setattr(head_loop_half, "GROUP_BYTES", 3_000)  # two sentences at a time, then one
    half, exact = arguments(content, laid_out=laid_out)
    truth = everything("bmm", exact, mask_of(mask), dropout)
    found = everything("head_loop", half, mask_of(mask), dropout)
    ours = errors(found, truth)
    plain = errors(everything("bmm", half, mask_of(mask), dropout), truth)
    assert all(0 <= mine <= 2 * theirs + 1e-3 for mine, theirs in zip(ours, plain, strict=True))
    assert 1e-4 < ours[0] < 0.02
    if not dropout:
        with torch.no_grad():  # nothing is kept then
            assert torch.equal(call("head_loop", *half, mask_of(mask))[0], found[0])
    # the controls: weights dropped otherwise, a mask forgotten
    if dropout:
        assert errors(everything("head_loop", half, mask_of(mask), dropout, seed=8), truth)[0] > 0.1
    if mask != "none":
        assert errors(everything("head_loop", half, None, dropout), truth)[0] > 0.1


def test_a_mixing_matrix_in_float32_keeps_its_gradient_there():
    half, exact = arguments(True, torch.float32)
    truth = everything("bmm", exact, None, 0.0)
    found = everything("head_loop", half, None, 0.0)
    assert found[3].dtype == found[8].dtype == torch.float32
    assert all(error < 0.02 for error in errors(found, truth))
    second = torch.autograd.grad(call("head_loop", *half)[0].sum(), half[0], create_graph=True)[0]
    assert torch.isfinite(torch.autograd.grad(second.float().square().sum(), half[1])[0]).all()

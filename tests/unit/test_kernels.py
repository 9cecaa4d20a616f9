"""Every way to compute attention against the reference; what the fast ones fall back to and refuse."""

import pytest
import torch

from collab_fairseq.attention import CollaborativeAttention, KeyValue, kernels
from collab_fairseq.attention.kernels import COLLABORATIVE, STANDARD, KernelError, choose, head_loop, packed_bmm, sdpa
from tests.common import DEVICES, FLOAT64
from tests.unit.attention_cases import (
    ATTENTION_TYPES,
    LAYERS,
    MASKS,
    E,
    H,
    N,
    T,
    build,
    call,
    inputs,
    leaves,
    masks,
    reference,
    sites_of,
    tensors,
)  # fmt: skip

WAYS = [
    *((name, "auto") for name in LAYERS),
    *((name, kernel) for name in ("collaborative-two-values", "collaborative-pruned") for kernel in COLLABORATIVE),
    *((name, kernel) for name in ("standard-narrow", "grouped", "latent") for kernel in STANDARD),
]


FEW_MASKS = ("none", "padding", "additive", "empty-rows", "multiplier-per-token")


def seq_first(tensor):
    """The same (N, T, …), in memory as (T, N, …), as fairseq's layers pass it."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize(
    ("name", "kernel", "site", "mask"),
    [
        (name, kernel, site, mask)
        for name, kernel in WAYS
        for site in sites_of(name)
        for mask in (MASKS if site == "self" or (site == "cross" and kernel != "auto") else FEW_MASKS)
        if site == "self" or "causal" not in mask
    ],
)
def test_every_way_equals_the_reference(name, kernel, site, mask, monkeypatch):
    monkeypatch.setattr(head_loop, "GROUP_BYTES", 400)  # one or two sentences at a time
    layer = build(name, site, kernel=kernel)
    laid_out = torch.clone if site == "unequal" else seq_first
    query, key, value = leaves(site, laid_out)
    arguments = masks(mask, key.size(1), layer.num_heads)
    expected = reference(layer, query, key, value, arguments)
    wanted = [query, key, value, *layer.parameters()]
    direction, weights_direction = (torch.randn_like(x) for x in (expected.output, expected.weights))

    for need_weights in (False, True):
        output, weights = layer(query, key, value, need_weights=need_weights, average_attn_weights=False, **arguments)
        assert (output - expected.output).abs().max() < FLOAT64
        assert output.transpose(0, 1).is_contiguous() == (laid_out is seq_first)
        ours, theirs = (output * direction).sum(), (expected.output * direction).sum()
        if need_weights:
            assert (weights - expected.weights).abs().max() < FLOAT64
            ours = ours + (weights * weights_direction).sum()
            theirs = theirs + (expected.weights * weights_direction).sum()
        gradients = [torch.autograd.grad(y, wanted, allow_unused=True, retain_graph=True) for y in (ours, theirs)]
        for leaf, mine, other in zip(wanted, *gradients, strict=True):
            mine, other = (torch.zeros_like(leaf) if g is None else g for g in (mine, other))
            assert torch.isfinite(mine).all()
            assert (mine - other).abs().max() < 1e-11
        with torch.no_grad():  # nothing is kept then, and another path may be taken
            again = layer(query, key, value, need_weights=need_weights, average_attn_weights=False, **arguments)
        assert (again[0] - expected.output).abs().max() < FLOAT64
        assert not need_weights or (again[1] - expected.weights).abs().max() < FLOAT64


@pytest.mark.parametrize("kernel", COLLABORATIVE)
def test_one_seed_drops_the_same_weights_in_every_way(kernel):
    query, mixing, key, value, content = tensors()
    weights = packed_bmm.weigh(packed_bmm.mix(query, mixing, 0.7), key.unsqueeze(1), content * 0.7, None)
    torch.manual_seed(11)
    factor = torch.nn.functional.dropout(torch.ones_like(weights), 0.4)  # 0 or 1 / 0.6
    assert 0.2 < (factor == 0).double().mean() < 0.6
    expected = (weights * factor) @ value
    leaves = (query, mixing, key, value, content)
    theirs = torch.autograd.grad(expected.square().sum(), leaves)
    for seed in (11, 12):
        torch.manual_seed(seed)
        context, returned = call(kernel, query, mixing, key, value, content, dropout=0.4, need_weights=True)
        ours = torch.autograd.grad(context.square().sum(), leaves)
        error = max((a - b).abs().max() for a, b in zip((context, *ours), (expected, *theirs), strict=True))
        assert error < 1e-11 if seed == 11 else error > 1e-2  # the other seed is the control
        assert (returned - weights).abs().max() < FLOAT64


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kernel", ["bmm", "head_loop"])
def test_gradcheck_twice_of_bmm_and_once_of_the_head_loop(kernel, dropout, need_weights):
    mask = torch.randn(N, 1, 1, 3, dtype=torch.float64)
    mask[0, ..., 0] = -torch.inf

    def function(*arguments):
        torch.manual_seed(0)
        outputs = call(kernel, *arguments, mask, dropout, need_weights)
        return outputs if need_weights else outputs[0]

    arguments = tensors(key_len=3, key_dim=2, value_dim=2)
    assert torch.autograd.gradcheck(function, arguments)
    if kernel == "bmm":
        assert torch.autograd.gradgradcheck(function, arguments)
    else:
        with pytest.raises(RuntimeError, match="create_graph must be False with the kernel head_loop"):
            torch.autograd.gradgradcheck(function, arguments)


def test_a_gradient_penalty_is_an_error_in_the_head_loop_and_never_zero():
    """The gradient of a sum is a constant, with which torch's once_differentiable raises no error."""
    query, mixing, key, value, content = tensors()

    def penalty(kernel):
        loss = call(kernel, query, mixing, key, value, content)[0].sum()
        (gradient,) = torch.autograd.grad(loss, query, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), mixing)[0]

    assert penalty("bmm").abs().max() > 0.01
    with pytest.raises(RuntimeError, match="use kernel='bmm'"):
        penalty("head_loop")


@pytest.mark.parametrize("name", ATTENTION_TYPES)
def test_the_plain_way_has_a_second_derivative(name):
    layer = build(name, "cross", kernel="bmm")
    padding = masks("padding", 5, layer.num_heads)
    query, key, _ = (x[:2, :2].detach().clone().requires_grad_() for x in inputs("cross"))

    def function(query, key):
        return layer(query, key, key, key_padding_mask=padding["key_padding_mask"][:2, :2])

    assert torch.autograd.gradgradcheck(function, (query, key))


def entry_of(dtype=torch.float32):
    query, mixing, key, value, content = tensors(dtype=dtype)
    return query, mixing, KeyValue(key, value, content)


def test_the_choice_on_a_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "FEW_QUERIES", T)
    assert choose("auto", *entry_of(), None, False) is head_loop.attend
    for half in (torch.bfloat16, torch.float16):
        assert choose("auto", *entry_of(half), None, False) is packed_bmm.attend
    trainable = torch.zeros(T, 5, requires_grad=True)
    assert choose("auto", *entry_of(), trainable, False) is packed_bmm.attend
    query, mixing, entry = entry_of()
    monkeypatch.setattr(kernels, "FEW_QUERIES", T + 1)  # as in decoding
    assert choose("auto", query, mixing, entry, None, False) is packed_bmm.attend
    for name, kernel in COLLABORATIVE.items():
        assert choose(name, query, mixing, entry, None, True) is kernel


def test_the_choice_for_standard_heads_on_a_cpu():
    heads = torch.zeros(2, H, kernels.MANY_QUERIES, 4)
    narrow = KeyValue(torch.zeros(2, H, 5, 3), heads[:, :, :5])
    wide = KeyValue(heads[:, :, :5], heads[:, :, :5])

    def chosen(query, entry, dropout=0.0, need_weights=False):
        return kernels.choose_standard("auto", query, entry, dropout, need_weights)

    assert chosen(heads, wide) is sdpa.attend
    assert chosen(heads[:, :, 1:], wide) is packed_bmm.attend
    assert chosen(heads, wide, dropout=0.1) is packed_bmm.attend
    assert chosen(heads, wide, need_weights=True) is packed_bmm.attend
    assert chosen(heads[..., :3], narrow) is packed_bmm.attend
    assert kernels.choose_standard("sdpa", heads, wide, 0.1, True) is sdpa.attend


def test_an_impossible_choice_says_why():
    with pytest.raises(KernelError, match=r"in float32 or float64, but got torch\.bfloat16"):
        choose("head_loop", *entry_of(torch.bfloat16), None, False)
    with pytest.raises(KernelError, match="no gradient for the mask"):
        choose("head_loop", *entry_of(), torch.zeros(T, 5, requires_grad=True), False)
    query, mixing, entry = entry_of()
    with pytest.raises(KernelError, match=r"one type for all, but got torch\.float16, torch\.float32"):
        choose("sdpa", query.half(), mixing, entry, None, False)


def test_a_trainable_mask_gets_its_gradient():
    layer = build("collaborative", "cross")
    mask = torch.randn(N, H, T, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m: layer(*inputs("cross"), attn_mask=m)[0], mask)


@pytest.mark.parametrize("kernel", ["auto", "head_loop"])
def test_transformations_of_torch_take_the_plain_way(kernel):
    layer = build("collaborative-content", "cross", kernel=kernel)
    plain_layer = build("collaborative-content", "cross", kernel="bmm")
    query, key, value = inputs("cross")
    tangent = torch.randn_like(query)

    def function(x, layer=layer):
        return layer(x, key, value, need_weights=False)[0]

    # computed by differentiating twice
    expected, derivative = torch.autograd.functional.jvp(lambda x: function(x, plain_layer), query, tangent)
    assert derivative.abs().max() > 0.1
    assert (torch.func.jvp(function, (query,), (tangent,))[1] - derivative).abs().max() < 1e-10
    single = torch.func.vmap(lambda x, k, v: layer(x[None], k[None], v[None], need_weights=False)[0][0])
    assert (single(query, key, value) - expected).abs().max() < FLOAT64
    for convert in (torch.jit.trace, lambda *arguments: torch.export.export(*arguments).module()):
        converted = convert(layer, (query, key, value))
        assert (converted(query * 2, key, value)[0] - function(query * 2)).abs().max() < FLOAT64


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_finite_fills_stay_finite_in_half_precision(dtype, device):
    mask = torch.tensor([-1e8, -1e4, -torch.inf, 0.5], device=device)
    got = sdpa.mask_in_type(mask, dtype)
    assert got.dtype == dtype
    assert torch.isfinite(got).tolist() == [True, True, False, True]
    assert got[0] < -6e4
    assert got[1] == torch.tensor(-1e4, dtype=dtype)
    assert got[3] == 0.5


@pytest.mark.parametrize("kernel", ["auto", *COLLABORATIVE])
def test_autocast_takes_a_way_that_can(kernel):
    layer = CollaborativeAttention(E, H, 5, kernel=kernel)
    query = torch.randn(N, T, E)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(query, query, query)[0]
    assert low.dtype == torch.bfloat16
    assert 0 < (low.float() - layer(query, query, query)[0]).abs().max() < 0.02


def test_projections_of_another_class_are_called_one_by_one():
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    layer, query = build("collaborative"), inputs("self")[0]
    expected = layer(query, query, query)[0]
    layer.v_proj.__class__ = Doubled
    assert (layer(query, query, query)[0] - expected).abs().max() > 1e-2

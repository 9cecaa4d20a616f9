"""All kernels, compared with the reference; the choice between them, their errors and their memory."""

import itertools

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from collab_fairseq.attention import CollaborativeAttention, KeyValue, kernels
from collab_fairseq.attention.kernels import AttentionError, choose, choose_standard, head_loop, packed_bmm, sdpa
from tests.attention import cases
from tests.attention.cases import ATTENTION_TYPES, E, H, N, T, build, call, inputs, leaves, masks, tensors
from tests.common import DEVICES, FLOAT64

#: layers of `cases` and their kernels
LAYER_KERNELS = [
    *((name, "auto") for name in cases.LAYERS),
    *itertools.product(("collaborative-two-values", "collaborative-pruned"), kernels.COLLABORATIVE),
    *itertools.product(("standard-narrow", "grouped", "latent"), kernels.STANDARD),
]
FEW_MASKS = ("none", "padding", "additive", "empty-rows", "multiplier-per-token")


def seq_first(tensor):
    """The same (N, T, …), stored as (T, N, …) like the inputs from fairseq's layers."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize(
    ("name", "kernel", "site", "mask"),
    [
        (name, kernel, site, mask)
        for name, kernel in LAYER_KERNELS
        for site in cases.sites_of(name)
        for mask in (cases.MASKS if site == "self" or (site == "cross" and kernel != "auto") else FEW_MASKS)
        if site == "self" or "causal" not in mask
    ],
)
def test_kernel_equals_the_reference(name, kernel, site, mask, monkeypatch):
    monkeypatch.setattr(head_loop, "GROUP_BYTES", 400)  # one or two sentences at a time
    layer = build(name, site, kernel=kernel)
    layout = torch.clone if site == "unequal" else seq_first
    query, key, value = leaves(site, layout)
    arguments = masks(mask, key.size(1), layer.num_heads)
    expected = cases.reference(layer, query, key, value, arguments)
    variables = [query, key, value, *layer.parameters()]
    direction, weights_direction = (torch.randn_like(x) for x in (expected.output, expected.weights))

    for need_weights in (False, True):
        options = {"need_weights": need_weights, "average_attn_weights": False, **arguments}
        output, weights = layer(query, key, value, **options)
        assert (output - expected.output).abs().max() < FLOAT64
        assert output.transpose(0, 1).is_contiguous() == (layout is seq_first)
        ours, theirs = (output * direction).sum(), (expected.output * direction).sum()
        if need_weights:
            assert (weights - expected.weights).abs().max() < FLOAT64
            ours = ours + (weights * weights_direction).sum()
            theirs = theirs + (expected.weights * weights_direction).sum()
        gradients = [torch.autograd.grad(y, variables, allow_unused=True, retain_graph=True) for y in (ours, theirs)]
        for variable, actual, correct in zip(variables, *gradients, strict=True):
            actual, correct = (torch.zeros_like(variable) if g is None else g for g in (actual, correct))
            assert torch.isfinite(actual).all()
            assert (actual - correct).abs().max() < 1e-11
        with torch.no_grad():  # may take another path, since nothing is saved
            again = layer(query, key, value, **options)
        assert (again[0] - expected.output).abs().max() < FLOAT64
        assert not need_weights or (again[1] - expected.weights).abs().max() < FLOAT64


@pytest.mark.parametrize("kernel", kernels.COLLABORATIVE)
def test_a_seed_gives_the_same_dropout_mask_in_every_kernel(kernel):
    query, mixing, key, value, content = tensors()
    weights = packed_bmm.attention_weights(packed_bmm.mix(query, mixing, 0.7), key.unsqueeze(1), content * 0.7, None)
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
def test_gradcheck_of_bmm_and_head_loop_and_gradgradcheck_of_bmm(kernel, dropout, need_weights):
    mask = torch.randn(N, 1, 1, 3, dtype=torch.float64)
    mask[0, ..., 0] = -torch.inf

    def function(*arguments):
        torch.manual_seed(0)
        outputs = call(kernel, *arguments, mask, dropout, need_weights)
        return outputs if need_weights else outputs[0]

    arguments = tensors(key_len=3, key_dim=2, value_dim=2)
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)
    if kernel == "bmm":
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)
    else:
        with pytest.raises(RuntimeError, match="head_loop has no second derivative"):
            torch.autograd.gradgradcheck(function, arguments)


def test_gradient_penalty_raises_an_error_in_head_loop_instead_of_being_zero():
    """torch's once_differentiable raises no error here, because the gradient of a sum is a constant."""
    query, mixing, key, value, content = tensors()

    def penalty(kernel):
        loss = call(kernel, query, mixing, key, value, content)[0].sum()
        (gradient,) = torch.autograd.grad(loss, query, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), mixing)[0]

    assert penalty("bmm").abs().max() > 0.01
    with pytest.raises(RuntimeError, match="use kernel='bmm'"):
        penalty("head_loop")


@pytest.mark.parametrize("name", ATTENTION_TYPES)
def test_layer_with_bmm_has_a_second_derivative(name):
    layer = build(name, "cross", kernel="bmm")
    padding = masks("padding", 5, layer.num_heads)
    query, key, _ = (x[:2, :2].detach().clone().requires_grad_() for x in inputs("cross"))

    def function(query, key):
        return layer(query, key, key, key_padding_mask=padding["key_padding_mask"][:2, :2])

    assert torch.autograd.gradgradcheck(function, (query, key), fast_mode=True)


def query_mixing_entry(dtype=torch.float32):
    query, mixing, key, value, content = tensors(dtype=dtype)
    return query, mixing, KeyValue(key, value, content)


def test_choice_for_collaborative_heads_on_a_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "FEW_QUERIES", T)
    assert choose("auto", *query_mixing_entry(), None, False) is head_loop.attend
    for half in (torch.bfloat16, torch.float16):
        assert choose("auto", *query_mixing_entry(half), None, False) is packed_bmm.attend
    trainable = torch.zeros(T, 5, requires_grad=True)
    assert choose("auto", *query_mixing_entry(), trainable, False) is packed_bmm.attend
    query, mixing, entry = query_mixing_entry()
    monkeypatch.setattr(kernels, "FEW_QUERIES", T + 1)  # as in decoding
    assert choose("auto", query, mixing, entry, None, False) is packed_bmm.attend
    for name, kernel in kernels.COLLABORATIVE.items():
        assert choose(name, query, mixing, entry, None, True) is kernel


def test_choice_for_standard_heads_on_a_cpu():
    heads = torch.zeros(2, H, kernels.MANY_QUERIES, 4)
    narrow = KeyValue(torch.zeros(2, H, 5, 3), heads[:, :, :5])
    wide = KeyValue(heads[:, :, :5], heads[:, :, :5])

    assert choose_standard("auto", heads, wide, 0.0, False) is sdpa.attend
    assert choose_standard("auto", heads[:, :, 1:], wide, 0.0, False) is packed_bmm.attend
    assert choose_standard("auto", heads, wide, 0.1, False) is packed_bmm.attend
    assert choose_standard("auto", heads, wide, 0.0, True) is packed_bmm.attend
    assert choose_standard("auto", heads[..., :3], narrow, 0.0, False) is packed_bmm.attend
    assert choose_standard("sdpa", heads, wide, 0.1, True) is sdpa.attend


def test_rejects_a_kernel_that_cannot_compute_the_inputs():
    with pytest.raises(AttentionError, match=r"float32 or all float64 .* got torch\.bfloat16"):
        choose("head_loop", *query_mixing_entry(torch.bfloat16), None, False)
    with pytest.raises(AttentionError, match="does not compute a gradient for the mask"):
        choose("head_loop", *query_mixing_entry(), torch.zeros(T, 5, requires_grad=True), False)
    query, mixing, entry = query_mixing_entry()
    with pytest.raises(AttentionError, match=r"must have one dtype .* got torch\.float16, torch\.float32"):
        choose("sdpa", query.half(), mixing, entry, None, False)


def test_trainable_mask_gets_a_gradient():
    layer = build("collaborative", "cross")
    mask = torch.randn(N, H, T, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m: layer(*inputs("cross"), attn_mask=m)[0], mask, fast_mode=True)


@pytest.mark.parametrize("kernel", ["auto", "head_loop"])
def test_functional_transforms_tracing_and_export_use_bmm(kernel):
    layer = build("collaborative-content", "cross", kernel=kernel)
    plain_layer = build("collaborative-content", "cross", kernel="bmm")
    query, key, value = inputs("cross")
    tangent = torch.randn_like(query)

    def function(x, layer=layer):
        return layer(x, key, value, need_weights=False)[0]

    # by double backward
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
def test_large_finite_fill_values_stay_finite_in_half_precision(dtype, device):
    mask = torch.tensor([-1e8, -1e4, -torch.inf, 0.5], device=device)
    cast = sdpa.cast_mask(mask, dtype)
    assert cast.dtype == dtype
    assert torch.isfinite(cast).tolist() == [True, True, False, True]
    assert cast[0] < -6e4
    assert cast[1] == torch.tensor(-1e4, dtype=dtype)
    assert cast[3] == 0.5


@pytest.mark.parametrize("kernel", ["auto", *kernels.COLLABORATIVE])
def test_autocast_uses_a_kernel_that_supports_its_dtypes(kernel):
    layer = CollaborativeAttention(E, H, 5, kernel=kernel)
    query = torch.randn(N, T, E)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(query, query, query)[0]
    assert low.dtype == torch.bfloat16
    assert 0 < (low.float() - layer(query, query, query)[0]).abs().max() < 0.02


class Allocations(TorchDispatchMode):
    """Memory that operations allocate: storage → bytes; 0 for storage that existed before, and for its views."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tree, new in (((args, kwargs), False), (result, True)):
            for storage in (x.untyped_storage() for x in tree_leaves(tree) if torch.is_tensor(x)):
                self.sizes.setdefault(StorageWeakRef(storage), storage.nbytes() if new else 0)
        return result

    def alive(self):
        return sum(size for storage, size in self.sizes.items() if not storage.expired())


@pytest.mark.parametrize("name", ["standard", *ATTENTION_TYPES])
def test_checkpointed_layer_keeps_only_its_output(name):
    """--checkpoint-activations: the rest is computed again in the backward pass."""
    query = torch.randn(2, kernels.MANY_QUERIES, E, dtype=torch.float64, requires_grad=True)
    for kernel in ("bmm", "sdpa", "auto"):
        layer = build(name, kernel=kernel)

        def attend(x, layer=layer):
            return layer(x, x, x, need_weights=False)[0]

        with Allocations() as kept:
            output = checkpoint(attend, query, use_reentrant=False, preserve_rng_state=False)
        assert kept.alive() == output.nbytes, kernel
        with Allocations() as kept:
            output = attend(query)
        assert kept.alive() > 3 * output.nbytes  # control


@pytest.mark.parametrize("key_dim", [6, 48])
def test_bytes_kept_for_the_backward_pass(key_dim):
    arguments = tensors(key_dim=key_dim, dtype=torch.float32)
    key_len = arguments[2].size(1)
    weights = N * H * T * key_len

    def kept(kernel, dropout=0.0):
        with Allocations() as allocations:
            context, _ = call(kernel, *arguments, dropout=dropout)
        return allocations.alive() - context.nbytes

    assert kept("head_loop") == 4 * weights
    assert kept("head_loop", dropout=0.1) == 4 * weights + weights  # one byte per weight
    # bmm keeps the mixed queries of all heads, the scaled mixing matrix and the weights
    mixed = N * H * T * key_dim
    assert kept("bmm") == 4 * (mixed + H * key_dim + weights)
    # as under autocast: all but the mixing matrix in bfloat16
    arguments = [x if number == 1 else x.bfloat16() for number, x in enumerate(arguments)]
    assert kept("bmm") == 2 * (mixed + H * key_dim + weights) + 4 * weights  # only the softmax is float32

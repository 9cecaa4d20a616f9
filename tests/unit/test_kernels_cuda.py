"""What is chosen on a GPU, asked with fake tensors of one; and the fused ways, on a GPU where there is one."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

from collab_fairseq.attention import CollaborativeAttention, KeyValue
from collab_fairseq.attention.kernels import (
    KernelError,
    attend_collaborative,
    attend_standard,
    choose,
    choose_standard,
    packed_bmm,
    sdpa,
)
from tests.common import DEVICES, FLOAT32
from tests.unit.attention_cases import call, tensors

HALF, SINGLE = torch.bfloat16, torch.float32


def everything(kernel, inputs, mask):
    """Context, weights, and the gradients of both in a fixed direction."""
    results = call(kernel, *inputs, mask, need_weights=True)
    random = torch.Generator().manual_seed(5)
    directions = [torch.randn(x.shape, generator=random).to(x) for x in results]
    pairs = zip(results, directions, strict=True)
    gradients = [torch.autograd.grad(x, inputs, d, retain_graph=True, allow_unused=True) for x, d in pairs]
    return [
        *results,
        *(torch.zeros_like(x) if g is None else g for found in gradients for x, g in zip(inputs, found, strict=True)),
    ]


def errors(found, exact):
    scale = [max(float(e.norm()), 1e-6) for e in exact]
    return [float((a.double().cpu() - b.double()).norm()) / s for a, b, s in zip(found, exact, scale, strict=True)]


def on_a_gpu(key_dim=64, dtype=HALF, value_dim=64, keys=5, device="cuda"):
    """query, mixing and entry of a GPU that need not be there."""
    shapes = (3, 4, key_dim), (3, key_dim), (3, keys, key_dim), (3, 3, keys, value_dim), (3, 3, keys)
    query, mixing, *entry = (torch.empty(s, dtype=dtype, device=device) for s in shapes)
    return query, mixing, KeyValue(*entry)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("key_dim", "dtype", "weights", "expected"),
    [
        (64, HALF, False, sdpa), (128, torch.float16, False, sdpa), (64, HALF, True, packed_bmm),
        (136, HALF, False, packed_bmm), (100, HALF, False, packed_bmm), (100, SINGLE, False, sdpa),
        (66, SINGLE, False, packed_bmm),
    ],
)  # fmt: skip
def test_the_device_is_asked_for_first(key_dim, dtype, weights, expected, compiled, monkeypatch):
    with FakeTensorMode():
        query, mixing, entry = on_a_gpu(key_dim, dtype)
        heads = query.unsqueeze(1).expand(-1, 3, -1, -1)
        here = on_a_gpu(key_dim, dtype, device="cpu")
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
        assert choose("auto", query, mixing, entry, None, weights) is expected.attend
        standard = choose_standard("auto", heads, entry, 0.1, weights)
        assert standard is (sdpa.attend if expected is sdpa or key_dim == 136 else packed_bmm.attend)
        assert choose("auto", *here, None, weights) is packed_bmm.attend  # few queries
        if compiled:
            assert choose("head_loop", query, mixing, entry, None, weights) is packed_bmm.attend


def test_transformations_take_the_plain_way_on_a_gpu_too():
    with FakeTensorMode():
        query, mixing, entry = on_a_gpu()

        def ways(query):
            plain = choose_standard("auto", entry.value, entry, 0, False)
            return choose("auto", query, mixing, entry, None, False), plain

        seen = [ways(query)]
        torch.func.vmap(lambda x: seen.append(ways(x)) or x)(query.unsqueeze(0))
    assert seen == [(sdpa.attend,) * 2, (packed_bmm.attend,) * 2]


def test_widths_that_a_gpu_computes_slowly_are_refused():
    with FakeTensorMode():
        with pytest.raises(KernelError, match=r"in torch\.bfloat16 .* multiples of 8, but these are 100 and 64"):
            choose("sdpa", *on_a_gpu(100), None, False)
        with pytest.raises(KernelError, match=r"in torch\.float32 .* multiples of 4, but these are 64 and 30"):
            choose("sdpa", *on_a_gpu(64, SINGLE, 30), None, False)
        assert choose("sdpa", *on_a_gpu(100, device="cpu"), None, False)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("keys", [5, 192])
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
def test_both_kinds_of_heads_are_offered_the_same_backends_and_never_cudnns(dtype, keys, dropout, monkeypatch):
    """cuDNN's builds a plan for every shape of a batch; there is no length at which another choice is made."""
    offered, allowed = [], torch.backends.cuda

    def attention(query, key, value, bias, dropout, scale, enable_gqa=False):
        assert (key.shape[:-1], enable_gqa) == (value.shape[:-1], False)
        switches = (allowed.flash_sdp_enabled, allowed.mem_efficient_sdp_enabled, allowed.math_sdp_enabled)
        offered.append((*(enabled() for enabled in switches), allowed.cudnn_sdp_enabled()))
        return value

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", attention)
    with FakeTensorMode():
        query, mixing, entry = on_a_gpu(dtype=dtype, keys=keys)
        heads = query.unsqueeze(1).expand(-1, 3, -1, -1)
        for given in (entry, entry._replace(content=None)):
            attend_collaborative("auto", query, mixing, given, None, 0.7, dropout, False)
        standard = KeyValue(entry.value, entry.value)
        attend_standard("auto", heads, standard, None, 0.7, dropout, False)
    assert offered == [(True, True, True, False)] * 3
    assert allowed.cudnn_sdp_enabled()  # again


def test_the_fused_way_compiles_without_a_break():
    arguments = tensors(dtype=SINGLE)
    mask = torch.zeros(3, 1, 1, 5)
    mask[0, ..., 3:] = -torch.inf
    expected = call("bmm", *arguments, mask)[0]
    compiled = torch.compile(call, backend="eager", fullgraph=True)("sdpa", *arguments, mask)[0]
    assert (compiled - expected).abs().max() < FLOAT32
    assert (compiled - call("bmm", *arguments)[0]).abs().max() > 0.1
    ours, theirs = (torch.autograd.grad(x.square().sum(), arguments) for x in (compiled, expected))
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
@pytest.mark.parametrize(("key_dim", "keys"), [(64, 33), (128, 64), (40, 192)])
@pytest.mark.parametrize("fill", [None, -torch.inf, -1e4])
def test_the_fused_way_is_at_most_twice_as_wrong_as_the_plain_one(fill, key_dim, keys, dtype, device):
    """Context, weights and all gradients, at lengths where backends of torch have been wrong."""
    given = tensors(keys, key_dim, 64, False, dtype)
    exact = [x.double().requires_grad_() for x in given]
    mask = None if fill is None else torch.zeros(3, 1, 1, keys)
    if mask is not None:
        mask[0, ..., keys // 2 :] = mask[1, ..., :3] = fill
    truth = everything("bmm", exact, mask)
    there = [x.to(device).requires_grad_() for x in given]
    moved = None if mask is None else mask.to(device)
    plain = errors(everything("bmm", there, moved), truth)
    ours = errors(everything("sdpa", there, moved), truth)
    assert all(0 <= mine <= 2 * other + 4 * torch.finfo(dtype).eps for mine, other in zip(ours, plain, strict=True))
    assert 0 < ours[0] < 0.05
    if fill == -torch.inf:
        assert errors(everything("sdpa", there, None), truth)[0] > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
def test_cuda_never_takes_the_plain_formula_in_silence(dtype, monkeypatch):
    monkeypatch.setattr(sdpa, "BACKENDS", [SDPBackend.EFFICIENT_ATTENTION])
    layer = CollaborativeAttention(512, 8, 128, content_bias=True, device="cuda", dtype=dtype)
    query = torch.randn(4, 33, 512, device="cuda", dtype=dtype, requires_grad=True)
    padding = torch.zeros(4, 33, dtype=torch.bool, device="cuda")
    padding[1, 30:] = True
    layer(query, query, query, key_padding_mask=padding, need_weights=False)[0].sum().backward()
    assert torch.isfinite(query.grad).all()

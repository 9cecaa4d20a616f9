"""What is chosen on a GPU, asked with fake tensors of one; and the fused ways, on a GPU where there is one."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

from collab_fairseq.attention import CollaborativeAttention, KeyValue
from collab_fairseq.attention.kernels import KernelError, choose, choose_standard, packed_bmm, sdpa
from tests.common import DEVICES, FLOAT32
from tests.unit.attention_cases import call, tensors
from tests.unit.test_kernels_bfloat16 import errors, everything

HALF, SINGLE = torch.bfloat16, torch.float32


def of_a_card(key_dim=64, dtype=HALF, value_dim=64, keys=5, device="cuda"):
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
        query, mixing, entry = of_a_card(key_dim, dtype)
        heads = query.unsqueeze(1).expand(-1, 3, -1, -1)
        here = of_a_card(key_dim, dtype, device="cpu")
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
        assert choose("auto", query, mixing, entry, None, weights) is expected.attend
        standard = choose_standard("auto", heads, entry, 0.1, weights)
        assert standard is (sdpa.attend_standard if expected is sdpa or key_dim == 136 else packed_bmm.attend_standard)
        assert choose("auto", *here, None, weights) is packed_bmm.attend  # few queries
        if compiled:
            assert choose("head_loop", query, mixing, entry, None, weights) is packed_bmm.attend


def test_transformations_take_the_plain_way_on_a_card_too():
    with FakeTensorMode():
        query, mixing, entry = of_a_card()

        def ways(query):
            plain = choose_standard("auto", entry.value, entry, 0, False)
            return choose("auto", query, mixing, entry, None, False), plain

        seen = [ways(query)]
        torch.func.vmap(lambda x: seen.append(ways(x)) or x)(query.unsqueeze(0))
    assert seen == [(sdpa.attend, sdpa.attend_standard), (packed_bmm.attend, packed_bmm.attend_standard)]


@pytest.mark.parametrize("kernel", ["sdpa", "sdpa_one_key"])
def test_widths_that_a_card_computes_slowly_are_refused(kernel):
    with FakeTensorMode():
        with pytest.raises(KernelError, match=r"in torch\.bfloat16 .* multiples of 8, but these are 100 and 64"):
            choose(kernel, *of_a_card(100), None, False)
        with pytest.raises(KernelError, match=r"in torch\.float32 .* multiples of 4, but these are 64 and 30"):
            choose(kernel, *of_a_card(64, SINGLE, 30), None, False)
        assert choose(kernel, *of_a_card(100, device="cpu"), None, False)


@pytest.mark.parametrize(
    ("sizes", "content", "dropout", "cudnn"),
    [
        ({}, True, 0.0, True), ({"key_dim": 128, "dtype": torch.float16}, False, 0.0, True),
        ({}, True, 0.1, False),
        ({"dtype": SINGLE}, False, 0.0, False), ({"key_dim": 136}, False, 0.0, False),
        ({"key_dim": 100}, False, 0.0, False),
        ({"keys": 192}, True, 0.0, False), ({"keys": 192}, False, 0.0, True),
    ],
)  # fmt: skip
def test_cudnn_is_offered_what_it_can_and_one_key_only_there(sizes, content, dropout, cudnn, monkeypatch):
    offered = []

    def attention(query, key, value, bias, dropout, scale, enable_gqa):
        allowed = torch.backends.cuda
        fused = allowed.cudnn_sdp_enabled(), allowed.mem_efficient_sdp_enabled(), allowed.flash_sdp_enabled()
        offered.append((*fused, allowed.math_sdp_enabled(), key.size(1), enable_gqa))
        return value

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", attention)
    with FakeTensorMode():
        query, mixing, entry = of_a_card(**sizes)
        entry = entry if content else entry._replace(content=None)
        for attend in (sdpa.attend, sdpa.attend_one_key):
            attend(query, mixing, entry, None, 0.7, dropout, False)
    own = (True, False, False, True, 1, True) if cudnn else (False, True, False, True, 3, False)
    assert offered == [(cudnn, True, False, True, 3, False), own]


def test_cudnn_is_not_offered_a_bias_that_needs_a_gradient():
    with FakeTensorMode():
        query, _, entry = of_a_card()
        for grad in (False, True):
            bias = torch.empty(3, 3, 1, 5, dtype=HALF, device="cuda", requires_grad=grad)
            assert sdpa.cudnn_can(query, entry.value, bias, 0.0) is not grad


@pytest.mark.parametrize("kernel", ["sdpa", "sdpa_one_key"])
def test_the_fused_ways_compile_without_a_break(kernel):
    arguments = tensors(dtype=SINGLE)
    mask = torch.zeros(3, 1, 1, 5)
    mask[0, ..., 3:] = -torch.inf
    expected = call("bmm", *arguments, mask)[0]
    compiled = torch.compile(call, backend="eager", fullgraph=True)(kernel, *arguments, mask)[0]
    assert (compiled - expected).abs().max() < FLOAT32
    assert (compiled - call("bmm", *arguments)[0]).abs().max() > 0.1
    ours, theirs = (torch.autograd.grad(x.square().sum(), arguments) for x in (compiled, expected))
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
@pytest.mark.parametrize(("key_dim", "keys"), [(64, 33), (128, 64), (40, 192)])
@pytest.mark.parametrize("fill", [None, -torch.inf, -1e4])
def test_fused_ways_are_at_most_twice_as_wrong_as_the_plain_one(fill, key_dim, keys, dtype, device):
    """Context, weights and all gradients, at lengths where backends of torch have been wrong."""
    given = tensors(keys, key_dim, 64, False, dtype)
    exact = [x.double().requires_grad_() for x in given]
    mask = None if fill is None else torch.zeros(3, 1, 1, keys)
    if mask is not None:
        mask[0, ..., keys // 2 :] = mask[1, ..., :3] = fill
    truth = everything("bmm", exact, mask, 0.0)
    there = [x.to(device).requires_grad_() for x in given]
    moved = None if mask is None else mask.to(device)
    plain = errors(everything("bmm", there, moved, 0.0), truth)
    for kernel in ("sdpa", "sdpa_one_key"):
        ours = errors(everything(kernel, there, moved, 0.0), truth)
        assert all(0 <= mine <= 2 * other + 4 * torch.finfo(dtype).eps for mine, other in zip(ours, plain, strict=True))
        assert 0 < ours[0] < 0.05
        if fill == -torch.inf:
            assert errors(everything(kernel, there, None, 0.0), truth)[0] > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
def test_cuda_never_takes_the_plain_formula_in_silence(dtype, monkeypatch):
    monkeypatch.setattr(sdpa, "UNEQUAL_WIDTHS", [SDPBackend.EFFICIENT_ATTENTION])
    layer = CollaborativeAttention(512, 8, 128, content_bias=True, device="cuda", dtype=dtype)
    query = torch.randn(4, 33, 512, device="cuda", dtype=dtype, requires_grad=True)
    padding = torch.zeros(4, 33, dtype=torch.bool, device="cuda")
    padding[1, 30:] = True
    layer(query, query, query, key_padding_mask=padding, need_weights=False)[0].sum().backward()
    assert torch.isfinite(query.grad).all()

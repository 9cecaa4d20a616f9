"""The choice of kernels on a GPU, tested with fake tensors, and the kernel ``sdpa``, also on a GPU if available."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from collab_fairseq.attention import CollaborativeAttention, KeyValue, kernels, transforms
from collab_fairseq.attention.kernels import AttentionError, choose, choose_standard, packed_bmm, sdpa
from tests.attention.cases import call, reference, tensors
from tests.common import DEVICES

HALF, SINGLE = torch.bfloat16, torch.float32


def results_and_gradients(kernel, inputs, mask):
    """Head outputs, weights, and the gradients of both in a fixed direction."""
    results = call(kernel, *inputs, mask, need_weights=True)
    random = torch.Generator().manual_seed(5)
    gradients = []
    for result in results:
        direction = torch.randn(result.shape, generator=random).to(result)
        for_inputs = torch.autograd.grad(result, inputs, direction, retain_graph=True, allow_unused=True)
        gradients += [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, for_inputs, strict=True)]
    return [*results, *gradients]


def relative_errors(actual, exact):
    errors = [float((a.double().cpu() - b.double()).detach().norm()) for a, b in zip(actual, exact, strict=True)]
    return [error / max(float(b.norm()), 1e-6) for error, b in zip(errors, exact, strict=True)]


def fake_inputs(key_dim=64, dtype=HALF, value_dim=64, keys=5, device="cuda"):
    """query, mixing and entry, on a GPU that need not exist under FakeTensorMode."""
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
def test_choice_depends_on_the_device_before_compilation(key_dim, dtype, weights, expected, compiled, monkeypatch):
    with FakeTensorMode():
        query, mixing, entry = fake_inputs(key_dim, dtype)
        heads = query.unsqueeze(1).expand(-1, 3, -1, -1)
        on_cpu = fake_inputs(key_dim, dtype, device="cpu")
        for module in (torch.compiler, transforms):
            monkeypatch.setattr(module, "is_compiling", lambda: compiled)
        assert choose("auto", query, mixing, entry, None, weights) is expected.attend
        standard = choose_standard("auto", heads, entry, 0.1, weights)
        assert standard is (sdpa.attend if expected is sdpa or key_dim == 136 else packed_bmm.attend)
        assert choose("auto", *on_cpu, None, weights) is packed_bmm.attend  # few queries
        if compiled:
            assert choose("head_loop", query, mixing, entry, None, weights) is packed_bmm.attend


def test_functional_transforms_use_bmm_on_a_gpu():
    with FakeTensorMode():
        query, mixing, entry = fake_inputs()

        def both(query):
            collaborative = choose("auto", query, mixing, entry, None, False)
            return collaborative, choose_standard("auto", entry.value, entry, 0, False)

        chosen = [both(query)]
        torch.func.vmap(lambda x: chosen.append(both(x)) or x)(query.unsqueeze(0))
    assert chosen == [(sdpa.attend,) * 2, (packed_bmm.attend,) * 2]


def test_rejects_sdpa_for_widths_that_are_slow_on_a_gpu():
    with FakeTensorMode():
        with pytest.raises(AttentionError, match=r"multiples of 8 .* in torch\.bfloat16; got 100 and 64"):
            choose("sdpa", *fake_inputs(100), None, False)
        with pytest.raises(AttentionError, match=r"multiples of 4 .* in torch\.float32; got 64 and 30"):
            choose("sdpa", *fake_inputs(64, SINGLE, 30), None, False)
        assert choose("sdpa", *fake_inputs(100, device="cpu"), None, False)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("keys", [5, 192])
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
def test_collaborative_and_standard_heads_may_use_the_same_backends_without_cudnn(dtype, keys, dropout, monkeypatch):
    """cuDNN builds a plan for every batch shape. The choice does not depend on the length."""
    enabled, backends = [], torch.backends.cuda

    def attention(query, key, value, bias, dropout, scale, enable_gqa=False):
        assert (key.shape[:-1], enable_gqa) == (value.shape[:-1], False)
        fused = (backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled())
        enabled.append((*fused, backends.math_sdp_enabled(), backends.cudnn_sdp_enabled()))
        return value

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", attention)
    with FakeTensorMode():
        query, mixing, entry = fake_inputs(dtype=dtype, keys=keys)
        heads = query.unsqueeze(1).expand(-1, 3, -1, -1)
        for content in (entry.content, None):
            kernels.attend_collaborative(
                "auto", query, mixing, entry._replace(content=content), None, 0.7, dropout, False
            )
        standard = KeyValue(entry.value, entry.value)
        choose_standard("auto", heads, standard, dropout, False)(heads, standard, None, dropout, False)
    assert enabled == [(True, True, True, False)] * 3
    assert backends.cudnn_sdp_enabled()  # restored


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
@pytest.mark.parametrize(("key_dim", "keys"), [(64, 33), (128, 64), (40, 192)])
@pytest.mark.parametrize("fill", [None, -torch.inf, -1e4])
def test_error_of_sdpa_is_at_most_twice_that_of_bmm(fill, key_dim, keys, dtype, device):
    """Head outputs, weights and all gradients, at lengths at which torch's backends have been wrong."""
    inputs = tensors(keys, key_dim, 64, False, dtype)
    mask = None if fill is None else torch.zeros(3, 1, 1, keys)
    if mask is not None:
        mask[0, ..., keys // 2 :] = mask[1, ..., :3] = fill
    exact = results_and_gradients("bmm", [x.double().requires_grad_() for x in inputs], mask)
    inputs = [x.to(device).requires_grad_() for x in inputs]
    mask = None if mask is None else mask.to(device)
    plain = relative_errors(results_and_gradients("bmm", inputs, mask), exact)
    fused = relative_errors(results_and_gradients("sdpa", inputs, mask), exact)
    slack = 4 * torch.finfo(dtype).eps
    assert all(0 <= error <= 2 * plain_error + slack for error, plain_error in zip(fused, plain, strict=True))
    assert 0 < fused[0] < 0.05
    if fill == -torch.inf:
        assert relative_errors(results_and_gradients("sdpa", inputs, None), exact)[0] > 0.1  # control


@pytest.mark.parametrize("padding", [None, torch.tensor([[False, True], [False, False]])])
def test_bias_has_the_layout_that_the_memory_efficient_backend_requires(padding, monkeypatch):
    strides = []

    def attention(query, key, value, bias, *args, **kwargs):
        strides.append(bias.stride(-1))
        return value.expand(-1, query.size(1), -1, -1)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", attention)
    layer = CollaborativeAttention(16, 4, 8, content_bias=True, kernel="sdpa")
    query = torch.ones(2, 2, 16)
    assert layer.project(query, query).content.stride(-1) == 4  # control
    layer(query, query, query, key_padding_mask=padding, need_weights=False)
    assert strides == [1]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 3), (HALF, 3), (SINGLE, 16)])
def test_memory_efficient_backend_computes_the_layer_on_cuda(dtype, bound):
    """Output and gradients against the float64 reference, in roundings; on a CPU at most 0.7, in float32 4.5."""
    torch.manual_seed(0)
    layer = CollaborativeAttention(512, 8, 128, content_bias=True, kernel="sdpa")
    torch.nn.init.normal_(layer.content_bias, std=0.1)  # zero by default
    layer, names = layer.to(dtype), [name for name, _ in layer.named_parameters() if name != "k_proj.bias"]
    inputs, direction = (torch.randn(4, 33, 512).to(dtype) for _ in range(2))
    padding = torch.zeros(4, 33, dtype=torch.bool)
    padding[1, 10:] = padding[2, :5] = True

    def results(output, layer, query):
        variables = [query, *map(layer.get_parameter, names)]
        return [output, *torch.autograd.grad(output, variables, direction.to(output))]

    exact_layer, query = copy.deepcopy(layer).double(), inputs.double().requires_grad_()
    output = reference(exact_layer, query, query, query, {"key_padding_mask": padding}).output
    exact = [x.detach() for x in results(output, exact_layer, query)]
    layer, query = layer.cuda(), inputs.cuda().requires_grad_()
    for mask in (padding.cuda(), None):
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            output = layer(query, query, query, key_padding_mask=mask, need_weights=False)[0]
        errors = [error / torch.finfo(dtype).eps for error in relative_errors(results(output, layer, query), exact)]
        assert 0 < max(errors) < bound if mask is not None else errors[0] > 10 * bound  # control

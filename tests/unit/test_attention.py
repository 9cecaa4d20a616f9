"""Attention layers, compared with the float64 reference."""

import copy

import pytest
import torch

from collab_fairseq.attention import CollaborativeAttention, LatentAttention
from collab_fairseq.attention.masks import AttentionMask, combine
from tests.common import DEVICES, FLOAT64
from tests.unit.attention_cases import ATTENTION_TYPES, LAYERS, E, H, T, build, inputs, masks, reference


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_but_the_key_bias_changes_the_output(name):
    """Control for all comparisons with the reference."""
    layer = build(name, "cross")
    query, key, value = inputs("cross")
    expected = reference(layer, query, key, value, {}).output
    for parameter_name, parameter in layer.named_parameters():
        changed = copy.deepcopy(layer)
        with torch.no_grad():
            changed.get_parameter(parameter_name).add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype))
        error = (changed(query, key, value)[0] - expected).abs().max()
        assert error < FLOAT64 if parameter_name == "k_proj.bias" else error > 1e-4


@pytest.mark.parametrize("name", ATTENTION_TYPES)
@pytest.mark.parametrize("mask", ["causal-padding", "empty-rows"])
def test_gradcheck(name, mask):
    layer = build(name)
    query, key = (x[:2, :3].detach().clone().requires_grad_() for x in inputs("cross")[:2])
    arguments = {k: v[:2, :3] if torch.is_tensor(v) else v for k, v in masks(mask, 5, layer.num_heads).items()}
    names = [name for name, _ in layer.named_parameters()]

    def function(query, key, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, named, (query, key, key), {"need_weights": True, **arguments})

    assert torch.autograd.gradcheck(function, (query, key, *layer.parameters()), atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "padding-additive"])
@pytest.mark.parametrize("name", [*ATTENTION_TYPES, "collaborative", "collaborative-wide"])
def test_error_is_a_few_roundings(name, mask, dtype, device):
    """The reference gets the same rounded parameters and inputs, and uses them in float64."""
    layer = build(name, dtype=dtype)
    query, key, value = inputs("self", dtype)
    arguments = masks(mask, T, layer.num_heads)
    exact = reference(layer, query, key, value, arguments).output
    layer, query = layer.to(device), query.to(device)
    arguments = {k: v.to(device) if torch.is_tensor(v) else v for k, v in arguments.items()}
    output = layer(query, query, query, **arguments)[0].double().cpu()
    error = (output - exact).abs().max() / (torch.finfo(dtype).eps * exact.abs().max())
    assert 0 < error <= (2 if dtype.itemsize == 2 else 4)  # on a CPU, at most 1.4 and 2.7


def test_finite_fill_values_are_added_to_the_scores():
    """If all scores are shifted by −1e4, fairseq's fill value, the output stays the same instead of becoming zero."""
    layer = build("collaborative")
    query, key, value = inputs("self")
    plain = layer(query, key, value)[0]
    filled = layer(query, key, value, attn_mask=torch.full((T, T), -1e4, dtype=torch.float64))[0]
    assert (plain - filled).abs().max() < 1e-10


@pytest.mark.parametrize(("name", "absorbed"), [("latent", True), ("latent-wide", False)])
def test_latent_attention_absorbs_weights_only_if_cheaper(name, absorbed):
    layer = build(name, "cross")
    query, key, value = inputs("cross")
    assert layer._absorbs(T, key.size(1), dropout=0.0) is absorbed
    assert not layer._absorbs(T, key.size(1), dropout=0.1)
    outputs = [layer.train(training)(query, key, value) for training in (False, True)]
    assert all((one - other).abs().max() < FLOAT64 for one, other in zip(*outputs, strict=True))
    assert not layer._absorbs(T, key.size(1), dropout=0.0)  # in training


class Doubled(torch.nn.Linear):
    """As an adapter that changes the output of a projection."""

    def forward(self, inputs):
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    ("attention_type", "name"), [("latent", "k_proj"), ("latent", "v_proj"), ("collaborative", "v_proj")]
)
@pytest.mark.parametrize("change", ["subclass", "hook", "pre-hook", "none"])
def test_changed_projections_are_called(attention_type, name, change):
    """Their weights are not fused, nor absorbed in evaluation. Training never absorbs weights."""
    layer = build(attention_type, "cross")
    query, key, value = inputs("cross")
    before = layer(query, key, value)[0]
    projection = layer.get_submodule(name)
    if change == "subclass":
        projection.__class__ = Doubled
    elif change == "hook":
        projection.register_forward_hook(lambda _, __, output: 2 * output)
    elif change == "pre-hook":
        projection.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    after, in_training = (layer.train(training)(query, key, value)[0] for training in (False, True))
    assert (after - in_training).abs().max() < FLOAT64
    assert bool((after - before).abs().max() > 1e-2) is (change != "none")


@pytest.mark.parametrize("tracing", [False, True])
@pytest.mark.parametrize("mask", ["padding", "padding-additive", "empty-rows"])
def test_combined_mask_has_the_effect_of_its_padding_mask(mask, tracing, monkeypatch):
    """Also after rows have been selected, and when queries that see no key are not looked for."""
    monkeypatch.setattr("collab_fairseq.attention.masks.is_tracing", lambda: tracing)
    layer = build("collaborative", "cross")
    query, key, value = inputs("cross")
    padding = masks(mask, key.size(1), H)["key_padding_mask"]
    combined = combine(padding, None, False, (len(key), H, 1, key.size(1)), like=query)
    expected = layer(query, key, value, padding)[0]
    assert torch.equal(layer(query, key, value, combined)[0], expected)
    rows = torch.tensor([2, 0])
    selected = layer(query[rows], key[rows], value[rows], combined.select(rows))[0]
    assert (selected - expected[rows]).abs().max() < FLOAT64
    assert (layer(query, key, value)[0] - expected).abs().max() > 1e-2  # control


@pytest.mark.parametrize("name", ["standard", "latent"])
def test_backward_hooks_of_projections_are_called(name):
    layer, query = build(name), inputs("self")[0].requires_grad_()
    called = []
    for projection in (layer.k_proj, layer.v_proj):
        projection.register_full_backward_hook(lambda projection, *_: called.append(projection))
    layer(query, query, query)[0].sum().backward()
    assert {layer.k_proj, layer.v_proj} == {*called}


def test_dropout_keeps_the_expected_output():
    layer = build("collaborative", dropout=0.4)
    query, key, value = inputs("self")
    expected = layer(query, key, value)[0]
    layer.train()
    torch.manual_seed(0)
    samples = torch.stack([layer(query, key, value)[0] for _ in range(4000)])
    error, spread = (samples.mean(0) - expected).abs().max(), samples.std(0).max()
    assert error < 5 * spread / 4000**0.5
    assert spread > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LatentAttention(E, H, kv_latent_dim=4, kdim=7), "kdim and vdim must be equal .* got 7 and 12"),
        (lambda: build("latent")(*(x.clone() for x in inputs("self"))), "value must be the same tensor as key"),
        (lambda: CollaborativeAttention(E, H, 5, mixing=torch.ones(3, 4)), r"\(3, 5\); got \(3, 4\)"),
        (lambda: CollaborativeAttention(E, H, 5, kernel="fast"), "bmm, head_loop, sdpa; got 'fast'"),
        (lambda: build("collaborative")(*(x[0] for x in inputs("self"))), r"\(N, T, 12\).*; got \[4, 12\]"),
        (lambda: run_with(attn_mask=torch.zeros(T, 7)), r"attn_mask must have shape \(4, 5\); got \[4, 7\]"),
        (lambda: run_with(attn_mask=torch.zeros(T, 5).int()), "boolean or floating-point; got torch.int32"),
        (lambda: run_with(head_multiplier=torch.ones(4)), r"\(3\), \(3, 3\) or \(3, 4, 3\); got \[4\]"),
        (lambda: run_with(key_padding_mask=AttentionMask(torch.zeros(3, 1, 1, 5), None), is_causal=True), "only mask"),
        (lambda: run_with(is_causal=True), "as many queries as keys; got 4 and 5"),
        (lambda: attend_with_beams(build("standard")), "beams .* must not have attn_mask .* each of 4 queries"),
    ],
)
def test_error_names_expected_and_given_values(call, message):
    """tests/fairseq/test_model_settings.py tests the errors of arguments that are flags."""
    with pytest.raises(ValueError, match=message):
        call()


def attend_with_beams(layer):
    query, key, value = inputs("self")
    layer.attend(query.repeat_interleave(2, 0), layer.project(key, value), attn_mask=torch.ones(T, T))


def run_with(**arguments):
    return build("collaborative", "cross")(*inputs("cross"), **arguments)

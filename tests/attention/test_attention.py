"""Attention layers, compared with the float64 reference."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from collab_fairseq.attention import (
    CollaborativeAttention,
    GroupedAttention,
    LatentAttention,
    StandardAttention,
    attention_types,
)
from collab_fairseq.attention.attention_types import layer_at
from collab_fairseq.attention.masks import AttentionMask, combine
from tests.attention.cases import ATTENTION_TYPES, LAYERS, E, H, T, build, inputs, masks, reference
from tests.common import DEVICES, FLOAT64


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

    assert torch.autograd.gradcheck(function, (query, key, *layer.parameters()), atol=1e-6, fast_mode=True)


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


def test_finite_fill_values_are_added_to_the_logits():
    """If all logits are shifted by −1e4, fairseq's fill value, the output stays the same instead of becoming zero."""
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


class Doubling(torch.Tensor):
    """As the weights of quantisation: only ``linear`` itself knows what they mean."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return (2 * result).as_subclass(torch.Tensor) if function is nn.functional.linear else result


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight


def double_in_every_call(projection):
    """A global hook."""
    return nn.modules.module.register_module_forward_hook(
        lambda module, _, output: 2 * output if module is projection else None
    )


def replace_forward(projection):
    """As LoRA does in scripts that add adapters to a finished model."""
    original = projection.forward
    projection.forward = lambda inputs: 2 * original(inputs)


def replace_weight(projection):
    projection.bias = None
    projection.weight = nn.Parameter(projection.weight.detach().as_subclass(Doubling))


#: ways to double the output of a projection
CHANGES = {
    "none": lambda projection: None,
    "subclass": lambda projection: setattr(projection, "__class__", Doubled),
    "hook": lambda projection: projection.register_forward_hook(lambda _, __, output: 2 * output),
    "pre-hook": lambda projection: projection.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
    "global-hook": double_in_every_call,
    "forward": replace_forward,
    "weight": replace_weight,
    "parametrization": lambda projection: parametrize.register_parametrization(projection, "weight", Double()),
    "class": lambda projection: None,
}


@pytest.mark.parametrize(
    ("attention_type", "name"),
    [("latent", "k_proj"), ("latent", "v_proj"), ("collaborative", "v_proj"), ("standard", "q_proj")],
)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_projections_are_called(attention_type, name, change, monkeypatch):
    """Their weights are neither fused in training nor absorbed in evaluation; compared with doubled weights."""
    layer = build(attention_type)
    projection = layer.get_submodule(name)
    with torch.no_grad():
        projection.bias.zero_()
    query = inputs("self")[0].requires_grad_()
    before = layer(query, query, query)[0]
    doubled = copy.deepcopy(layer)
    with torch.no_grad():
        doubled.get_submodule(name).weight.mul_(2)
    expected = doubled(query, query, query)[0]
    handle = CHANGES[change](projection)
    if change == "class":
        forward = nn.Linear.forward
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(self, x) * (1 + (self is projection)))
    for training in (False, True):
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                after = layer.train(training)(query, query, query)[0]
            assert (after - (before if change == "none" else expected)).abs().max() < FLOAT64
    if change == "global-hook":
        handle.remove()
    assert (expected - before).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["collaborative", "standard", "latent"])
def test_adapters_in_all_projections_get_gradients(name):
    """LoRA, which replaces ``forward``; compared with a layer whose weights contain the products."""
    layer, query = build(name), inputs("self")[0]
    merged, factors = copy.deepcopy(layer), []
    for part in ("q_proj", "k_proj", "v_proj"):
        projection = layer.get_submodule(part)
        up, down = (torch.randn(size, 2, dtype=torch.float64).requires_grad_() for size in projection.weight.shape)
        projection.forward = lambda x, call=projection.forward, up=up, down=down: call(x) + x @ down @ up.T
        merged_projection = merged.get_submodule(part)
        weight = merged_projection.weight.detach() + up @ down.T
        del merged_projection.weight
        merged_projection.weight = weight
        factors += [up, down]
    for training in (False, True):
        actual, correct = (each.train(training)(query, query, query)[0] for each in (layer, merged))
        assert (actual - correct).abs().max() < FLOAT64
        gradients, expected = (
            torch.autograd.grad(y.square().sum(), factors, retain_graph=True) for y in (actual, correct)
        )
        for one, other in zip(gradients, expected, strict=True):
            size = other.abs().max()
            assert size > 1e-2
            assert (one - other).abs().max() < 1e-12 * size


def saved_to_a_file(state, tmp_path):
    torch.save(state, tmp_path / "state.pt")
    return torch.load(tmp_path / "state.pt", weights_only=True)


#: what users make of a state dict, and the rounding error
STATES = {
    "same": (lambda state, _: state, FLOAT64),
    "file": (saved_to_a_file, FLOAT64),
    "average": (lambda state, _: {name: (0.3 * x + 0.3 * x + 0.4 * x) for name, x in state.items()}, FLOAT64),
    "half": (lambda state, _: {name: x.half() for name, x in state.items()}, 0.02),
    "bfloat16": (lambda state, _: {name: x.bfloat16() for name, x in state.items()}, 0.1),
}


@pytest.mark.parametrize("form", STATES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("collaborative-content", {"mixing_lr_multiplier": 8.0}),
        ("collaborative", {"mixing_lr_multiplier": 0.3, "scale": 0.7}),
        ("standard", {"scale": 0.31}),
        ("grouped", {"scale": 0.31}),
        ("latent", {"scale": 0.31}),
        ("collaborative", {}),
    ],
)
def test_a_state_dict_gives_the_same_function_in_a_layer_with_another_scale(name, options, form, tmp_path):
    """Compared with the reference, with the scale of the layer that was saved."""
    query, key, value = inputs("cross")
    change, tolerance = STATES[form]
    plain, scaled = build(name, "cross"), build(name, "cross", **options)
    for saved, other in ((plain, scaled), (scaled, plain), (scaled, scaled)):
        expected = reference(saved, query, key, value, {}).output
        layer = copy.deepcopy(other)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        layer.load_state_dict(change(saved.state_dict(), tmp_path), strict=True)
        assert (layer(query, key, value)[0] - expected).abs().max() < tolerance
        # the entry is not a parameter: assigned, and with torch.func
        layer.load_state_dict(saved.state_dict(), assign=True)
        assert (layer(query, key, value)[0] - expected).abs().max() < FLOAT64
        called = torch.func.functional_call(saved, saved.state_dict(), (query, key, value))[0]
        assert (called - expected).abs().max() < FLOAT64
        # state dicts of former versions do not have it
        former = {name: x for name, x in saved.state_dict().items() if name != "_extra_state"}
        layer.load_state_dict(former, strict=True)
        assert all(torch.equal(tensor, layer.get_parameter(parameter)) for parameter, tensor in former.items())
        same = (layer(query, key, value)[0] - expected).abs().max() < FLOAT64
        assert same == (saved.scale == other.scale)  # control


def test_a_state_dict_in_a_layer_of_the_same_scale_is_loaded_bit_for_bit():
    """Also after a detour through half precision, which rounds the scale."""
    layer = build("collaborative-content", mixing_lr_multiplier=0.3, dtype=torch.float32)
    state = {name: x.half().float() for name, x in layer.state_dict().items()}
    assert state["_extra_state"][1] != layer.scale
    layer.load_state_dict(state)
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, state[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.3, 0.9, 0.99])
def test_a_moving_average_of_state_dicts_is_loaded(decay, dtype):
    """Averaging rounds the number of heads, too."""
    layer = build("collaborative-content", dtype=torch.float32)
    state = {name: x.to(dtype) for name, x in layer.state_dict().items()}
    average = dict(state)
    for _ in range(50):
        average = {name: decay * average[name] + (1 - decay) * state[name] for name in state}
    query, key, value = inputs("self", torch.float32)
    expected = layer(query, key, value)[0]
    layer.load_state_dict(average)
    assert layer.num_heads == H
    assert (layer(query, key, value)[0] - expected).abs().max() < (1e-4 if dtype == torch.float32 else 0.3)


@pytest.mark.parametrize("part", ["scaled", "out_proj"])
@pytest.mark.parametrize("name", ["collaborative", "standard"])
def test_a_state_dict_with_parametrised_weights_keeps_the_function_or_is_rejected(name, part):
    """The scale cannot be multiplied into them; compared with the layer that was saved."""
    query, key, value = inputs("self")
    layer, other = build(name), build(name, scale=0.31)
    for each in (layer, other):
        module = each.out_proj if part == "out_proj" else each if name == "collaborative" else each.q_proj
        nn.utils.parametrizations.weight_norm(module, "mixing" if module is each else "weight")
    expected, state = layer(query, key, value)[0], copy.deepcopy(layer.state_dict())
    if part == "scaled":
        with pytest.raises(RuntimeError, match=r"scale must be 0\.5, as in the state dict.*; got 0\.31"):
            other.load_state_dict(state)
        other = layer
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.fill_(1.0)
    other.load_state_dict(state)
    assert (other(query, key, value)[0] - expected).abs().max() < FLOAT64


@pytest.mark.parametrize("name", ["standard", "latent-wide", "grouped"])
def test_a_state_dict_of_another_number_of_heads_is_rejected(name):
    """The shapes of standard heads do not tell it."""
    options = {"kv_heads": 1} if name == "grouped" else {}
    layer = build(name, num_heads=4, **({"kv_heads": 2} if name == "grouped" else {}))
    other = build(name, num_heads=2, **options)
    assert {k: p.shape for k, p in layer.named_parameters()} == {k: p.shape for k, p in other.named_parameters()}
    encoder = nn.Sequential(nn.Linear(2, 2), other)
    state = {**nn.Linear(2, 2).state_dict(prefix="0."), **layer.state_dict(prefix="1.")}
    with pytest.raises(RuntimeError, match=r"1\.num_heads must be 4, as in the state dict; got 2"):
        encoder.load_state_dict(state)


@pytest.mark.parametrize("name", ["collaborative", "standard", "latent"])
def test_plain_projections_of_one_input_are_fused(name):
    """Control for the tests above: in training, one product computes them."""
    layer, query, called = build(name), inputs("self")[0], []
    original = nn.functional.linear
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", lambda *args: called.append(args) or original(*args))
        layer.train()(query, query, query)
    assert len(called) == (3 if name == "latent" else 2)


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


@pytest.mark.parametrize(("off", "on"), [(False, True), (None, 0), (None, "a")])
def test_a_setting_chooses_its_attention_type_unless_it_is_none_or_false(off, on, monkeypatch):
    """For the model, and for a single layer, whose setting has precedence; of standard heads only."""

    class New(StandardAttention):
        type_name, chosen_by = "new", "argument"
        settings = {"argument": "new_setting"}  # noqa: RUF012

    monkeypatch.setattr(attention_types, "ATTENTION_TYPES", [*attention_types.ATTENTION_TYPES, New])
    model = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("embed_dim", "attention_heads")}
    for in_model, in_layer, expected in (
        ({}, {}, StandardAttention),
        ({"new_setting": off}, {}, StandardAttention),
        ({"new_setting": on}, {}, New),
        ({"new_setting": off}, {"argument": on}, New),
        ({"new_setting": on}, {"argument": off}, StandardAttention),
        ({"new_setting": on, "collaborative_heads": "cross"}, {}, CollaborativeAttention),
        ({"kv_heads": 1}, {}, GroupedAttention),
        ({"kv_heads": 1}, {"argument": on}, New),
    ):
        assert layer_at({**model, **in_model}, "cross", in_layer)[0] is expected


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
    """tests/models/test_settings.py tests the errors of arguments that are flags."""
    with pytest.raises(ValueError, match=message):
        call()


def attend_with_beams(layer):
    query, key, value = inputs("self")
    layer.attend(query.repeat_interleave(2, 0), layer.project(key, value), attn_mask=torch.ones(T, T))


def run_with(**arguments):
    return build("collaborative", "cross")(*inputs("cross"), **arguments)

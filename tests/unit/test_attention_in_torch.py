"""The layers as a replacement of ``torch.nn.MultiheadAttention``: equal results, torch's encoder, and compilation."""

import inspect
from functools import partial

import pytest
import torch
from torch import nn

from collab_fairseq.attention import CollaborativeAttention, GroupedAttention, LatentAttention, StandardAttention
from tests.common import FLOAT64
from tests.unit.attention_cases import ATTENTION_TYPES, E, H, N, T, build, inputs, leaves, masks

SHARED_VALUES = partial(CollaborativeAttention, value_heads=1)
MULTI_QUERY = partial(GroupedAttention, kv_heads=1)
LATENT = partial(LatentAttention, kv_latent_dim=4)


@pytest.mark.parametrize("cls", [CollaborativeAttention, StandardAttention, GroupedAttention, LatentAttention])
def test_parameters_have_the_order_of_torchs(cls):
    theirs, ours = (list(inspect.signature(each.forward).parameters) for each in (nn.MultiheadAttention, cls))
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("kdim", [None, 7])
@pytest.mark.parametrize(("cls", "options"), [(CollaborativeAttention, {"mixing": "blocks"}), (StandardAttention, {})])
def test_blocks_at_full_key_dimension_equal_torchs_multihead_attention(cls, options, kdim):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, kdim=kdim, vdim=kdim, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = cls(E, H, kdim=kdim, vdim=kdim, dtype=torch.float64, **options)
    separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    weights = separate if theirs.in_proj_weight is None else theirs.in_proj_weight.chunk(3)
    with torch.no_grad():
        for part, weight, bias in zip("qkv", weights, theirs.in_proj_bias.chunk(3), strict=True):
            getattr(ours, f"{part}_proj").weight.copy_(weight)
            getattr(ours, f"{part}_proj").bias.copy_(bias)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    query = torch.randn(N, T, E, dtype=torch.float64)
    memory = torch.randn(N, 5, kdim or E, dtype=torch.float64)
    for mask in ("none", "padding", "boolean", "additive", "per-head"):
        arguments = {k: v.double() if v.is_floating_point() else v for k, v in masks(mask, 5, H).items()}
        for average in (True, False):
            expected = theirs(query, memory, memory, **arguments, average_attn_weights=average)
            actual = ours(query, memory, memory, **arguments, average_attn_weights=average)
            assert (actual[0] - expected[0]).abs().max() < FLOAT64
            assert (actual[1] - expected[1]).abs().max() < FLOAT64


def encoder_layer(layer, x, arguments):
    """A post-norm layer of torch's encoder, step by step."""
    x = layer.norm1(x + layer.self_attn(x, x, x, need_weights=False, **arguments)[0])
    return layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))


@pytest.mark.parametrize("cls", [CollaborativeAttention, SHARED_VALUES, StandardAttention, MULTI_QUERY, LATENT])
@pytest.mark.parametrize("replace", ["before", "after"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_torchs_encoder_calls_the_layers(cls, replace):
    """Attention is replaced before or after the encoder copies its layers. In evaluation, torch has a fast path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, 2, 20, dropout=0.0, batch_first=True, dtype=torch.float64)
    if replace == "before":
        layer.self_attn = cls(E, 2, 6, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2)
    if replace == "after":
        for layer in encoder.layers:
            layer.self_attn = cls(E, 2, 6, dtype=torch.float64)
    x = inputs("self")[0]
    padding = masks("padding", T, H)["key_padding_mask"]
    padding[1] = padding[0]  # torch's nested tensors need padding on the right
    future = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    calls = (
        ({}, {}),
        ({"src_key_padding_mask": padding}, {"key_padding_mask": padding}),
        ({"mask": future, "is_causal": True}, {"is_causal": True}),
    )
    for encoder_arguments, layer_arguments in calls:
        expected = x
        for layer in encoder.layers:
            expected = encoder_layer(layer, expected, layer_arguments)
        for training in (True, False):
            for gradients in (True, False):
                with torch.set_grad_enabled(gradients):
                    actual = encoder.train(training)(x, **encoder_arguments)
                assert (actual - expected).abs().max() < FLOAT64


@pytest.mark.parametrize(("rows", "query_len", "key_len"), [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize(
    ("cls", "kernel"),
    [(cls, kernel) for kernel in CollaborativeAttention.kernels for cls in (CollaborativeAttention, SHARED_VALUES)]
    + [(cls, kernel) for kernel in StandardAttention.kernels for cls in (StandardAttention, MULTI_QUERY, LATENT)],
)
def test_empty_inputs_give_the_same_as_in_torch(cls, kernel, rows, query_len, key_len):
    """Without keys the output is the output bias; without sentences or queries it is empty."""
    theirs = nn.MultiheadAttention(E, H, batch_first=True)
    nn.init.normal_(theirs.out_proj.bias)
    ours = cls(E, H, 6, kernel=kernel)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    query, memory = (torch.randn(rows, length, E, requires_grad=True) for length in (query_len, key_len))
    padding, hidden = (torch.zeros(size, dtype=torch.bool) for size in ((rows, key_len), (query_len, key_len)))
    for arguments in ({}, {"key_padding_mask": padding}, {"attn_mask": hidden}, {"average_attn_weights": False}):
        expected = theirs(query, memory, memory, **arguments)
        actual = ours(query, memory, memory, **arguments)
        torch.testing.assert_close(actual, expected)
        assert ours(query, memory, memory, need_weights=False, **arguments)[0].equal(actual[0])
        with torch.no_grad():
            assert ours(query, memory, memory, **arguments)[0].equal(actual[0])
        gradients = torch.autograd.grad(actual[0].sum(), [query, memory, *ours.parameters()], allow_unused=True)
        assert all(g is None or torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize(
    ("name", "kernel"), [*((name, "auto") for name in ATTENTION_TYPES), ("collaborative-content", "sdpa")]
)
def test_compiled_layer_gives_the_same_without_graph_breaks(name, kernel):
    layer = build(name, "cross", kernel=kernel)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    query, key, value = leaves("cross")
    arguments = masks("padding", 5, layer.num_heads)
    actual, expected = compiled(query, key, value, **arguments)[0], layer(query, key, value, **arguments)[0]
    assert (actual - expected).abs().max() < FLOAT64
    gradients = [torch.autograd.grad(output.square().sum(), (query, key, value)) for output in (actual, expected)]
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 1e-11

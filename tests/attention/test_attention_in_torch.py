"""The layers as a replacement of ``torch.nn.MultiheadAttention``: equal results, torch's encoder, and compilation."""

import inspect
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.fx.experimental.proxy_tensor import make_fx

from collab_fairseq.attention import CollaborativeAttention, GroupedAttention, LatentAttention, StandardAttention
from tests.attention.cases import ATTENTION_TYPES, E, H, N, T, build, inputs, leaves, masks, reference
from tests.common import FLOAT64

SHARED_VALUES = partial(CollaborativeAttention, value_heads=1)
MULTI_QUERY = partial(GroupedAttention, kv_heads=1)
LATENT = partial(LatentAttention, kv_latent_dim=4)


@pytest.mark.parametrize("cls", [CollaborativeAttention, StandardAttention, GroupedAttention, LatentAttention])
def test_parameters_have_the_order_of_torchs(cls):
    theirs, ours = (list(inspect.signature(each.forward).parameters) for each in (nn.MultiheadAttention, cls))
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("cls", [CollaborativeAttention, StandardAttention])
def test_signature_has_the_arguments_of_torchs_layer(cls):
    theirs, ours = (inspect.signature(each).parameters for each in (nn.MultiheadAttention, cls))
    assert set(theirs) <= set(ours)
    assert list(ours)[:3] == ["embed_dim", "num_heads", "key_dim"]
    assert {parameter.kind for parameter in list(ours.values())[3:]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("cls", [MULTI_QUERY, LATENT])
@pytest.mark.parametrize("name", ["value_heads", "key_heads"])
def test_groups_that_the_type_determines_are_no_arguments(cls, name):
    with pytest.raises(TypeError, match=name):
        cls(E, H, **{name: 1})


@pytest.mark.parametrize("cls", [CollaborativeAttention, SHARED_VALUES, StandardAttention, MULTI_QUERY, LATENT])
def test_arguments_of_torchs_layer_are_accepted_or_rejected_by_name(cls):
    """In a script that calls torch's layer, only the class changes."""
    options = {"dropout": 0.1, "bias": False, "add_bias_kv": False, "add_zero_attn": False, "kdim": 7, "vdim": 7}
    options.update(batch_first=True, device="cpu", dtype=torch.float64)
    memory = torch.randn(N, 5, 7, dtype=torch.float64)
    query = torch.randn(N, T, E, dtype=torch.float64)
    shapes = [[x.shape for x in each(E, H, **options)(query, memory, memory)] for each in (nn.MultiheadAttention, cls)]
    assert shapes[0] == shapes[1]
    for arguments, named, message in (
        ((), {"batch_first": False}, "batch_first must be True; got False"),
        ((), {"add_bias_kv": True}, "add_bias_kv must be False; got True"),
        ((), {"add_zero_attn": True}, "add_zero_attn must be False; got True"),
        ((0.1,), {}, r"key_dim must be an integer; got 0\.1; dropout is a named argument: dropout=0\.1"),
        ((0.1, True), {}, "takes from 3 to 4 positional arguments"),
        ((None, 7), {}, "takes from 3 to 4 positional arguments"),
        ((), {"droput": 0.1}, "unexpected keyword argument 'droput'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            cls(E, H, *arguments, **named)


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


@pytest.fixture
def one_process(tmp_path):
    """A device mesh of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


INITIAL = [
    partial(CollaborativeAttention, E, H, 5, content_bias=True),
    partial(CollaborativeAttention, E, H, 5, mixing="blocks", mixing_lr_multiplier=8.0),
    partial(CollaborativeAttention, E, H, 5, mixing=torch.arange(15.0).view(3, 5)),
    partial(StandardAttention, E, H, query_bias=False),
    partial(GroupedAttention, E, H, kv_heads=1),
    partial(LatentAttention, E, H, kv_latent_dim=4),
]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.filterwarnings("ignore:DTensor random operators")
def test_reset_parameters_after_the_meta_device_gives_a_new_layer(sharded, one_process):
    """As large models start, also sharded with FSDP2; and so it does for a trained layer."""
    for build_layer in INITIAL:
        torch.manual_seed(3)
        new = build_layer()
        with torch.device("meta"):
            layer = build_layer()
        if sharded:
            fully_shard(layer, mesh=one_process)
        layer.to_empty(device="cpu")
        for seed in (3, 4):
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.fill_(float("nan"))
            torch.manual_seed(seed)
            layer.reset_parameters()
            parameters = {name: p.full_tensor() if sharded else p for name, p in layer.named_parameters()}
            same = [name for name, p in new.named_parameters() if torch.equal(parameters[name], p)]
            if seed == 3:
                assert same == [name for name, _ in new.named_parameters()]
        # control: what does not depend on the seed
        assert set(same) <= {"out_proj.bias", "content_bias", "mixing"}
        x = torch.randn(2, T, E)
        assert torch.isfinite(layer(x, x, x)[0]).all()


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


class UserBlock(nn.Module):
    """A user's module with an attention layer."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.out = nn.Linear(E, E, dtype=torch.float64)

    def forward(self, x, memory, padding):
        output, weights = self.attention(x, memory, memory, padding, average_attn_weights=False)
        return self.out(x + torch.relu(output)), weights


class PathTracer(torch.fx.Tracer):
    """Names nodes by their module, as torchvision's feature extraction does."""

    def __init__(self):
        super().__init__()
        self.paths = {}

    def call_module(self, m, forward, args, kwargs):
        self.paths[m] = self.path_of_module(m)
        return super().call_module(m, forward, args, kwargs)


def fx_nodes(module):
    tracer = PathTracer()
    nodes = [(node.op, str(node.target)) for node in tracer.trace(module).nodes]
    return nodes, list(tracer.paths.values())


@pytest.mark.parametrize("cls", [CollaborativeAttention, SHARED_VALUES, StandardAttention, MULTI_QUERY, LATENT])
def test_fx_traces_modules_with_the_layer_as_with_torchs(cls):
    torch.manual_seed(0)
    block = UserBlock(cls(E, H, 6, dropout=0.5, dtype=torch.float64))
    block.attention.register_forward_hook(lambda layer, inputs, output: (output[0] * 3, output[1]))
    assert fx_nodes(block) == fx_nodes(UserBlock(nn.MultiheadAttention(E, H, batch_first=True)))
    traced = torch.fx.symbolic_trace(block)
    assert traced.attention is block.attention
    for training, site in ((True, "cross"), (False, "cross"), (False, "self")):
        query, memory, _ = inputs(site)
        padding = masks("padding", memory.size(1), H)["key_padding_mask"]
        results = []
        for module in (block, traced):
            torch.manual_seed(1)
            output, weights = module.train(training)(query, memory, padding)
            results.append([output, weights, *torch.autograd.grad(output.square().sum(), list(block.parameters()))])
        assert all(map(torch.equal, *results))
    # control: dropout is active in training
    first, second = (block.train()(query, memory, padding)[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("name", "kernel", "need_weights", "strict"),
    [
        *((name, "auto", False, strict) for name in ATTENTION_TYPES for strict in (False, True)),
        *(("grouped", "sdpa", False, strict) for strict in (False, True)),
        *((name, "auto", True, False) for name in ("collaborative-content", "grouped")),
    ],
)
def test_exported_program_takes_any_number_of_sentences_and_any_length(name, kernel, need_weights, strict):
    layer = build(name, kernel=kernel)

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def forward(self, x, padding):
            return self.attention(x, x, x, padding, need_weights=need_weights)[0]

    def example(rows, length):
        x = torch.randn(rows, length, E, dtype=torch.float64)
        return x, torch.arange(length) >= torch.arange(rows).add(length // 2 + 1).unsqueeze(1)

    sizes = {0: torch.export.Dim("N"), 1: torch.export.Dim("T")}
    program = torch.export.export(SelfAttention(), example(3, 7), dynamic_shapes=(sizes, sizes), strict=strict)
    for rows, length in ((3, 7), (1, 9), (4, 1), (5, 2), (2, 80)):
        x, padding = example(rows, length)
        expected = reference(layer, x, x, x, {"key_padding_mask": padding}).output
        assert (program.module()(x, padding) - expected).abs().max() < FLOAT64


@pytest.mark.parametrize("name", ATTENTION_TYPES)
def test_operations_recorded_by_make_fx_are_right_for_another_mask(name):
    """The recorded operations cannot depend on the values of the example."""
    layer, (query, _, _) = build(name), inputs("self")

    def function(parameters, query, mask):
        return torch.func.functional_call(layer, parameters, (query, query, query, mask))[0]

    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    example = torch.zeros(N, T, dtype=torch.bool)
    recorded = make_fx(function)(parameters, query, example)
    empty = masks("empty-rows", T, H)
    expected = reference(layer, query, query, query, empty).output
    assert (recorded(parameters, query, empty["key_padding_mask"]) - expected).abs().max() < FLOAT64
    assert (recorded(parameters, query, example) - expected).abs().max() > 1e-2  # control


@pytest.mark.parametrize("cls", [CollaborativeAttention, StandardAttention, MULTI_QUERY, LATENT])
def test_layers_are_built_and_trained_with_fake_tensors(cls):
    """As for estimates of memory; the shapes are those of torch's layer."""
    for layer_class in (nn.MultiheadAttention, cls):
        with FakeTensorMode():
            layer = layer_class(E, H, batch_first=True)
            query, mask = torch.randn(N, T, E, requires_grad=True), torch.zeros(N, T, dtype=torch.bool)
            output, weights = layer(query, query, query, mask)
            output.sum().backward()
        assert (output.shape, weights.shape, query.grad.shape) == ((N, T, E), (N, T, T), (N, T, E))
        assert {type(parameter.grad) for parameter in layer.parameters()} == {FakeTensor}

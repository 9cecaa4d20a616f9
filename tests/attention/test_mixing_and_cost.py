"""Initial mixing matrices, and the cost of layers compared with Table 1 of the paper."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from collab_fairseq.attention import (
    CollaborativeAttention,
    GroupedAttention,
    LatentAttention,
    StandardAttention,
    block_mixing,
    initial_mixing,
)
from collab_fairseq.attention.attention_types import kv_cache_per_token


def test_blocks_are_standard_heads_of_equal_or_different_sizes():
    assert torch.equal(initial_mixing("blocks", 4, 12), torch.kron(torch.eye(4), torch.ones(1, 3)))
    mixing = block_mixing([1, 3, 2])
    assert mixing.tolist() == [[1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert initial_mixing("blocks", 3, 7).sum(1).tolist() == [3, 2, 2]
    with pytest.raises(ValueError, match=r"\[2, 0\]"):
        block_mixing([2, 0])


@pytest.mark.parametrize(("name", "variance"), [("xavier", 2 / (16 + 4096)), ("normal", 1 / 16)])
def test_random_mixing_has_the_documented_variance(name, variance):
    torch.manual_seed(0)
    mixing = initial_mixing(name, 16, 4096)
    assert mixing.mean().abs() < 0.01 * variance**0.5 * 4
    assert 0.97 < mixing.var() / variance < 1.03


def test_mixing_lr_multiplier_equals_a_higher_learning_rate():
    """With Adam, the result equals that of a separate learning rate for ``mixing``, and differs from one rate."""
    x = torch.randn(3, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def train(multiplier, mixing_lr):
        torch.manual_seed(2)
        layer = CollaborativeAttention(12, 3, 6, mixing="normal", mixing_lr_multiplier=multiplier, dtype=torch.float64)
        others = [p for name, p in layer.named_parameters() if name != "mixing"]
        groups = [{"params": others}, {"params": [layer.mixing], "lr": mixing_lr}]
        optimizer = torch.optim.Adam(groups, lr=0.01, eps=1e-30)
        for _ in range(5):
            optimizer.zero_grad()
            (layer(x, x, x)[0] - x).square().sum().backward()
            optimizer.step()
        return layer

    expected, multiplied, plain = train(1.0, 0.08), train(8.0, 0.01), train(1.0, 0.01)
    assert torch.allclose(multiplied.mixing * 8, expected.mixing, atol=1e-10)
    assert torch.allclose(multiplied.q_proj.weight, expected.q_proj.weight, atol=1e-10)
    assert (plain.mixing - expected.mixing).abs().max() > 0.05


def parameters(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


class Flops(TorchDispatchMode):
    """As torch's FlopCounterMode, without global hooks, with which latent attention would call its projections."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in flop_registry:
            self.total += flop_registry[function.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def multiply_adds(layer, query_len, key_len):
    """Multiply–adds for one sentence, without biases and softmax.

    torch counts matrix products only, so those with the mixing matrix are added.
    """
    query, key = (layer.q_proj.weight.new_empty(1, n, layer.embed_dim) for n in (query_len, key_len))
    with Flops() as flops, torch.no_grad():
        layer(query, key, key)
    mixing = getattr(layer, "mixing", None)
    return flops.total // 2 + (0 if mixing is None else query_len * mixing.numel())


#: class, sizes (E, H, key dimension), options; then from the closed formulas: weights, biases, multiply–adds for 20
#: queries and 31 keys and for 2 queries and 310 keys, KV cache per token. The first two rows have the weights of
#: Table 1 of the paper: 1.05 M and 0.66 M
COSTS = [
    (StandardAttention, (512, 8, 512), {}, 1048576, 2048, 27373568, 164212736, 512 + 512),
    (CollaborativeAttention, (512, 8, 128), {}, 656384, 1280, 17684480, 103190528, 128 + 512),
    (CollaborativeAttention, (512, 8, 128), {"value_heads": 2}, 459776, 896, 11589632, 42242048, 128 + 128),
    (GroupedAttention, (512, 8, 512), {"kv_heads": 2}, 655360, 1280, 15183872, 42315776, 128 + 128),
    (GroupedAttention, (128, 4, 64), {"kv_heads": 1}, 30720, 240, 801024, 2072832, 16 + 32),
    (LatentAttention, (128, 4, 32), {"kv_latent_dim": 16}, 25088, 320, 603648, 760320, 16),
    (CollaborativeAttention, (128, 4, 32), {"content_bias": True, "value_heads": 2},
     33408, 256, 967680, 4167936, 32 + 64 + 4),
]  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("cls", "sizes", "options", "weights", "biases", "several", "few", "cache"), COSTS)
def test_layers_cost_what_the_formulas_say(cls, sizes, options, weights, biases, several, few, cache, bias):
    layer = cls(*sizes, bias=bias, kernel="bmm", **options).eval()
    assert parameters(layer) == weights + bias * biases
    assert (multiply_adds(layer, 20, 31), multiply_adds(layer, 2, 310)) == (several, few)
    assert kv_cache_per_token(layer) == cache

"""Initial mixing matrices, and the closed-form cost against counts of real layers and the paper's Table 1."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from collab_fairseq.attention import (
    CollaborativeAttention,
    GroupedAttention,
    LatentAttention,
    block_mixing,
    initial_mixing,
)
from collab_fairseq.attention.cost import AttentionSize, cache_numbers, multiply_adds, parameters


def test_blocks_are_standard_heads_and_may_have_different_sizes():
    assert torch.equal(initial_mixing("blocks", 4, 12), torch.kron(torch.eye(4), torch.ones(1, 3)))
    mixing = block_mixing([1, 3, 2])
    assert mixing.tolist() == [[1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert initial_mixing("blocks", 3, 7).sum(1).tolist() == [3, 2, 2]
    with pytest.raises(ValueError, match=r"\[2, 0\]"):
        block_mixing([2, 0])


@pytest.mark.parametrize(("name", "variance"), [("xavier", 2 / (16 + 4096)), ("normal", 1 / 16)])
def test_random_mixing_has_the_stated_variance(name, variance):
    torch.manual_seed(0)
    mixing = initial_mixing(name, 16, 4096)
    assert mixing.mean().abs() < 0.01 * variance**0.5 * 4
    assert 0.97 < mixing.var() / variance < 1.03


STANDARD, COLLABORATIVE = AttentionSize(512, 8, 512, False), AttentionSize(512, 8, 128, True)


def test_the_mixing_matrix_learns_faster_by_a_multiplier():
    """Trainings with Adam: the same as with a learning rate of its own for ``mixing``, and not as without."""
    x = torch.randn(3, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def trained(multiplier, rate):
        torch.manual_seed(2)
        layer = CollaborativeAttention(12, 3, 6, mixing="normal", mixing_lr_multiplier=multiplier, dtype=torch.float64)
        others = [p for name, p in layer.named_parameters() if name != "mixing"]
        groups = [{"params": others}, {"params": [layer.mixing], "lr": rate}]
        optimizer = torch.optim.Adam(groups, lr=0.01, eps=1e-30)
        for _ in range(5):
            optimizer.zero_grad()
            (layer(x, x, x)[0] - x).square().sum().backward()
            optimizer.step()
        return layer

    expected, found, other = trained(1.0, 0.08), trained(8.0, 0.01), trained(1.0, 0.01)
    assert torch.allclose(found.mixing * 8, expected.mixing, atol=1e-10)
    assert torch.allclose(found.q_proj.weight, expected.q_proj.weight, atol=1e-10)
    assert (other.mixing - expected.mixing).abs().max() > 0.05


@pytest.mark.parametrize(
    ("shape", "millions", "multiply_adds_of_128"),
    [
        (STANDARD, "1.05", "1.51e+08"),
        (COLLABORATIVE, "0.66", "1.09e+08"),
        (AttentionSize(768, 12, 768, False), "2.36", "3.27e+08"),
        (AttentionSize(768, 12, 256, True), "1.58", "2.65e+08"),
    ],
)
def test_table_1_of_the_paper(shape, millions, multiply_adds_of_128):
    assert f"{parameters(shape) / 1e6:.2f}" == millions
    assert f"{multiply_adds(shape, 128, 128):.2e}" == multiply_adds_of_128


#: cache of a token in numbers, from the papers' formulas: width 512 and the tiny model's
CACHES = [
    (STANDARD, 1024),
    (COLLABORATIVE, 128 + 512),
    (COLLABORATIVE._replace(value_heads=2), 128 + 128),
    (STANDARD._replace(kv_heads=2), 256),
    (AttentionSize(128, 4, 64, False, kv_heads=1), 16 + 32),
    (AttentionSize(128, 4, 32, False, kv_latent_dim=16), 16),
    (AttentionSize(128, 4, 32, True, content_bias=True, value_heads=2), 32 + 64 + 4),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("size", "cache"), CACHES)
def test_cost_equals_what_the_layer_has_and_does(size, cache, bias):
    size = size._replace(bias=bias)
    layer = layer_of(size).eval()
    assert sum(p.numel() for p in layer.parameters()) == parameters(size)

    query, key = torch.randn(1, 20, size.embed_dim), torch.randn(1, 31, size.embed_dim)
    with FlopCounterMode(display=False) as counter:
        layer(query, key, key)
    mixing = 20 * size.num_heads * size.key_dim if size.collaborative else 0  # element-wise, torch counts products
    assert counter.get_total_flops() // 2 + mixing == multiply_adds(size, 20, 31)

    entry = layer.project(key, key)
    assert cache_numbers(size) == cache
    assert sum(x.numel() for x in entry if x is not None) == cache * 31


def layer_of(size):
    if size.collaborative:
        own = {"content_bias": size.content_bias, "value_heads": size.value_heads, "kernel": "bmm"}
        return CollaborativeAttention(*size[:3], bias=size.bias, **own)
    if size.kv_latent_dim is not None:
        return LatentAttention(*size[:3], bias=size.bias, latent_dim=size.kv_latent_dim)
    return GroupedAttention(*size[:3], bias=size.bias, kv_heads=size.kv_heads or size.num_heads)

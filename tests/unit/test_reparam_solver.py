"""Rank-R fits of heads: recovery, errors against dense tensors, monotony, seeds, TensorLy as the baseline."""

import itertools
import math

import pytest
import torch

from collab_fairseq.attention import block_mixing
from collab_fairseq.reparam import HeadFactors, ReparamError, decompose, relative_error, standard_heads
from collab_fairseq.reparam.solver import STARTS, als_sweep
from tests.unit.attention_cases import normal

H, DK, DQ, DKEY = 4, 6, 20, 17
K = H * DK


def planted(rank: int, heads: int = H, seed: int = 0) -> HeadFactors:
    """Heads with ``rank`` shared dimensions, every head using all of them."""
    query, key = normal(rank, DQ, seed=seed), normal(rank, DKEY, seed=seed + 1)
    return HeadFactors(query, key, normal(heads, rank, seed=seed + 2))


def standard(seed: int = 0, dtype: torch.dtype = torch.float64) -> HeadFactors:
    """Standard heads without structure, stronger and weaker dimensions in each."""
    strength = torch.linspace(2, 0.2, DK, dtype=torch.float64).repeat(H)[:, None]
    return standard_heads((strength * normal(K, DQ, seed=seed)).to(dtype), normal(K, DKEY, seed=seed + 1).to(dtype), H)


def disguised(heads: HeadFactors, copies: int = 2) -> HeadFactors:
    """The same heads, of ``copies`` times the rank: every component split in parts that sum to it."""
    parts = torch.softmax(normal(copies, heads.rank, seed=9), dim=0)
    query = torch.cat([heads.query * part[:, None] for part in parts])
    return HeadFactors(query, heads.key.repeat(copies, 1), heads.mixing.repeat(1, copies))


def dense(heads: HeadFactors) -> torch.Tensor:
    """The tensor that the solver never forms, (H, Dq, Dk)."""
    return torch.einsum("hk,kd,ke->hde", heads.mixing.double(), heads.query.double(), heads.key.double())


def dense_error(source: HeadFactors, fit: HeadFactors) -> float:
    return float((dense(source) - dense(fit)).norm() / dense(source).norm())


def unit(heads: HeadFactors) -> HeadFactors:
    return heads._replace(mixing=heads.mixing / dense(heads).norm())


@pytest.mark.parametrize("rank", [5, 9])
def test_a_planted_rank_is_recovered(rank):
    source = disguised(planted(rank), 3)
    found = decompose(source, rank, sweeps=400, tolerance=0)
    assert dense_error(source, found.heads) < 1e-5
    assert float((dense(source) - dense(found.heads)).abs().max()) < 1e-4 * float(dense(source).abs().max())
    # each planted component is found, up to order and lengths
    true, fitted = (torch.nn.functional.normalize(heads.query, dim=1) for heads in (planted(rank), found.heads))
    cosine = true @ fitted.T
    assert float(cosine.abs().amax(dim=1).min()) > 0.9999
    # control: one dimension less cannot do it
    assert 0.05 < decompose(source, rank - 1, sweeps=400).error < 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_final_error_is_the_dense_one(dtype):
    source = standard(dtype=dtype)
    for rank in (3, 8, 16):
        found = decompose(source, rank)
        assert found.heads.query.dtype == dtype
        assert found.error == pytest.approx(dense_error(source, found.heads), abs=1e-7)
        assert found.trace[-1] == pytest.approx(found.error, abs=1e-6 if dtype == torch.float32 else 1e-9)
        sides = found.heads.to(torch.float64)  # balanced
        lengths = torch.stack([sides.query.norm(dim=1), sides.key.norm(dim=1), sides.mixing.norm(dim=0)])
        assert (lengths / lengths.mean(0) - 1).abs().max() < 1e-5
        # two-sided: no better than the best fit of each unfolding; no fit at all would have error 1
        bounds = []
        for axis in range(3):
            values = torch.linalg.svdvals(dense(source).movedim(axis, 0).flatten(1))
            bounds.append(float(values[rank:].square().sum().sqrt() / values.norm()))
        assert max(bounds) < found.error < 0.9


def test_each_sweep_of_plain_als_lowers_the_dense_error():
    source, now = unit(standard()), STARTS["random"](standard(), 8, 3)
    errors = []
    for _ in range(8):
        now, error = als_sweep(source, now, 1e-8)
        assert error == pytest.approx(dense_error(source, now), abs=1e-9)
        errors.append(error)
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    # the factor solved last is the least-squares solution for the other two, found densely
    rows = torch.einsum("hr,rd->hdr", now.mixing, now.query).flatten(0, 1)
    best = torch.linalg.lstsq(rows, dense(source).flatten(0, 1)).solution
    torch.testing.assert_close(now.key, best, atol=1e-6, rtol=0)


def test_seeds_repeat_with_the_trace():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    runs = [decompose(standard(), 8, starts=["random"], seed=seed, sweeps=30) for seed in (1, 1, 2)]
    first, again, other = runs
    assert (first.trace, first.error) == (again.trace, again.error)
    assert all(torch.equal(a, b) for a, b in zip(first.heads, again.heads, strict=True))
    assert first.trace != other.trace
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone


def test_the_better_start_wins_the_race():
    for source, rank in ((standard(), 8), (disguised(planted(6), 4), 6)):
        both = decompose(source, rank, sweeps=40)
        alone = {name: decompose(source, rank, sweeps=20, starts=[name]).error for name in STARTS}
        assert both.start == min(alone, key=alone.get)
        assert both.error <= min(alone.values()) + 1e-6
        assert both.sweeps <= 40 + 20


def test_heads_of_different_sizes_dead_ones_and_more_dimensions_than_widths():
    mixing = block_mixing([1, 9, 5, 5]).double()
    mixing[3] = 0
    source = HeadFactors(normal(20, DQ), normal(20, DKEY, seed=1), mixing)
    found = decompose(source, 8)
    assert found.error == pytest.approx(dense_error(source, found.heads), abs=1e-7)
    assert 0.1 < found.error < 0.7
    assert decompose(source, 15).error < 1e-4  # all that is alive
    # one head of 20 components in 5 dimensions needs 5 of the 8 it may have
    wide = HeadFactors(normal(20, 5), normal(20, 5, seed=1), torch.ones(1, 20, dtype=torch.float64))
    assert decompose(wide, 8, starts=["energy"]).error < 1e-5 < 0.02 < decompose(wide, 4).error
    zero = HeadFactors(*(factor * 0 for factor in standard()))
    found = decompose(zero, 3)
    assert (found.error, found.heads.rank) == (0, 3)
    assert relative_error(zero, standard()) == math.inf


def test_products_of_low_precision_change_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        inside = decompose(standard(), 8)
    assert inside.trace == decompose(standard(), 8).trace


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu():
    source = standard(dtype=torch.float32)
    here = decompose(source, 8)
    there = decompose(HeadFactors(*(factor.cuda() for factor in source)), 8)
    assert there.heads.query.is_cuda
    assert there.error == pytest.approx(here.error, rel=1e-3)


def test_never_worse_than_tensorly():
    tensorly = pytest.importorskip("tensorly")
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")
    sources = {"standard": standard(), "shared": disguised(planted(10), 2), "one": planted(K)}
    for name, source in sources.items():
        for rank in (4, 8, 12):
            _, errors = parafac(
                dense(source), rank, n_iter_max=100, init="random", tol=1e-12, random_state=0, return_errors=True
            )
            ours = decompose(source, rank).error
            assert ours <= float(errors[-1]) + 1e-5, f"{name} at {rank}"
            assert float(errors[0]) > ours + 0.01  # control


def changed(**factors: torch.Tensor) -> HeadFactors:
    return standard()._replace(**factors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: decompose(changed(key=torch.ones(K - 1, 3)), 4), r"key must have shape \(24, Dk\); got \[23, 3\]"),
        (lambda: decompose(changed(key=torch.ones(K, 3).long()), 4), "key must be floating-point; got torch.int64"),
        (lambda: decompose(changed(query=normal(K, 3) * math.inf), 4), "query must be finite"),
        (lambda: decompose(standard(), K + 1), "between 1 and 24.*got 25"),
        (lambda: decompose(standard(), 4, starts=["energy", "svd"]), "among energy, random; got energy, svd"),
        (lambda: standard_heads(normal(24, 20), normal(24, 20), 5), r"5 standard heads must have shape \(5 · dk, Dq\)"),
    ],
)
def test_bad_factors_and_options_are_refused_by_name(make, message):
    with pytest.raises(ReparamError, match=message) as caught:
        make()
    assert caught.value.user_error

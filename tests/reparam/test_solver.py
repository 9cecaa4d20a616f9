"""Rank-R decompositions: recovery of planted ranks, errors of the dense tensor, comparison with TensorLy."""

import itertools
import math

import pytest
import torch

from collab_fairseq.attention import block_mixing
from collab_fairseq.reparam import AttentionError, HeadFactors, decompose, relative_error, standard_heads
from collab_fairseq.reparam.solver import STARTS, Grams, Iterate, als_sweep
from tests.attention.cases import normal

H, DK, DQ, DKEY = 4, 6, 20, 17
K = H * DK


def planted(rank: int, heads: int = H, seed: int = 0) -> HeadFactors:
    """Heads with ``rank`` shared dimensions, all used by every head."""
    query, key = normal(rank, DQ, seed=seed), normal(rank, DKEY, seed=seed + 1)
    return HeadFactors(query, key, normal(heads, rank, seed=seed + 2))


def standard(seed: int = 0, dtype: torch.dtype = torch.float64) -> HeadFactors:
    """Standard heads without shared structure, with strong and weak dimensions."""
    strength = torch.linspace(2, 0.2, DK, dtype=torch.float64).repeat(H)[:, None]
    return standard_heads((strength * normal(K, DQ, seed=seed)).to(dtype), normal(K, DKEY, seed=seed + 1).to(dtype), H)


def disguised(heads: HeadFactors, copies: int = 2) -> HeadFactors:
    """The same heads with ``copies`` times the rank: every component is split into parts."""
    parts = torch.softmax(normal(copies, heads.rank, seed=9), dim=0)
    query = torch.cat([heads.query * part[:, None] for part in parts])
    return HeadFactors(query, heads.key.repeat(copies, 1), heads.mixing.repeat(1, copies))


def dense(heads: HeadFactors) -> torch.Tensor:
    """The dense tensor, (H, Dq, Dk)."""
    return torch.einsum("hk,kd,ke->hde", heads.mixing.double(), heads.query.double(), heads.key.double())


def dense_error(source: HeadFactors, fit: HeadFactors) -> float:
    return float((dense(source) - dense(fit)).norm() / dense(source).norm())


@pytest.mark.parametrize("rank", [5, 9])
def test_recovers_a_planted_rank(rank):
    source = disguised(planted(rank), 3)
    heads = decompose(source, rank, sweeps=400, tolerance=0).heads
    assert dense_error(source, heads) < 1e-5
    # each planted component is recovered, up to order and length
    expected, fitted = (torch.nn.functional.normalize(factors.query, dim=1) for factors in (planted(rank), heads))
    assert float((expected @ fitted.T).abs().amax(dim=1).min()) > 0.9999
    # control: a lower rank does not suffice
    assert 0.05 < decompose(source, rank - 1, sweeps=400).error < 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reported_error_equals_dense_error(dtype):
    source = standard(dtype=dtype)
    for rank in (3, 8, 16):
        fit = decompose(source, rank)
        assert fit.heads.query.dtype == dtype
        assert fit.error == pytest.approx(dense_error(source, fit.heads), abs=1e-7)
        assert fit.trace[-1] == pytest.approx(fit.error, abs=1e-6 if dtype == torch.float32 else 1e-9)
        factors = fit.heads.to(torch.float64)  # balanced
        lengths = torch.stack([factors.query.norm(dim=1), factors.key.norm(dim=1), factors.mixing.norm(dim=0)])
        assert (lengths / lengths.mean(0) - 1).abs().max() < 1e-5
        assert fit.heads.rank == rank
        assert 0.01 < fit.error < 0.9  # zero factors would have error 1


def test_each_als_sweep_lowers_the_dense_error():
    source = standard()
    source = source._replace(mixing=source.mixing / dense(source).norm())
    grams = Grams.of(source)
    now = Iterate.of(grams, STARTS["random"](source, 8, 3))
    errors = []
    for _ in range(8):
        now, error = als_sweep(grams, now, 1e-8)
        heads = now.heads(source)
        assert error == pytest.approx(dense_error(source, heads), abs=1e-9)
        errors.append(error)
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    # the factor solved last is the dense least-squares solution for the other two
    rows = torch.einsum("hr,rd->hdr", heads.mixing, heads.query).flatten(0, 1)
    solution = torch.linalg.lstsq(rows, dense(source).flatten(0, 1)).solution
    torch.testing.assert_close(heads.key, solution, atol=1e-6, rtol=0)


def test_seed_determines_the_result():
    state = torch.get_rng_state()
    first, again, other = (decompose(standard(), 8, starts=["random"], seed=seed, sweeps=30) for seed in (1, 1, 2))
    assert (first.trace, first.error) == (again.trace, again.error)
    assert all(torch.equal(a, b) for a, b in zip(first.heads, again.heads, strict=True))
    assert first.trace != other.trace
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used


def test_continues_from_the_better_start():
    for source, rank in ((standard(), 8), (disguised(planted(6), 4), 6)):
        both = decompose(source, rank, sweeps=40)
        alone = {name: decompose(source, rank, sweeps=20, starts=[name]).error for name in STARTS}
        assert both.start == min(alone, key=alone.get)
        assert both.error <= min(alone.values()) + 1e-6
        assert both.sweeps <= 40 + 20


def test_unequal_zero_and_wide_heads():
    mixing = block_mixing([1, 9, 5, 5]).double()
    mixing[3] = 0
    source = HeadFactors(normal(20, DQ), normal(20, DKEY, seed=1), mixing)
    fit = decompose(source, 8)
    assert fit.error == pytest.approx(dense_error(source, fit.heads), abs=1e-7)
    assert 0.1 < fit.error < 0.7
    assert decompose(source, 15).error < 1e-4  # the rank of the nonzero heads
    # a head with 20 components of width 5 has rank 5, less than the requested 8
    wide = HeadFactors(normal(20, 5), normal(20, 5, seed=1), torch.ones(1, 20, dtype=torch.float64))
    assert decompose(wide, 8, starts=["energy"]).error < 1e-5 < 0.02 < decompose(wide, 4).error
    zero = HeadFactors(*(factor * 0 for factor in standard()))
    fit = decompose(zero, 3)
    assert (fit.error, fit.heads.rank) == (0, 3)
    assert relative_error(zero, standard()) == math.inf


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu():
    source = standard(dtype=torch.float32)
    fit = decompose(HeadFactors(*(factor.cuda() for factor in source)), 8)
    assert fit.heads.query.is_cuda
    assert fit.error == pytest.approx(decompose(source, 8).error, rel=1e-3)


def test_never_worse_than_tensorly():
    tensorly = pytest.importorskip("tensorly")
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")
    sources = {"standard": standard(), "shared": disguised(planted(10), 2), "one": planted(K)}
    options = {"n_iter_max": 100, "init": "random", "tol": 1e-12, "random_state": 0, "return_errors": True}
    for name, source in sources.items():
        for rank in (4, 8, 12):
            _, errors = parafac(dense(source), rank, **options)
            ours = decompose(source, rank).error
            assert ours <= float(errors[-1]) + 1e-5, f"{name} at {rank}"
            assert float(errors[0]) > ours + 0.01  # control


def test_rejects_bad_factors_and_options():
    for factors, rank, options, message in (
        ({"key": torch.ones(K - 1, 3)}, 4, {}, r"key must have shape \(24, Dk\)"),
        ({"key": torch.ones(K, 3).long()}, 4, {}, "key must be floating-point"),
        ({"query": normal(K, 3) * math.inf}, 4, {}, "query must be finite"),
        ({}, K + 1, {}, "between 1 and 24.*got 25"),
        ({}, 4, {"starts": ["energy", "svd"]}, "got energy, svd"),
    ):
        with pytest.raises(AttentionError, match=message):
            decompose(standard()._replace(**factors), rank, **options)
    with pytest.raises(AttentionError, match=r"standard heads: mixing must have shape \(H, 24\); got \[5, 20\]"):
        standard_heads(normal(24, 20), normal(24, 20), 5)

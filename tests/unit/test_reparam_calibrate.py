"""What calibration counts, against loops, the layers' own attention and its divergence."""

import itertools
import math
from typing import Any, Dict, List, Optional

import pytest
import torch

from collab_fairseq.reparam import Calibrator, HeadFactors, ReparamError, ScoreWeights, standard_heads
from collab_fairseq.reparam.calibrate import Weighting
from tests.unit.attention_cases import E, H, N, S, T, coloured, masks, normal


def hidden() -> Dict[str, Dict[str, Any]]:
    """Ways of hiding keys, and queries."""
    known = ("none", "padding", "padding-additive", "boolean", "additive", "per-head", "per-head-4d", "empty-rows")
    queries = torch.zeros(N, T, dtype=torch.bool)
    queries[0, 1:] = True
    head = normal(N * H, T, S, seed=5) > 0.8
    head[0, 1] = True  # this head sees nothing here
    return {
        **{name: masks(name, S, H) for name in known},
        "queries": {**masks("padding", S, H), "query_padding_mask": queries},
        "a head sees nothing": {"attn_mask": head},
    }


def dense_score(source: ScoreWeights, head: int, x: torch.Tensor, y: torch.Tensor) -> float:
    """One score from the dense form of a head."""
    form = source.heads.query.T @ torch.diag(source.heads.mixing[head]) @ source.heads.key
    score = x @ form @ y
    if source.query_bias is not None:
        score = score + (source.query_bias * source.heads.mixing[head]) @ source.heads.key @ y
    if source.content_bias is not None:
        score = score + source.content_bias[head] @ y
    return float(score * source.scale)


def brute_force(query: torch.Tensor, key: torch.Tensor, source: Optional[ScoreWeights] = None, **given: Any):
    """(queries, mean, query covariance, key covariance) by loops over sentences, queries, heads and keys."""
    padding, mask, hidden = (given.get(name) for name in ("key_padding_mask", "attn_mask", "query_padding_mask"))
    masked_heads = 1 if mask is None or mask.dim() == 2 else mask.numel() // (N * T * S)
    heads = masked_heads if source is None else H
    mask = None if mask is None else mask.expand(N * masked_heads, T, S) if mask.dim() == 2 else mask
    xs: List[torch.Tensor] = []
    spreads: List[torch.Tensor] = []
    for n, t in itertools.product(range(N), range(T)):
        if hidden is not None and hidden[n, t]:
            continue
        spread, seen = torch.zeros(key.size(2), key.size(2), dtype=torch.float64), 0.0
        for h in range(heads):
            weights = torch.zeros(S, dtype=torch.float64)
            for s in range(S):
                score = 0.0 if source is None else dense_score(source, h, query[n, t], key[n, s])
                marks = [] if padding is None else [padding[n, s]]
                if mask is not None:
                    marks.append(mask.reshape(N, masked_heads, T, S)[n, min(h, masked_heads - 1), t, s])
                for mark in marks:
                    score += (-math.inf if mark else 0.0) if mark.dtype == torch.bool else float(mark)
                weights[s] = math.exp(score)
            if weights.sum() == 0:
                continue
            weights, seen = weights / weights.sum(), 1.0
            mean = sum(weights[s] * key[n, s] for s in range(S))
            square = sum(weights[s] * torch.outer(key[n, s], key[n, s]) for s in range(S))
            spread += (square - torch.outer(mean, mean)) / heads
        if seen:
            xs.append(query[n, t])
            spreads.append(spread)
    weight = torch.stack([spread.trace() for spread in spreads])
    mean = sum(w * x for w, x in zip(weight, xs, strict=True)) / weight.sum()
    covariance = sum(w * torch.outer(x - mean, x - mean) for w, x in zip(weight, xs, strict=True)) / weight.sum()
    return len(xs), mean, covariance, torch.stack(spreads).mean(0)


def sources(name: str) -> Optional[ScoreWeights]:
    """Scores of three heads, moderate enough for attention to be spread."""
    heads = HeadFactors(0.1 * normal(5, E, seed=7), 0.1 * normal(5, 7, seed=8), normal(H, 5, seed=9))
    return {
        "even": None,
        "scores": ScoreWeights(heads, 0.7),
        "scores with biases": ScoreWeights(heads, 0.7, normal(5, seed=10), 0.2 * normal(H, 7, seed=11)),
    }[name]


@pytest.mark.parametrize("attention", ["even", "scores", "scores with biases"])
@pytest.mark.parametrize("name", hidden())
def test_statistics_against_loops(name, attention):
    query, key, given, source = coloured(N, T, E), coloured(N, S, 7, seed=1), hidden()[name], sources(attention)
    calibrator = Calibrator(source)
    calibrator.update(query.float(), key.float(), **given)
    found, expected = calibrator.result(), brute_force(query.float().double(), key.float().double(), source, **given)
    assert found.queries == expected[0]
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)
    if name != "none":  # control: masks matter
        plain = Calibrator(source)
        plain.update(query, key)
        assert (plain.result().key_covariance - found.key_covariance).norm() > 0.01 * found.key_covariance.norm()


def test_the_weighted_norm_is_the_divergence_of_attention():
    """Attention that is the same for all queries and heads: then the second-order expansion of KL is exact."""
    queries, key = coloured(40, E), coloured(1, S, 7, seed=1)
    heads = HeadFactors(normal(5, E), normal(5, 7), torch.zeros(H, 5, dtype=torch.float64))
    source = ScoreWeights(heads, 0.7, None, 0.2 * normal(7, seed=11).expand(H, 7))
    step = standard_heads(1e-4 * normal(6, E, seed=2), normal(6, 7, seed=3), H)

    def expected(scores: Optional[ScoreWeights]) -> float:
        calibrator = Calibrator(scores)
        calibrator.update(queries[None], key)
        weighted = Weighting.of(calibrator.result(), 0.0).apply(step)
        return weighted.inner(weighted) * source.scale**2 / 2

    moved = ScoreWeights(step, source.scale).logits((queries - queries.mean(0))[None], key)
    before = source.logits(queries[None], key)
    target, found = torch.log_softmax(before, dim=-1), torch.log_softmax(before + moved, dim=-1)
    divergence = float((target.exp() * (target - found)).sum()) / len(queries)
    assert divergence == pytest.approx(expected(source), rel=1e-2)
    assert abs(expected(None) / divergence - 1) > 0.1  # control: keys as if attention were even


def test_batches_add_up_and_masked_positions_may_hold_anything():
    query, key, given = coloured(N, T, E), coloured(N, S, E, seed=1), hidden()["queries"]
    whole, parts = Calibrator(), Calibrator()
    whole.update(query, key, **given)
    query[given["query_padding_mask"]] = math.nan
    key[given["key_padding_mask"]] = math.inf
    for row in range(N):
        mine = {name: mask[row : row + 1] for name, mask in given.items()}
        parts.update(query[row : row + 1], key[row : row + 1], **mine)
    for one, other in zip(whole.result(), parts.result(), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), atol=1e-12, rtol=1e-12)


def test_where_nothing_varies_nothing_is_weighted():
    constant = Calibrator()
    constant.update(torch.ones(1, 2, E), torch.ones(1, 2, 7))
    weighting, heads = Weighting.of(constant.result(), 1e-2), standard_heads(normal(6, E), normal(6, 7), H)
    assert torch.equal(weighting.query, torch.eye(E, dtype=torch.float64))
    assert torch.equal(weighting.apply(heads).key, heads.key)


def test_bad_calibration_inputs_are_refused():
    calibrator = Calibrator()
    inputs = coloured(N, T, E)
    calibrator.update(inputs, inputs)
    with pytest.raises(ReparamError, match="key must be finite where it is not masked"):
        calibrator.update(inputs, inputs * math.inf)
    assert calibrator.result().queries == N * T  # what was refused was not counted

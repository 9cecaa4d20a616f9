"""Calibration statistics against the reference attention, and against the divergence of attention."""

import math
from typing import Any, Dict, Optional

import pytest
import torch

from collab_fairseq.reparam import AttentionError, Calibrator, HeadFactors, ScoreWeights, standard_heads
from collab_fairseq.reparam.calibrate import Weighting
from tests.attention.cases import E, H, N, S, T, coloured, masks, normal
from tests.attention.reference import reference_attention


def all_masks() -> Dict[str, Dict[str, Any]]:
    """Name → masks of keys and queries."""
    names = ("none", "padding", "padding-additive", "boolean", "additive", "per-head", "per-head-4d", "empty-rows")
    queries = torch.zeros(N, T, dtype=torch.bool)
    queries[0, 1:] = True
    head = normal(N * H, T, S, seed=5) > 0.8
    head[0, 1] = True  # no keys for this query of this head
    return {
        **{name: masks(name, S, H) for name in names},
        "queries": {**masks("padding", S, H), "query_padding_mask": queries},
        "head without keys": {"attn_mask": head},
    }


def reference(query, key, source, query_padding_mask=None, **arguments):
    """Number of queries, mean, query covariance and key covariance, from the weights of the reference attention."""
    if source is None:
        source = ScoreWeights(HeadFactors(torch.zeros(1, E), torch.zeros(1, 7), torch.zeros(H, 1)), 1.0)
    parameters = source.parameters()
    parameters["v_proj.weight"] = parameters["out_proj.weight"] = torch.eye(7)
    options = {"num_heads": H, "scale": source.scale, **arguments}
    attention = reference_attention(parameters, query, key, key, **options).weights
    counted = attention.sum(dim=(1, 3)) > 0
    if query_padding_mask is not None:
        counted &= ~query_padding_mask
    deviations = key[:, None, None] - (attention @ key[:, None])[:, :, :, None]  # (N, H, T, S, D)
    spread = torch.einsum("nhts,nhtsd,nhtse->ntde", attention, deviations, deviations)[counted] / H
    weights = spread.diagonal(dim1=1, dim2=2).sum(1)
    weights = weights / weights.sum()
    mean = weights @ query[counted]
    centred = query[counted] - mean
    return int(counted.sum()), mean, centred.T @ (weights[:, None] * centred), spread.mean(0)


#: scores of three heads, small enough for attention to be spread
FACTORS = HeadFactors(0.1 * normal(5, E, seed=7), 0.1 * normal(5, 7, seed=8), normal(H, 5, seed=9))
SOURCES = {
    "uniform": None,
    "scores": ScoreWeights(FACTORS, 0.7),
    "scores with biases": ScoreWeights(FACTORS, 0.7, normal(5, seed=10), 0.2 * normal(H, 7, seed=11)),
}


def calibrate(source: Optional[ScoreWeights], query: torch.Tensor, key: torch.Tensor, **arguments: Any):
    calibrator = Calibrator(source)
    calibrator.update(query, key, **arguments)
    return calibrator.result()


@pytest.mark.parametrize("attention", SOURCES)
@pytest.mark.parametrize("name", all_masks())
def test_statistics_equal_those_of_the_reference_attention(name, attention):
    query, key = coloured(N, T, E).float(), coloured(N, S, 7, seed=1).float()
    arguments, source = all_masks()[name], SOURCES[attention]
    statistics = calibrate(source, query, key, **arguments)
    queries, *expected = reference(query.double(), key.double(), source, **arguments)
    assert statistics.queries == queries
    torch.testing.assert_close(list(statistics[1:]), expected, atol=1e-10, rtol=1e-9)
    if name != "none":  # control: masks matter
        change = calibrate(source, query, key).key_covariance - statistics.key_covariance
        assert change.norm() > 0.01 * statistics.key_covariance.norm()


def test_weighted_norm_is_the_divergence_of_attention():
    """With equal attention of all queries and heads, the second-order expansion of KL is exact."""
    queries, key = coloured(40, E), coloured(1, S, 7, seed=1)
    heads = HeadFactors(normal(5, E), normal(5, 7), torch.zeros(H, 5, dtype=torch.float64))
    source = ScoreWeights(heads, 0.7, None, 0.2 * normal(7, seed=11).expand(H, 7))
    step = standard_heads(1e-4 * normal(6, E, seed=2), normal(6, 7, seed=3), H)

    def expected(scores: Optional[ScoreWeights]) -> float:
        weighted = Weighting.of(calibrate(scores, queries[None], key), 0.0).apply(step)
        return weighted.inner(weighted) * source.scale**2 / 2

    moved = ScoreWeights(step, source.scale).logits((queries - queries.mean(0))[None], key)
    before = source.logits(queries[None], key)
    p, q = torch.log_softmax(before, dim=-1), torch.log_softmax(before + moved, dim=-1)
    divergence = float((p.exp() * (p - q)).sum()) / len(queries)
    assert divergence == pytest.approx(expected(source), rel=1e-2)
    assert abs(expected(None) / divergence - 1) > 0.1  # control: uniform attention


def test_batches_accumulate_and_masked_positions_may_be_nan():
    query, key, arguments = coloured(N, T, E), coloured(N, S, E, seed=1), all_masks()["queries"]
    expected = calibrate(None, query, key, **arguments)
    query[arguments["query_padding_mask"]] = math.nan
    key[arguments["key_padding_mask"]] = math.inf
    calibrator = Calibrator()
    for row in range(N):
        of_row = {name: mask[row : row + 1] for name, mask in arguments.items()}
        calibrator.update(query[row : row + 1], key[row : row + 1], **of_row)
    assert calibrator.result().queries == expected.queries
    torch.testing.assert_close(calibrator.result()[1:], expected[1:], atol=1e-12, rtol=1e-12)


def test_constant_inputs_give_identity_weights():
    weighting = Weighting.of(calibrate(None, torch.ones(1, 2, E), torch.ones(1, 2, 7)), 1e-2)
    heads = standard_heads(normal(6, E), normal(6, 7), H)
    assert torch.equal(weighting.query, torch.eye(E, dtype=torch.float64))
    assert torch.equal(weighting.apply(heads).key, heads.key)


def test_rejects_infinite_inputs_and_does_not_count_them():
    calibrator = Calibrator()
    inputs = coloured(N, T, E)
    calibrator.update(inputs, inputs)
    with pytest.raises(AttentionError, match="key must be finite"):
        calibrator.update(inputs, inputs * math.inf)
    assert calibrator.result().queries == N * T

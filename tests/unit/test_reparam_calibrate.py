"""Fits that know the layer's inputs: statistics, objective, biases and scale against loops and whole layers."""

import math
from typing import Any, Dict, List, Optional

import pytest
import torch

from collab_fairseq.attention import CollaborativeAttention, ConcatenatedAttention
from collab_fairseq.reparam import (
    Calibrator,
    HeadFactors,
    ReparamError,
    ScoreWeights,
    collaborative_layer,
    fit_layers,
    fit_scores,
    scores_of,
    standard_heads,
)
from collab_fairseq.reparam.calibrate import Weighting
from tests.common import FLOAT64
from tests.unit.attention_cases import E, N, S, T, build

H = 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coloured(*shape: int, seed: int = 0) -> torch.Tensor:
    """Inputs as layers see them: a mean far from zero, and directions of very different variance."""
    width = shape[-1]
    mean, basis = 2 * normal(width, seed=100), torch.linalg.qr(normal(width, width, seed=101))[0]
    return mean + (normal(*shape, seed=seed) * torch.logspace(0.5, -1.5, width, dtype=torch.float64)) @ basis


def masks() -> Dict[str, Dict[str, Any]]:
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[0, 3:] = True
    padding[1, :2] = True
    queries = torch.zeros(N, T, dtype=torch.bool)
    queries[0, 1:] = True
    future = torch.ones(T, S, dtype=torch.bool).triu(2)
    per_head = normal(N * H, T, S, seed=5) > 0.8
    per_head[0, 1] = True  # this head sees nothing here
    nothing = padding.clone()
    nothing[2] = True
    return {
        "none": {},
        "padding": {"key_padding_mask": padding, "query_padding_mask": queries},
        "additive padding": {"key_padding_mask": padding * -1e9},
        "future": {"attn_mask": future, "key_padding_mask": padding},
        "bias": {"attn_mask": normal(T, S, seed=4)},
        "per head": {"attn_mask": per_head},
        "per head (N, H, T, S)": {"attn_mask": per_head.view(N, H, T, S)},
        "nothing visible": {"key_padding_mask": nothing},
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
    padding = given.get("key_padding_mask")
    mask = given.get("attn_mask")
    hidden_queries = given.get("query_padding_mask")
    masked_heads = 1 if mask is None or mask.dim() == 2 else mask.numel() // (N * T * S)
    heads = masked_heads if source is None else H
    xs: List[torch.Tensor] = []
    spreads: List[torch.Tensor] = []
    for n in range(N):
        for t in range(T):
            if hidden_queries is not None and hidden_queries[n, t]:
                continue
            per_head = []
            for h in range(heads):
                weights = torch.zeros(S, dtype=torch.float64)
                for s in range(S):
                    score = 0.0
                    if padding is not None:
                        p = padding[n, s]
                        score += (-math.inf if p else 0.0) if padding.dtype == torch.bool else float(p)
                    if mask is not None:
                        m = mask[t, s] if mask.dim() == 2 else mask.reshape(N, masked_heads, T, S)[n, h, t, s]
                        score += (-math.inf if m else 0.0) if mask.dtype == torch.bool else float(m)
                    if source is not None:
                        score += dense_score(source, h, query[n, t], key[n, s])
                    weights[s] = math.exp(score)
                if weights.sum() > 0:
                    per_head.append(weights / weights.sum())
                else:
                    per_head.append(weights)
            if sum(float(weights.sum()) for weights in per_head) == 0:
                continue
            xs.append(query[n, t])
            spread = torch.zeros(key.size(2), key.size(2), dtype=torch.float64)
            for weights in per_head:
                mean = sum(weights[s] * key[n, s] for s in range(S))
                square = sum(weights[s] * torch.outer(key[n, s], key[n, s]) for s in range(S))
                spread += (square - torch.outer(mean, mean)) / heads
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
@pytest.mark.parametrize("name", masks())
def test_statistics_against_loops(name, attention):
    query, key, given, source = coloured(N, T, E), coloured(N, S, 7, seed=1), masks()[name], sources(attention)
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


def test_causal_statistics():
    inputs = coloured(N, T, E)
    causal, masked = Calibrator(), Calibrator()
    causal.update(inputs, inputs, is_causal=True)
    masked.update(inputs, inputs, attn_mask=torch.ones(T, T, dtype=torch.bool).triu(1))
    for one, other in zip(causal.result(), masked.result(), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_batches_add_up_and_masked_positions_may_hold_anything():
    query, key, given = coloured(N, T, E), coloured(N, S, E, seed=1), masks()["padding"]
    whole, parts = Calibrator(), Calibrator()
    whole.update(query, key, **given)
    query[given["query_padding_mask"]] = math.nan
    key[given["key_padding_mask"]] = math.inf
    for row in range(N):
        mine = {name: mask[row : row + 1] for name, mask in given.items()}
        parts.update(query[row : row + 1], key[row : row + 1], **mine)
    for one, other in zip(whole.result(), parts.result(), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), atol=1e-12, rtol=1e-12)


def test_the_weighted_norm_is_the_variance_of_score_differences():
    """Every query with every sentence's keys: then queries and keys are independent, and the objective is exact."""
    queries, keys = coloured(40, E), coloured(5, S, E, seed=1)
    calibrator = Calibrator()
    for sentence in keys:
        calibrator.update(queries[None], sentence[None])
    difference = standard_heads(normal(6, E, seed=2), normal(6, E, seed=3), H)
    total = 0.0
    for query in queries - queries.mean(0):
        for sentence in keys:
            for head in range(H):
                own = slice(2 * head, 2 * head + 2)
                scores = sentence @ difference.key[own].T @ (difference.query[own] @ query)
                total += float(scores.var(correction=0)) / (len(queries) * len(keys))
    weighted = Weighting.of(calibrator.result(), 0.0).apply(difference)
    assert weighted.inner(weighted) == pytest.approx(total, rel=1e-9)
    assert abs(difference.inner(difference) / total - 1) > 0.5  # control


def test_weights_are_undone():
    calibrator = Calibrator()
    calibrator.update(coloured(N, T, E), coloured(N, S, 7, seed=1))
    heads = standard_heads(normal(6, E), normal(6, 7), H)
    weighting = Weighting.of(calibrator.result(), 1e-2)
    for one, other in zip(weighting.undo(weighting.apply(heads)), heads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
    constant = Calibrator()
    constant.update(torch.ones(1, 2, E), torch.ones(1, 2, 7))
    same = Weighting.of(constant.result(), 1e-2)  # nothing varies: nothing is weighted
    assert torch.equal(same.query, torch.eye(E, dtype=torch.float64))
    assert torch.equal(same.apply(heads).key, heads.key)


NAMES = ["standard", "collaborative", "collaborative-content", "collaborative-pruned"]


def scores(layer, query, key):
    """Attention logits (N, H, T, S) up to what a softmax does not see."""
    query_bias = 0 if layer.q_proj.bias is None else layer.q_proj.bias
    q, k = query @ layer.q_proj.weight.T + query_bias, key @ layer.k_proj.weight.T
    if isinstance(layer, CollaborativeAttention):
        logits = torch.einsum("ntk,hk,nsk->nhts", q, layer.mixing, k)
        if layer.content_bias is not None:
            logits = logits + torch.einsum("nsd,hd->nhs", key, layer.content_bias)[:, :, None]
    else:
        q, k = (x.unflatten(-1, (layer.num_heads, -1)) for x in (q, k))
        logits = torch.einsum("nthk,nshk->nhts", q, k)
    return logits * layer.scale


@pytest.mark.parametrize("name", NAMES)
def test_full_rank_keeps_the_function_without_the_key_bias(name):
    layer = build(name)
    fit = fit_scores(scores_of(layer), layer.key_dim)
    made = collaborative_layer(layer, fit.weights)
    inputs = coloured(N, T, E)
    for one, other in zip(made(inputs, inputs, inputs), layer(inputs, inputs, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=FLOAT64 * 100, rtol=0)
    assert made.k_proj.bias is None
    assert layer.k_proj.bias is not None
    assert fit.error <= 1e-7
    assert fit.start == "exact"


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_a_fit_are_those_of_its_parts(name, calibrated):
    """Brute force: source scores, minus each head's difference Δ_i at (query − mean) and key."""
    layer, key_dim = build(name), 3
    query, key = coloured(N, T, E), coloured(N, S, E, seed=1)
    calibrator = Calibrator()
    calibrator.update(query, key)
    source = scores_of(layer)
    fit = fit_scores(source, key_dim, calibrator.result() if calibrated else None)
    assert not any(tensor.requires_grad for tensor in fit.weights.parameters().values())
    made = collaborative_layer(layer, fit.weights)
    assert made.key_dim == key_dim
    assert made.scale == layer.scale
    assert made.q_proj.bias is None
    mean = calibrator.result().query_mean if calibrated else torch.zeros(E, dtype=torch.float64)
    dense = [
        torch.einsum("kd,hk,ke->hde", *(heads.query.detach(), heads.mixing.detach(), heads.key.detach()))
        for heads in (source.heads, fit.weights.heads)
    ]
    difference = torch.einsum("ntd,hde,nse->nhts", query - mean, dense[0] - dense[1], key) * layer.scale
    torch.testing.assert_close(scores(made, query, key), scores(layer, query, key) - difference, atol=1e-9, rtol=0)
    assert difference.abs().max() > 0.01
    if calibrated:  # hence it is kept exactly where the query is the mean, for every key
        gap = scores(made, query, key) - scores(layer, query, key)
        at_mean = scores(made, mean[None, None], key[:1]) - scores(layer, mean[None, None], key[:1])
        assert at_mean.abs().max() < 1e-9 < gap.abs().max()


def attention_error(layer, weights: ScoreWeights, inputs, scale=None) -> float:
    """Relative error of the layer's output, with the keys and queries given."""
    made = collaborative_layer(layer, weights)
    if scale is not None:
        made.scale = scale
    with torch.no_grad():
        true, got = (each(inputs, inputs, inputs, need_weights=False)[0] for each in (layer, made))
    return float((got - true).norm() / true.norm())


def trained_like(dtype=torch.float64, strength: float = 1.0) -> ConcatenatedAttention:
    """Eight heads of width 8 in 64 dimensions that overlap in part; ``strength`` scales the scores."""
    torch.manual_seed(0)
    layer = ConcatenatedAttention(64, 8).double()
    common = [normal(24, 64, seed=seed) for seed in (11, 12)]
    with torch.no_grad():
        for number, (projection, shared) in enumerate(zip((layer.q_proj, layer.k_proj), common, strict=True)):
            own = normal(64, 64, seed=30 + number)
            projection.weight.copy_(0.04 * normal(64, 24, seed=20 + number) @ shared + 0.1 * own)
            projection.bias.copy_(normal(64, seed=40 + number))
        layer.q_proj.weight.mul_(strength)
        layer.q_proj.bias.mul_(strength)
    return layer.to(dtype).eval()


def test_calibration_lowers_the_error_of_the_output():
    layer, source = trained_like(), scores_of(trained_like())
    seen, unseen = coloured(20, 9, 64, seed=1), coloured(8, 9, 64, seed=2)
    calibrator = Calibrator()
    calibrator.update(seen, seen)
    for key_dim in (32, 16):
        plain, aware = fit_scores(source, key_dim), fit_scores(source, key_dim, calibrator.result())
        assert plain.weighted_error is None
        assert aware.weighted_error < plain.error < aware.error < 1
        before, after = (attention_error(layer, fit.weights, unseen) for fit in (plain, aware))
        assert 0.01 * before < after < 0.7 * before


def test_the_scale_is_the_sources():
    """The paper's own code divides the scores by (R/H)^½ where the layer divided by dk^½."""
    layer, inputs = trained_like(strength=0.3), coloured(8, 9, 64, seed=2)
    calibrator = Calibrator()
    calibrator.update(inputs, inputs)
    for key_dim in (48, 32, 16):
        weights = fit_scores(scores_of(layer), key_dim, calibrator.result()).weights
        assert weights.scale == layer.scale == 8**-0.5
        kept = attention_error(layer, weights, inputs)
        changed = attention_error(layer, weights, inputs, scale=(key_dim / 8) ** -0.5)
        assert 0 < 2 * kept < changed < 1
    odd = ConcatenatedAttention(12, 3, scale=0.123)
    assert fit_scores(scores_of(odd), 5).weights.scale == 0.123


def test_half_precision_comes_out_as_it_went_in():
    layer = trained_like(torch.float16)
    seen = coloured(20, 9, 64, seed=1)
    calibrator = Calibrator()
    calibrator.update(seen.half(), seen.half())
    half = fit_scores(scores_of(layer), 32, calibrator.result())
    wide = fit_scores(scores_of(trained_like()), 32, calibrator.result())
    assert {tensor.dtype for tensor in half.weights.parameters().values()} == {torch.float16}
    made = collaborative_layer(layer, half.weights)
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float16}
    assert half.error == pytest.approx(wide.error, rel=0.02)
    in_float = ScoreWeights(
        half.weights.heads.to(torch.float64), half.weights.scale, None, half.weights.content_bias.double()
    )
    error, best = (attention_error(trained_like(), w, seen[:8]) for w in (in_float, wide.weights))
    assert error == pytest.approx(best, rel=0.05)


def test_compressing_twice():
    layer, seen = trained_like(), coloured(20, 9, 64, seed=1)
    calibrator = Calibrator()
    calibrator.update(seen, seen)
    once = collaborative_layer(layer, fit_scores(scores_of(layer), 48, calibrator.result()).weights)
    twice = collaborative_layer(once, fit_scores(scores_of(once), 24, calibrator.result()).weights)
    direct = fit_scores(scores_of(layer), 24, calibrator.result()).weights
    error = attention_error(layer, scores_of(twice), seen)
    assert attention_error(layer, scores_of(once), seen) < error < 1.3 * attention_error(layer, direct, seen)


def test_all_layers_of_a_model(caplog):
    sites = {"encoder.0": "self", "cross.0": "unequal"}
    sources = {name: scores_of(build("standard", site)) for name, site in sites.items()}
    told: List[str] = []
    fits = fit_layers(sources, {"encoder.0": 5, "cross.0": 12}, progress=lambda name, fit: told.append(name))
    assert told == list(sources)
    assert [fit.weights.heads.rank for fit in fits.values()] == [5, 12]
    alone = fit_scores(sources["encoder.0"], 5)
    assert fits["encoder.0"].trace == alone.trace
    with caplog.at_level("INFO"):
        fit_layers(sources, 4)
    assert "cross.0 (2 of 2): key dim 12 to 4, relative error" in caplog.text


def test_bad_sources_are_refused_by_name():
    good = scores_of(build("standard"))
    calibrator = Calibrator()
    with pytest.raises(ReparamError, match="saw none"):
        calibrator.result()
    calibrator.update(coloured(N, T, E), coloured(N, S, 7))
    narrow = calibrator.result()
    for make, message in (
        (
            lambda: fit_scores(good._replace(query_bias=torch.ones(5)), 3),
            r"query_bias must have shape \[12\], but is \[5\]",
        ),
        (
            lambda: fit_scores(good._replace(content_bias=torch.ones(2, 12)), 3),
            r"content_bias must have shape \[3, 12\], but is \[2, 12\]",
        ),
        (lambda: fit_scores(good._replace(query_bias=torch.full((12,), math.nan)), 3), "query_bias must be finite"),
        (lambda: fit_scores(good._replace(heads=HeadFactors(*[torch.ones(2)] * 3)), 3), "heads: query must have shape"),
        (lambda: fit_scores(good, 3, narrow), "key inputs are 12 wide, but were 7 wide in the calibration"),
        (lambda: fit_scores(good, 13), "between 1 and 12.*but is 13"),
        (lambda: fit_layers({"a": good, "b": good}, {"a": 3}), "every layer needs a key dim, but there is none for b"),
        (lambda: fit_layers({"a": good}, 3, {"b": narrow}), "every layer needs calibration, but there is none for a"),
        (lambda: fit_layers({"encoder.3": good}, 13), "encoder.3: the shared key dim must be between 1 and 12"),
    ):
        with pytest.raises(ReparamError, match=message):
            make()


def test_bad_calibration_inputs_are_refused():
    calibrator = Calibrator()
    inputs = coloured(N, T, E)
    calibrator.update(inputs, inputs)
    for query, key, given, message in (
        (inputs[0], inputs, {}, r"\(N, T, Dq\) and \(N, S, Dk\).*but are \[4, 12\]"),
        (inputs, inputs[..., :5], {}, "12 and 12 wide as before, but are 12 and 5"),
        (inputs, inputs, {"query_padding_mask": torch.zeros(N, T)}, "must be boolean of shape"),
        (inputs, inputs, {"key_padding_mask": torch.zeros(N, 9)}, r"key_padding_mask must have shape \(3, 4\)"),
        (inputs * math.nan, inputs, {}, "query must be finite where it is not masked"),
        (inputs, inputs * math.inf, {}, "key must be finite where it is not masked"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrator.update(query, key, **given)
    assert calibrator.result().queries == N * T  # what was refused was not counted
    with pytest.raises(ReparamError, match="12 and 7 wide as those of the scores, but are 12 and 12"):
        Calibrator(sources("scores")).update(inputs, inputs)

"""Fits of a layer's scores, with and without calibration: objective, biases and scale against whole layers."""

import pytest
import torch

from collab_fairseq.attention import CollaborativeAttention
from collab_fairseq.reparam import (
    Calibrator,
    ReparamError,
    collaborative_layer,
    fit_layers,
    fit_scores,
    scores_of,
)
from tests.common import FLOAT64
from tests.unit.attention_cases import E, N, S, T, build, coloured

NAMES = ["standard", "collaborative", "collaborative-content", "collaborative-pruned"]


def calibrated_on(query, key=None):
    calibrator = Calibrator()
    calibrator.update(query, query if key is None else key)
    return calibrator.result()


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
    assert fit.found.start == "exact"


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_a_fit_are_those_of_its_parts(name, calibrated):
    """Brute force: source scores, minus each head's difference Δ_i at (query − mean) and key."""
    layer, key_dim = build(name), 3
    query, key = coloured(N, T, E), coloured(N, S, E, seed=1)
    source, calibration = scores_of(layer), calibrated_on(query, key)
    fit = fit_scores(source, key_dim, calibration if calibrated else None)
    assert not any(tensor.requires_grad for tensor in fit.weights.parameters().values())
    made = collaborative_layer(layer, fit.weights)
    assert made.key_dim == key_dim
    assert made.scale == layer.scale
    assert made.q_proj.bias is None
    mean = calibration.query_mean if calibrated else torch.zeros(E, dtype=torch.float64)
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


def test_bad_sources_raise_errors():
    good, narrow = scores_of(build("standard")), calibrated_on(coloured(N, T, E), coloured(N, S, 7))
    for make, message in (
        (lambda: fit_scores(good, 3, narrow), "key inputs of the calibration must be 12 wide; got 7"),
        (lambda: fit_layers({"a": good, "b": good}, {"a": 3}), "every layer needs a key dim; there is none for b"),
        (lambda: fit_layers({"encoder.3": good}, 13), "the shared key dim must be between 1 and 12.*got 13"),
        (lambda: scores_of(torch.nn.Linear(2, 2)), "Linear cannot be converted; expected an AttentionLayer"),
    ):
        with pytest.raises(ReparamError, match=message):
            make()

"""Fits of a layer's scores, with and without calibration, against the attention of whole layers."""

import pytest
import torch

from collab_fairseq.reparam import AttentionError, Calibrator, collaborative_layer, fit_layers, fit_scores, scores_of
from tests.attention.cases import E, N, S, T, build, coloured, reference
from tests.common import FLOAT64

NAMES = ["standard", "collaborative", "collaborative-content", "collaborative-pruned"]


def calibrated_on(query, key):
    calibrator = Calibrator()
    calibrator.update(query, key)
    return calibrator.result()


def log_weights(layer, query, key):
    """Logarithms of the attention weights (N, H, T, S)."""
    return reference(layer, query, key, key, {}).weights.log()


@pytest.mark.parametrize("name", NAMES)
def test_full_rank_fit_is_exact_and_drops_the_key_bias(name):
    layer, inputs = build(name), coloured(N, T, E)
    fit = fit_scores(scores_of(layer), layer.key_dim, calibrated_on(inputs, inputs))
    made = collaborative_layer(layer, fit.weights)
    for one, other in zip(made(inputs, inputs, inputs), layer(inputs, inputs, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=FLOAT64 * 100, rtol=0)
    assert made.k_proj.bias is None
    assert layer.k_proj.bias is not None
    assert fit.error <= 1e-7
    assert fit.decomposition.start == "exact"


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_fitted_scores_differ_by_the_dense_residual(name, calibrated):
    """Brute force: source scores minus the residual Δ_i of each head at (query − mean) and key."""
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
    before, after = log_weights(layer, query, key), log_weights(made, query, key)
    torch.testing.assert_close(after, torch.log_softmax(before - difference, -1), atol=1e-9, rtol=0)
    assert difference.abs().max() > 0.01
    if calibrated:  # exact at the mean query, for every key
        query = mean[None, None]
        at_mean = log_weights(made, query, key[:1]) - log_weights(layer, query, key[:1])
        assert at_mean.abs().max() < 1e-9 < (after - before).abs().max()


def test_rejects_bad_sources():
    scores, narrow = scores_of(build("standard")), calibrated_on(coloured(N, T, E), coloured(N, S, 7))
    for fit, message in (
        (lambda: fit_scores(scores, 3, narrow), "must have width 12; got 7"),
        (lambda: fit_layers({"a": scores, "b": scores}, {"a": 3}), "none for b"),
        (lambda: fit_layers({"encoder.3": scores}, 13), "between 1 and 12.*got 13"),
        (lambda: scores_of(torch.nn.Linear(2, 2)), "got Linear"),
    ):
        with pytest.raises(AttentionError, match=message):
            fit()


class Adapter(torch.nn.Linear):
    """As LoRA: a weight of its own, and factors."""

    def __init__(self, linear):
        super().__init__(linear.in_features, linear.out_features, dtype=linear.weight.dtype)
        self.load_state_dict(linear.state_dict())
        self.factors = torch.nn.Linear(E, linear.out_features, dtype=linear.weight.dtype)

    def forward(self, inputs):
        return super().forward(inputs) + self.factors(inputs)


class Scaled(torch.Tensor):
    """As quantised weights."""


def replace_forward(layer, name):
    projection = layer.get_submodule(name)
    projection.forward = lambda inputs, call=projection.forward: 1.5 * call(inputs)


def replace_weight(layer, name):
    projection = layer.get_submodule(name)
    projection.weight = torch.nn.Parameter(projection.weight.detach().as_subclass(Scaled))


@pytest.mark.parametrize(
    "change",
    [
        replace_forward,
        replace_weight,
        lambda layer, name: layer.set_submodule(name, Adapter(layer.get_submodule(name))),
        lambda layer, name: torch.nn.utils.parametrizations.weight_norm(layer.get_submodule(name)),
    ],
    ids=["forward", "weight", "module", "parametrisation"],
)
@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "out_proj"])
@pytest.mark.parametrize("name", ["standard", "collaborative", "grouped"])
def test_layers_with_changed_projections_are_rejected(name, part, change):
    """Their weights do not tell what they compute. Control: the unchanged layer."""
    for changed in (False, True):
        layer = build(name)
        if changed:
            change(layer, part)
            with pytest.raises(AttentionError, match="merge or unload adapters"):
                collaborative_layer(layer, scores_of(layer))
        else:
            inputs = coloured(N, T, E)
            made = collaborative_layer(layer, scores_of(layer))
            assert (made(inputs, inputs, inputs)[0] - layer(inputs, inputs, inputs)[0]).abs().max() < FLOAT64 * 100

"""`--checkpoint-activations`: layers are recomputed with the autocast state of the forward pass."""

import pytest
import torch
from fairseq.modules import checkpoint_activations
from torch import nn


class Layer(nn.Module):
    """Two projections of the same input, as in attention."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, states):
        return (self.queries(states) * self.keys(states)).float()


def gradients(wraps, offload, is_amp, is_amp_later=False):
    """Gradients of the input and all parameters, with autocast in the forward pass or, later, in the backward pass."""
    torch.manual_seed(0)
    layer = Layer()
    states = torch.randn(32, 64, requires_grad=True)
    if wraps:
        layer = checkpoint_activations.checkpoint_wrapper(layer, offload_to_cpu=offload)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_amp):
        loss = layer(states * 1.0).square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_amp_later):
        loss.backward()
    return [states.grad, *(parameter.grad for parameter in layer.parameters())]


def are_equal(computed, expected):
    return all(torch.equal(*pair) for pair in zip(computed, expected, strict=True))


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("precision", [(True, False), (False, True), (False, False)])
def test_recomputation_has_the_precision_of_the_forward_pass(precision, offload, monkeypatch):
    expected = gradients(False, offload, *precision)
    assert are_equal(gradients(True, offload, *precision), expected)
    unpatched = checkpoint_activations._checkpointed_forward.__wrapped__
    monkeypatch.setattr(checkpoint_activations, "_checkpointed_forward", unpatched)
    differs = precision[0] != precision[1]
    assert are_equal(gradients(True, offload, *precision), expected) is not differs

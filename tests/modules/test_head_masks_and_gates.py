"""Head masks and gates: descriptors, flags, distributions and gradients."""

import math

import pytest
import torch

from collab_fairseq.attention import AttentionError
from collab_fairseq.modules.gates import OPEN, HeadGates
from collab_fairseq.modules.head_names import describe, parse_heads
from collab_fairseq.modules.sites import attention_layers
from fairseq_modern.errors import UserError
from tests.common import FLOAT32
from tests.models.cases import KINDS, SMALL, build, logits

FLAGS = {**SMALL, "key_dim": 6, "dropout": 0.0}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_parses_and_writes_descriptors():
    heads = parse_heads("D:2:1 E:1:3,5  E:1:4 A:10:1 A:2:2")
    expected = {"encoder.0": (2, 3, 4), "cross.1": (1,), "cross.9": (0,), "decoder.1": (0,)}
    assert list(heads.items()) == list(expected.items())
    assert describe(heads) == "E:1:3,4,5 A:2:2 A:10:1 D:2:1"
    assert parse_heads(describe(heads)) == heads
    assert parse_heads(None) == parse_heads("") == {}


@pytest.mark.parametrize("kind", ["collaborative", "shared-values", "standard", "multi-query", "latent"])
def test_masked_head_equals_head_without_output_weights(kind):
    flags = {**SMALL, "dropout": 0.0, **KINDS[kind]}
    plain = build(**flags).eval()
    masked = build(**flags, mask_heads="E:1:2 A:2:1 D:1:1,2").eval()
    assert plain.state_dict().keys() == masked.state_dict().keys()
    assert (logits(masked) - logits(plain)).abs().max() > 1e-3
    layers = attention_layers(plain)
    with torch.no_grad():  # each head has eight value dimensions
        layers["encoder.0"].out_proj.weight[:, 8:] = 0
        layers["cross.1"].out_proj.weight[:, :8] = 0
        layers["decoder.0"].out_proj.weight[:] = 0
    assert (logits(masked) - logits(plain)).abs().max() < FLOAT32


@pytest.mark.parametrize("log_alpha", [-2.0, 0.0, 0.5, 2.4])
def test_sampled_gates_follow_the_closed_form(log_alpha):
    torch.manual_seed(0)
    gates = HeadGates(100_000, log_alpha)
    sampled = gates.train()()
    assert sampled.min() >= 0.0
    assert sampled.max() <= 1.0
    shift, at = 0.33 * math.log(11), 0.3  # −β ln(−γ/ζ), and a point between 0 and 1
    probabilities = [
        (sampled != 0, sigmoid(log_alpha + shift)),
        (sampled == 1, sigmoid(log_alpha - shift)),  # P(s ≥ (1 − γ) / (ζ − γ)), s a binary concrete
        (sampled <= at, sigmoid(0.33 * math.log((at + 0.1) / (1.1 - at)) - log_alpha)),
    ]
    for event, expected in probabilities:
        assert abs(event.double().mean().item() - expected) < 4 * math.sqrt(expected * (1 - expected) / 1e5)
    assert torch.allclose(gates.open_probability(), torch.tensor(probabilities[0][1]))
    assert torch.equal(gates.eval()(), torch.full((100_000,), float(log_alpha > 0)))


def test_mean_gate_is_one_at_the_threshold():
    assert abs(torch.sigmoid(torch.tensor(OPEN)).item() * 1.2 - 0.1 - 1.0) < 1e-6


def test_gates_have_the_gradient_of_their_formula():
    log_alpha = torch.tensor([-0.5, 0.3, 1.0], dtype=torch.float64, requires_grad=True)

    def gated(values):
        gates = HeadGates(3, 0.0).double().train()
        torch.manual_seed(3)
        return torch.func.functional_call(gates, {"log_alpha": values}, ())

    assert torch.autograd.gradcheck(gated, (log_alpha,))


def test_open_gates_are_the_identity_and_closed_gates_a_mask():
    plain = build(**FLAGS, seed=1).eval()
    gated = build(**FLAGS, head_gates="encoder_cross", head_gates_init=1.5).eval()
    gated.load_state_dict(plain.state_dict(), strict=True, model_cfg=gated.cfg)  # as training with gates starts
    assert attention_layers(gated)["encoder.1"].head_gates.log_alpha.tolist() == [1.5, 1.5]
    places = [f"encoder.layers.{n}.self_attn" for n in (0, 1)] + [f"decoder.layers.{n}.encoder_attn" for n in (0, 1)]
    assert gated.state_dict().keys() - plain.state_dict().keys() == {f"{p}.head_gates.log_alpha" for p in places}
    assert torch.equal(logits(gated), logits(plain))
    with torch.no_grad():
        attention_layers(gated)["cross.1"].head_gates.log_alpha[1] = -0.1
    masked = build(**FLAGS, mask_heads="A:2:2", seed=1).eval()
    assert (logits(gated) - logits(masked)).abs().max() < FLOAT32
    gated.train()
    assert (logits(gated) - logits(gated)).abs().max() > 1e-3


def test_frozen_decoder_trains_only_encoder_layers():
    model = build(**FLAGS, head_gates="encoder", head_gates_freeze_decoder=True)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {n for n, _ in model.named_parameters() if n.startswith("encoder.layers.")}
    separate = build(**FLAGS, head_gates="encoder", head_gates_freeze_decoder=True, share_all_embeddings=False)
    assert separate.encoder.embed_tokens.weight.requires_grad


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mask_heads": "E:0:1"}, "'E:0:1' does not name heads"),
        ({"mask_heads": "D:3:1"}, "D:3 names a layer that the model does not have"),
        ({"mask_heads": "A:2:3"}, "A:2:3 names head 3"),
        ({"head_gates": "encoder_cross", "head_gates_freeze_decoder": True}, "got encoder_cross"),
    ],
)
def test_rejects_invalid_heads_and_gates(flags, message):
    with pytest.raises((UserError, AttentionError), match=message):
        build(**FLAGS, **flags)

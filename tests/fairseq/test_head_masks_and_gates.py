"""Heads masked by descriptor and gated: flags, arithmetic, errors."""

import math

import pytest
import torch

from collab_fairseq.modules.gates import OPEN, HeadGates
from collab_fairseq.modules.heads import describe, parse_heads
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers
from tests.common import FLOAT32
from tests.fairseq.models import KINDS, SMALL, batch, build

FLAGS = {**SMALL, "key_dim": 6, "dropout": 0.0}


def logits(model):
    with torch.no_grad():
        return model(*batch())[0]


def test_descriptors_are_read_and_written():
    heads = parse_heads("D:2:1 E:1:3,5  E:1:4 A:10:1 A:2:2")
    assert list(heads.items()) == [
        ("encoder.0", (2, 3, 4)), ("cross.1", (1,)), ("cross.9", (0,)), ("decoder.1", (0,)),
    ]  # fmt: skip
    assert describe(heads) == "E:1:3,4,5 A:2:2 A:10:1 D:2:1"
    assert parse_heads(describe(heads)) == heads
    assert parse_heads(None) == parse_heads("") == {}


@pytest.mark.parametrize("kind", ["collaborative", "shared-values", "standard", "multi-query", "latent"])
def test_a_masked_head_is_one_without_output_weights(kind):
    flags = {**SMALL, "dropout": 0.0, **KINDS[kind]}
    plain = build(**flags).eval()
    masked = build(**flags, mask_heads="E:1:2 A:2:1 D:1:1,2").eval()
    assert plain.state_dict().keys() == masked.state_dict().keys()
    before = logits(plain)
    assert (logits(masked) - before).abs().max() > 1e-3
    layers = attention_layers(plain)
    with torch.no_grad():  # eight value dimensions a head
        layers["encoder.0"].out_proj.weight[:, 8:] = 0
        layers["cross.1"].out_proj.weight[:, :8] = 0
        layers["decoder.0"].out_proj.weight[:] = 0
    assert (logits(masked) - logits(plain)).abs().max() < FLOAT32


@pytest.mark.parametrize("log_alpha", [-2.0, 0.0, 0.5, 2.4])
def test_draws_follow_the_closed_form(log_alpha):
    torch.manual_seed(0)
    gates = HeadGates(100_000, log_alpha)
    drawn = gates.train()()
    assert drawn.min() >= 0.0
    assert drawn.max() <= 1.0
    expected = torch.sigmoid(torch.tensor(log_alpha + 0.33 * math.log(11))).item()  # −β ln(−γ/ζ) = 0.33 ln 11
    assert torch.allclose(gates.open_probability(), torch.tensor(expected))
    assert abs((drawn != 0).double().mean().item() - expected) < 4 * math.sqrt(expected * (1 - expected) / 1e5)
    # P(g = 1) = P(s ≥ (1 − γ) / (ζ − γ)), s a binary concrete: σ(log α − β ln 11)
    ones = torch.sigmoid(torch.tensor(log_alpha - 0.33 * math.log(11))).item()
    assert abs((drawn == 1).double().mean().item() - ones) < 4 * math.sqrt(ones * (1 - ones) / 1e5)
    # P(g ≤ x) between the ends, by inverting the formula
    at = 0.3
    inside = torch.sigmoid(0.33 * torch.logit(torch.tensor((at + 0.1) / 1.2)) - log_alpha).item()
    assert abs((drawn <= at).double().mean().item() - inside) < 4 * math.sqrt(inside * (1 - inside) / 1e5)
    assert torch.equal(gates.eval()(), torch.full((100_000,), float(log_alpha > 0)))


def test_where_mean_gates_open():
    assert abs(torch.sigmoid(torch.tensor(OPEN)).item() * 1.2 - 0.1 - 1.0) < 1e-6
    assert 2.39 < OPEN < 2.4


def test_gates_have_the_gradient_of_their_formula():
    log_alpha = torch.tensor([-0.5, 0.3, 1.0], dtype=torch.float64, requires_grad=True)

    def gated(values):
        gates = HeadGates(3, 0.0).double().train()
        torch.manual_seed(3)
        return torch.func.functional_call(gates, {"log_alpha": values}, ())

    assert torch.autograd.gradcheck(gated, (log_alpha,))


def test_open_gates_are_the_identity_and_closed_ones_a_mask():
    plain = build(**FLAGS, seed=1).eval()
    gated = build(**FLAGS, head_gates="encoder_cross", head_gates_init=1.5).eval()
    gated.load_state_dict(plain.state_dict(), strict=True, model_cfg=gated.cfg)  # as a training with gates begins
    assert attention_layers(gated)["encoder.1"].head_gates.log_alpha.tolist() == [1.5, 1.5]
    assert {name for name in gated.state_dict() if name not in plain.state_dict()} == {
        f"{stack}.layers.{layer}.{attention}.head_gates.log_alpha"
        for layer in (0, 1) for stack, attention in (("encoder", "self_attn"), ("decoder", "encoder_attn"))
    }  # fmt: skip
    assert torch.equal(logits(gated), logits(plain))
    with torch.no_grad():
        attention_layers(gated)["cross.1"].head_gates.log_alpha[1] = -0.1
    masked = build(**FLAGS, mask_heads="A:2:2", seed=1).eval()
    assert (logits(gated) - logits(masked)).abs().max() < FLOAT32
    gated.train()
    draws = [gated(*batch())[0] for _ in range(4)]
    assert (draws[0] - draws[1]).abs().max() > 1e-3


def test_a_frozen_decoder_leaves_the_encoder_to_train():
    model = build(**FLAGS, head_gates="encoder", head_gates_freeze_decoder=True)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {n for n, _ in model.named_parameters() if n.startswith("encoder.layers.")}
    apart = build(**FLAGS, head_gates="encoder", head_gates_freeze_decoder=True, share_all_embeddings=False)
    assert apart.encoder.embed_tokens.weight.requires_grad


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mask_heads": "E:0:1"}, "'E:0:1' does not name heads: layers and heads count from 1"),
        ({"mask_heads": "D:3:1"}, "D:3 names layer 3 of decoder attention, but the model has 2 there"),
        ({"mask_heads": "A:2:3"}, "A:2:3 names head 3, but A:2 has 2 heads"),
        ({"head_gates": "encoders"}, "--head-gates must be sites among encoder, cross, decoder"),
        ({"head_gates": "encoder_cross", "head_gates_freeze_decoder": True}, "but that is 'encoder_cross'"),
    ],
)
def test_impossible_heads_are_named(flags, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**FLAGS, **flags)

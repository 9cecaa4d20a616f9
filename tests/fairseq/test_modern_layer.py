"""The patched encoder layer: initial parameters, TorchScript, versions of torch."""

import pytest
import torch
from fairseq.models.transformer import TransformerConfig, transformer_encoder
from fairseq.modules import transformer_layer
from torch import nn

from fairseq_modern import encoder_layer
from tests.common import FLOAT32
from tests.fairseq.models import SMALL, batch, build


def test_initial_parameters_follow_the_seed_as_in_unpatched_fairseq():
    """Attention, fc1, fc2 are drawn in this order, and nothing else is drawn."""
    cfg = TransformerConfig()
    width, inner = cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim
    torch.manual_seed(5)
    layer = transformer_layer.TransformerEncoderLayerBase(cfg)
    after = torch.rand(1)
    torch.manual_seed(5)
    attention = layer.build_self_attention(width, cfg)
    expected = {"self_attn.": attention, "fc1.": nn.Linear(width, inner), "fc2.": nn.Linear(inner, width)}
    assert torch.equal(after, torch.rand(1))
    state = layer.state_dict()
    for prefix, module in expected.items():
        for name, value in module.state_dict().items():
            assert torch.equal(state[prefix + name], value), prefix + name


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_model_can_be_scripted(normalize_before):
    model = build("transformer", **SMALL, encoder_normalize_before=normalize_before).eval()
    scripted = torch.jit.script(model)
    for sentences in (3, 1):  # one sentence has no padding
        assert (scripted(*batch(sentences))[0] - model(*batch(sentences))[0]).abs().max() < FLOAT32


@pytest.mark.parametrize("version", ["2.11.0a0", "2.11.0a0+git123", "3.0"])
def test_supports_any_version_of_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    for module in (transformer_layer, transformer_encoder):
        monkeypatch.setattr(module, "torch", torch)
        encoder_layer.patch_version(module)
    assert build("transformer", **SMALL).eval()(*batch())[0].isfinite().all()

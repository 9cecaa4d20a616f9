"""The patched encoder layer and encoder: against torch's own layer, checkpoints of unpatched fairseq, TorchScript."""

import pytest
import torch
from fairseq.models.transformer import TransformerConfig, transformer_encoder
from fairseq.modules import transformer_layer
from torch import nn

from fairseq_modern import encoder_layer
from fairseq_modern.encoder_layer import SURPLUS
from tests.common import FLOAT32, FLOAT64
from tests.fairseq.models import SMALL, batch, build

LAYER = "encoder.layers.0."
T, B, C, HEADS, FFN = 7, 3, 12, 3, 20


def make_config(normalize_before=False, activation="relu"):
    cfg = TransformerConfig(dropout=0.0, activation_fn=activation)
    cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim, cfg.encoder.attention_heads = C, FFN, HEADS
    cfg.encoder.normalize_before = normalize_before
    return cfg


def make_layer(**config):
    torch.manual_seed(1)
    layer = transformer_layer.TransformerEncoderLayerBase(make_config(**config)).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():  # initial biases and norms are constants, which would hide errors
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def torch_layer(layer, activation):
    """torch's encoder layer with the same weights."""
    reference = nn.TransformerEncoderLayer(
        C, HEADS, FFN, dropout=0.0, activation=activation, norm_first=layer.normalize_before, dtype=torch.float64
    )
    state, renamed = layer.state_dict(), {}
    names = {"fc1": "linear1", "fc2": "linear2", "self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}
    for kind in ("weight", "bias"):
        parts = [state.pop(f"self_attn.{part}_proj.{kind}") for part in "qkv"]
        renamed[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        renamed[f"{names.get(module, module)}.{kind}"] = value
    reference.load_state_dict(renamed)
    return reference.train()  # dropout is 0; in evaluation, torch would take its fast path


@pytest.mark.parametrize(
    ("masks", "normalize_before", "activation"),
    [("none", False, "relu"), ("padding", True, "relu"), ("attention", False, "gelu"), ("both", False, "relu")],
)
def test_layer_equals_torchs(masks, normalize_before, activation):
    layer = make_layer(normalize_before=normalize_before, activation=activation)
    x = torch.randn(T, B, C, dtype=torch.float64)
    padding = torch.arange(T).expand(B, T) >= torch.tensor([[7], [4], [5]]) if masks in ("padding", "both") else None
    causal = torch.ones(T, T, dtype=torch.float64).triu(1) if masks in ("attention", "both") else None
    ours = layer(x, padding, causal)
    reference = torch_layer(layer, activation)
    theirs = reference(x, src_mask=None if causal is None else causal.bool(), src_key_padding_mask=padding)
    # fairseq's gelu rounds to float32
    assert (ours - theirs).abs().max() < (FLOAT64 if activation == "relu" else FLOAT32)
    # controls: the other position of the norms, and no mask
    assert (ours - torch_layer(make_layer(normalize_before=not normalize_before), activation)(x)).abs().max() > 0.1
    if masks != "none":
        assert (ours - reference(x)).abs().max() > 0.01


def test_initial_parameters_follow_the_seed_as_in_unpatched_fairseq():
    """Attention, fc1, fc2 are drawn in this order, and nothing else is drawn."""
    torch.manual_seed(5)
    layer = transformer_layer.TransformerEncoderLayerBase(make_config())
    after = torch.rand(1)
    torch.manual_seed(5)
    attention = layer.build_self_attention(C, layer.cfg)
    expected = {"self_attn.": attention, "fc1.": nn.Linear(C, FFN), "fc2.": nn.Linear(FFN, C)}
    assert torch.equal(after, torch.rand(1))
    state = layer.state_dict()
    for prefix, module in expected.items():
        for name, value in module.state_dict().items():
            assert torch.equal(state[prefix + name], value), prefix + name


def make_model(**settings):
    return build("transformer", **SMALL, **settings).eval()


def test_loads_checkpoints_of_unpatched_fairseq():
    model, other = make_model(), make_model()
    state = model.state_dict()
    original = {**state, **{f"encoder.layers.{i}.{name}": torch.ones(1) for i in (0, 1) for name in SURPLUS}}
    assert len(original) == len(state) + 16
    with torch.no_grad():
        other.encoder.layers[0].fc1.weight.zero_()
    other.load_state_dict(original, strict=True)
    assert torch.equal(model(*batch())[0], other(*batch())[0])
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict({**state, LAYER + "fc3_weight": torch.ones(1)}, strict=True)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({n: v for n, v in state.items() if n != LAYER + "fc1.weight"}, strict=True)


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_model_can_be_scripted(normalize_before):
    model = make_model(encoder_normalize_before=normalize_before)
    scripted = torch.jit.script(model)
    for sentences in (3, 1):  # one sentence has no padding
        assert (scripted(*batch(sentences))[0] - model(*batch(sentences))[0]).abs().max() < FLOAT32


@pytest.mark.parametrize("version", ["2.11.0a0", "2.11.0a0+git123", "3.0"])
def test_supports_any_version_of_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    for module in (transformer_layer, transformer_encoder):
        monkeypatch.setattr(module, "torch", torch)
        encoder_layer.patch_version(module)
    assert make_model()(*batch())[0].isfinite().all()

"""The encoder layer and the encoder: against torch's own layer, and everything that fairseq asks of them."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModel, transformer_encoder
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules import transformer_layer
from torch import nn

from fairseq_modern import encoder_layer
from fairseq_modern.encoder_layer import SURPLUS

LAYER = "encoder.layers.0."
FLOAT64 = 1e-12
FLOAT32 = 1e-5
T, B, C, HEADS, FFN = 7, 3, 12, 3, 20


def make_config(normalize_before=False, activation="relu", dropout=0.0, **rest):
    cfg = TransformerConfig(dropout=dropout, activation_fn=activation, **rest)
    cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim, cfg.encoder.attention_heads = C, FFN, HEADS
    cfg.encoder.normalize_before = normalize_before
    return cfg


def make_layer(return_fc=False, **config):
    torch.manual_seed(1)
    layer = transformer_layer.TransformerEncoderLayerBase(make_config(**config), return_fc=return_fc).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():  # biases and norms start as constants, which would hide mix-ups
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def torch_layer(layer, activation):
    """torch's own encoder layer with the same weights."""
    reference = nn.TransformerEncoderLayer(
        C, HEADS, FFN, dropout=0.0, activation=activation, norm_first=layer.normalize_before, dtype=torch.float64
    )
    attention = layer.self_attn
    pairs = {
        "self_attn.in_proj_weight": torch.cat([getattr(attention, p).weight for p in ("q_proj", "k_proj", "v_proj")]),
        "self_attn.in_proj_bias": torch.cat([getattr(attention, p).bias for p in ("q_proj", "k_proj", "v_proj")]),
    }
    for theirs, ours in (
        ("self_attn.out_proj", attention.out_proj),
        ("linear1", layer.fc1),
        ("linear2", layer.fc2),
        ("norm1", layer.self_attn_layer_norm),
        ("norm2", layer.final_layer_norm),
    ):
        pairs[f"{theirs}.weight"], pairs[f"{theirs}.bias"] = ours.weight, ours.bias
    reference.load_state_dict({name: value.detach() for name, value in pairs.items()})
    return reference.train()  # without dropout the same, and never torch's fused path


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("normalize_before", [False, True])
@pytest.mark.parametrize("masks", ["none", "padding", "attention", "both"])
def test_layer_equals_torchs(normalize_before, activation, masks):
    layer = make_layer(normalize_before=normalize_before, activation=activation)
    x = torch.randn(T, B, C, dtype=torch.float64)
    padding = torch.arange(T).expand(B, T) >= torch.tensor([[7], [4], [5]]) if masks in ("padding", "both") else None
    causal = torch.ones(T, T, dtype=torch.float64).triu(1) if masks in ("attention", "both") else None
    ours = layer(x, padding, causal)
    reference = torch_layer(layer, activation)
    theirs = reference(x, src_mask=None if causal is None else causal.bool(), src_key_padding_mask=padding)
    # fairseq's own gelu rounds to float32
    assert (ours - theirs).abs().max() < (FLOAT64 if activation == "relu" else FLOAT32)
    # the other kind of normalisation, or no mask, would be far off
    assert (ours - torch_layer(make_layer(normalize_before=not normalize_before), activation)(x)).abs().max() > 0.1
    if masks != "none":
        assert (ours - reference(x)).abs().max() > 0.01


def test_training_applies_dropout_and_reaches_every_parameter():
    layer = make_layer(dropout=0.3, activation_dropout=0.2).train()
    x = torch.randn(T, B, C, dtype=torch.float64)
    assert (layer(x, None) - layer(x, None)).abs().max() > 0.1
    layer(x, None).square().sum().backward()
    without = [name for name, p in layer.named_parameters() if p.grad is None]
    assert without == [], "DistributedDataParallel stops at parameters without a gradient"


def test_masked_positions_are_excluded_in_half_precision_as_well():
    layer = make_layer().bfloat16()
    x = torch.randn(T, B, C).bfloat16()
    changed = x.clone()
    changed[-1] += 1
    last_is_hidden = torch.zeros(T, T)
    last_is_hidden[:-1, -1] = 1
    assert torch.equal(
        layer(x, None, last_is_hidden.bfloat16())[:-1], layer(changed, None, last_is_hidden.bfloat16())[:-1]
    )
    assert not torch.equal(layer(x, None)[:-1], layer(changed, None)[:-1])


def test_return_fc_gives_what_fc2_gave():
    layer, x = make_layer(return_fc=True), torch.randn(T, B, C, dtype=torch.float64)
    seen = []
    layer.fc2.register_forward_hook(lambda module, inputs, output: seen.append(output))
    y, fc_result = layer(x, None)
    assert fc_result is seen[0]
    assert torch.equal(y, make_layer()(x, None))


def test_initial_parameters_follow_the_seed_as_in_published_fairseq():
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


def test_attributes_that_others_read():
    layer = make_layer()
    assert (layer.embed_dim, layer.num_heads, layer.normalize_before) == (C, HEADS, False)
    assert (layer.quant_noise, layer.quant_noise_block_size, layer.return_fc) == (0.0, 8, False)
    assert layer.cfg.encoder.embed_dim == C
    assert layer.residual_connection(1, 2) == 3
    # FairseqDropout is named after the class: a subclass is known to `retain_dropout_modules` by its own name
    assert type("Mine", (type(layer),), {})(make_config()).dropout_module.module_name == "Mine"


class Identity(nn.Module):
    """An attention of a plugin's own, with neither projections nor biases: every position attends to itself."""

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False, attn_mask=None):
        return value, None


def test_any_attention_module_will_do():
    class Layer(transformer_layer.TransformerEncoderLayerBase):
        def build_self_attention(self, embed_dim, cfg):
            return Identity()

    layer, other = Layer(make_config()).eval(), Layer(make_config()).eval()
    x = torch.randn(T, B, C)
    assert not torch.equal(layer(x, None), other(x, None))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x, None), other(x, None))
    inner = layer.self_attn_layer_norm(x + x)
    assert torch.equal(layer(x, None), layer.final_layer_norm(inner + layer.fc2(layer.fc1(inner).relu())))


def make_model(**settings):
    words = Dictionary()
    for word in "abcdefghijklmnop":
        words.add_symbol(word)
    widths = {f"{side}_embed_dim": C for side in ("encoder", "decoder")}
    widths |= {f"{side}_ffn_embed_dim": FFN for side in ("encoder", "decoder")}
    widths |= {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
    args = Namespace(**{**widths, "encoder_layers": 2, "decoder_layers": 1, "dropout": 0.0, **settings})
    base_architecture(args)
    torch.manual_seed(2)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    return TransformerModel.build_model(args, task).eval(), words


def make_batch(words):
    torch.manual_seed(3)
    tokens = torch.randint(words.nspecial, len(words), (B, T))
    tokens[1, 4:] = words.pad()
    tokens[2, 6:] = words.pad()
    return tokens, torch.tensor([7, 4, 6]), torch.randint(words.nspecial, len(words), (B, 5))


def test_checkpoints_of_published_fairseq_lose_their_surplus():
    model, words = make_model()
    state = model.state_dict()
    assert not [name for name in state if name.rsplit(".", 1)[-1] in SURPLUS]
    original = {**state, **{f"encoder.layers.{i}.{name}": torch.ones(1) for i in (0, 1) for name in SURPLUS}}
    assert len(original) == len(state) + 16
    other, _ = make_model(encoder_layers=2, no_token_positional_embeddings=False)
    with torch.no_grad():
        other.encoder.layers[0].fc1.weight.zero_()
    other.load_state_dict(original, strict=True)
    batch = make_batch(words)
    assert torch.equal(model(*batch)[0], other(*batch)[0])
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict({**state, LAYER + "fc3_weight": torch.ones(1)}, strict=True)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({n: v for n, v in state.items() if n != LAYER + "fc1.weight"}, strict=True)


def test_encoder_is_its_embedding_and_layers_in_turn():
    model, words = make_model(encoder_normalize_before=True)
    encoder = model.encoder
    tokens, lengths, _ = make_batch(words)
    out = encoder(tokens, lengths, return_all_hiddens=True)
    padding = tokens == words.pad()

    embedded, embedding = encoder.forward_embedding(tokens)
    x = embedded.masked_fill(padding[..., None], 0).transpose(0, 1)
    states = [x]
    for layer in encoder.layers:
        states.append(torch_layer(layer.double(), "relu")(states[-1].double(), src_key_padding_mask=padding))
    encoder.float()
    assert len(out["encoder_states"]) == 3
    for got, expected in zip(out["encoder_states"], states, strict=True):
        assert (got - expected).abs().max() < FLOAT32
    expected = nn.functional.layer_norm(states[-1].float(), (C,), encoder.layer_norm.weight, encoder.layer_norm.bias)
    assert (out["encoder_out"][0] - expected).abs().max() < FLOAT32
    assert torch.equal(out["encoder_padding_mask"][0], padding)
    assert torch.equal(out["encoder_embedding"][0], embedding)
    assert torch.equal(out["src_lengths"][0], lengths[:, None].int())
    assert out["fc_results"] == [None, None]
    assert out["src_tokens"] == []
    assert encoder(tokens, lengths)["encoder_states"] == []


def test_padding_does_not_change_what_a_sentence_gives():
    model, words = make_model()
    tokens, lengths, _ = make_batch(words)
    padded = model.encoder(tokens, lengths)["encoder_out"][0][:4, 1]
    alone = model.encoder(tokens[1:2, :4], lengths[1:2])["encoder_out"][0][:, 0]
    assert (padded - alone).abs().max() < FLOAT32
    other_length = model.encoder(tokens[1:2, :3], lengths[1:2])["encoder_out"][0][:, 0]
    assert (padded[:3] - other_length).abs().max() > 1e-3


def test_layer_drop_skips_layers_in_training_only():
    model, words = make_model(encoder_layerdrop=0.5, encoder_layers=4)
    tokens, lengths, _ = make_batch(words)
    counts = {len(model.encoder(tokens, lengths, True)["encoder_states"]) for _ in range(5)}
    assert counts == {5}
    model.train()
    counts = {len(model.encoder(tokens, lengths, True)["encoder_states"]) for _ in range(20)}
    assert len(counts) > 1
    assert max(counts) <= 5


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_whole_model_can_be_scripted(normalize_before):
    model, words = make_model(encoder_normalize_before=normalize_before)
    scripted = torch.jit.script(model)
    batch = make_batch(words)
    assert (scripted(*batch)[0] - model(*batch)[0]).abs().max() < FLOAT32
    without_padding = (batch[0][:1], batch[1][:1], batch[2][:1])
    assert (scripted(*without_padding)[0] - model(*without_padding)[0]).abs().max() < FLOAT32
    assert (scripted(*without_padding)[0] - model(*batch)[0][:1]).abs().max() < FLOAT32


@pytest.mark.parametrize("version", ["2.11.0a0", "2.11.0a0+git123", "3.0"])
def test_any_version_of_torch_will_do(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    for module in (transformer_layer, transformer_encoder):
        monkeypatch.setattr(module, "torch", torch)
        encoder_layer.patch_version(module)
    model, words = make_model()
    assert model(*make_batch(words))[0].isfinite().all()

"""Shapes of single layers, layers to keep, settings that a model writes back, and settings that cannot be."""

import pytest
import torch
from fairseq import models
from fairseq.modules import MultiheadAttention

from collab_fairseq.attention import GroupedAttention, LatentAttention
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers
from tests.common import FLOAT32
from tests.fairseq.models import SMALL, TINY, Task, arguments, batch, build

SHAPES = {
    "encoder.0": {"key_dim": 4},
    "encoder.2": {"key_dim": 5, "scale": 0.25},
    "cross.1": {"num_heads": 1, "head_dim": 8},
    "decoder.1": {"collaborative": False, "key_dim": 4},
}
STANDARD = {"collaborative_heads": "none"}
DEEP = {**SMALL, "encoder_layers": 3, "key_dim": 6}


@pytest.mark.parametrize("keep", [{"encoder": "2", "decoder": "1"}, {"encoder": [2, 0], "decoder": [0, 1]}])
def test_kept_layers_keep_their_shapes(keep):
    """Against the whole model, from which the other layers are taken by hand."""
    whole = build(**DEEP, attention_shapes=SHAPES)
    args = arguments(**DEEP, attention_shapes=SHAPES, **{f"{s}_layers_to_keep": kept for s, kept in keep.items()})
    pruned = models.build_model(args, Task())
    pruned.load_state_dict(whole.state_dict(), model_cfg=args)
    for side, kept in keep.items():
        stack = getattr(whole, side)
        stack.layers = torch.nn.ModuleList(stack.layers[i] for i in sorted(map(int, kept)))
    assert list(attention_layers(pruned)) == list(attention_layers(whole))
    assert (pruned.eval()(*batch())[0] - whole.eval()(*batch())[0]).abs().max() < FLOAT32

    # what training that resumes from here saves
    assert (args.encoder_layers, args.encoder_layers_to_keep) == (len(keep["encoder"]), None)
    again = models.build_model(args, Task())
    again.load_state_dict(pruned.state_dict(), model_cfg=args)
    assert torch.equal(again.eval()(*batch())[0], pruned(*batch())[0])


def test_settings_are_written_back_as_fairseqs_transformer_does():
    """fairseq's task online_backtranslation reads them; other programs read those of the model."""
    for flags, positions in (({}, 1024), ({"max_source_positions": 77, "max_target_positions": 77}, 77)):
        for arch in ("transformer", "transformer_collab"):
            args = arguments(arch, **SMALL, **flags)
            model = models.build_model(args, Task())
            assert args.max_source_positions == args.max_target_positions == positions
            assert model.args.max_source_positions == positions
            assert model.args.encoder_embed_dim == 16


def test_quantization_noise_reaches_the_projections():
    """As in fairseq's attention where that calls its projections; in training it reads weights, past the noise."""
    flags = {**SMALL, "dropout": 0.0, "quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4}
    logits = []
    for arch, reads_weights in (("transformer_collab", None), ("transformer", False), ("transformer", True)):
        model = build(arch, **flags, **({"collaborative_heads": "none"} if arch == "transformer_collab" else {}))
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                module.skip_embed_dim_check = not reads_weights
        torch.manual_seed(3)
        logits.append(model.train()(*batch())[0])
    ours, theirs, without_noise = logits
    assert (ours - theirs).abs().max() < FLOAT32
    assert (ours - without_noise).abs().max() > 0.1


def test_a_layer_may_have_its_own_shape():
    shapes = {
        "encoder.1": {"key_dim": 5, "scale": 0.25, "query_bias": False},
        "cross.0": {"num_heads": 1, "head_dim": 8, "content_bias": True},
        "cross.1": {"value_heads": 1},
        "decoder.0": {"collaborative": False, "key_dim": 4, "kv_latent_dim": 3},
        "decoder.1": {"collaborative": False, "key_dim": 4, "kv_heads": 1},
    }
    model = build(**SMALL, key_dim=6, attention_shapes=shapes).eval()
    layers = attention_layers(model)
    assert layers["encoder.0"].key_dim == 6
    assert layers["encoder.1"].key_dim == 5
    assert layers["encoder.1"].scale == 0.25
    assert layers["encoder.1"].q_proj.bias is None
    assert layers["cross.0"].out_proj.weight.shape == (16, 8)
    assert layers["cross.0"].content_bias.shape == (1, 16)
    assert layers["cross.1"].v_proj.weight.shape == (8, 16)
    assert isinstance(layers["decoder.0"], LatentAttention)
    assert layers["decoder.0"].latent_proj.weight.shape == (3, 16)
    assert isinstance(layers["decoder.1"], GroupedAttention)
    assert layers["decoder.1"].k_proj.weight.shape == (2, 16)
    assert model(*batch())[0].shape == (3, 6, 50)


def test_a_site_may_have_its_own_key_dim():
    """Collaborative heads in the encoder only, the rest as in fairseq's transformer."""
    model = build(**SMALL, collaborative_heads="encoder", encoder_key_dim=6)
    stock = build("transformer", **SMALL)
    assert {layer.key_dim for place, layer in attention_layers(model).items() if "encoder" in place} == {6}
    ours, theirs = ({n: p.shape for n, p in m.decoder.named_parameters()} for m in (model, stock))
    assert ours == theirs
    layers = attention_layers(build(**SMALL, key_dim=4, encoder_key_dim=6, cross_key_dim=8))
    assert [layer.key_dim for layer in layers.values()] == [6, 6, 8, 8, 4, 4]


@pytest.mark.parametrize("heads", ["none", "encoder_cross_decoder"])
@pytest.mark.parametrize(
    ("key_dim", "init", "gain"),
    [(32, "default", 0.5**0.5), (32, "authors", 1.0), (128, "default", 0.5**0.5), (128, "authors", 0.5**0.5)],
)
def test_initial_weights_have_the_variance_of_the_authors_code(heads, key_dim, init, gain):
    """In their fork the key dim is ``kdim``, and fairseq's smaller gain is for inputs that are all alike."""
    given = {**TINY, "encoder_layers": 1, "decoder_layers": 1, "collaborative_heads": heads}
    layers = attention_layers(build(**given, key_dim=key_dim, attention_init=init))
    assert len(layers) == 3
    for layer in layers.values():
        gains = {"q_proj": gain, "k_proj": gain, "v_proj": gain, "out_proj": 1.0}
        weights = {layer.get_submodule(name).weight: expected for name, expected in gains.items()}
        if heads != "none":
            weights[layer.mixing] = 1.0
        for weight, expected in weights.items():
            ratio = float(weight.std()) / (expected * (2 / sum(weight.shape)) ** 0.5)
            assert abs(ratio - 1) < 1.6 / weight.numel() ** 0.5  # 3.5 standard errors
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            assert 0.8 < float(projection.bias.abs().max()) * 128**0.5 <= 1.0
        assert not layer.out_proj.bias.any()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"collaborative_heads": "encoder_cros"}, "'cros' in 'encoder_cros'"),
        ({"collaborative_heads": "encoder_encoder"}, "each site once"),
        ({"collaborative_heads": "encoder", "decoder_key_dim": 7}, "--decoder-key-dim must be divisible by --dec"),
        ({"cross_key_dim": 0}, "--cross-key-dim must be positive; got 0"),
        ({"mixing_init": "blocks", "encoder_key_dim": 1}, "--encoder-key-dim must be at least --encoder-att"),
        ({"attention_init": "authors", "mixing_init": "blocks"}, "--mixing-init must be xavier .* got blocks"),
        ({"key_dim": 0}, "--key-dim must be positive; got 0"),
        ({"value_heads": 3}, "encoder attention: --value-heads must divide the 2 heads; got 3"),
        ({**STANDARD, "value_heads": 1}, "--value-heads 1 is for collaborative heads, .* is none"),
        ({"kv_heads": 1}, "--kv-heads 1 is for standard heads, but --collaborative-heads is encoder_cross_decoder"),
        ({**STANDARD, "kv_latent_dim": 8, "kv_heads": 1}, "--kv-latent-dim are different attention types"),
        ({"attention_shapes": {"cross.0": {"kv_heads": 1}}}, r"\[cross.0\]: 'kv_heads' is not .* collaborative heads"),
        ({"mixing_lr_multiplier": -1.0}, "--mixing-lr-multiplier must be positive; got -1.0"),
        ({"attention_dropout": 1.0}, "--attention-dropout must be at least 0 and below 1; got 1.0"),
        ({"mixing_init": "bands"}, "--mixing-init must be one of xavier, blocks, normal; got 'bands'"),
        ({"attention_kernel": "head_loop", "collaborative_heads": "none"}, "must be one of auto, bmm, sdpa with"),
        ({"attention_shapes": {"cross.0": {"keys": 3}}}, "'keys'"),
        ({"attention_shapes": {"encoder.77": {}}}, "encoder.0 to encoder.1, cross.0 to cross.1"),
        ({"encoder_layers_to_keep": [2]}, "--encoder-layers-to-keep .* 0 to 1"),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config"),
        ({"key_dim": "abc"}, "model.key_dim must be of type int; got 'abc'"),
        ({"decoder_layerdrop": "abc"}, "model.decoder_layerdrop must be of type float; got 'abc'"),
        ({"dropout": 7}, "model.dropout must be between 0 and 1; got 7"),
        ({"encoder_layers": -1}, "model.encoder_layers must be between 0 and 10,000; got -1"),
        ({"decoder_ffn_embed_dim": None}, "model.decoder_ffn_embed_dim must be of type int; got None"),
        ({"share_all_embeddings": "yes"}, "model.share_all_embeddings must be true or false; got 'yes'"),
        ({"attention_shapes": 3}, "model.attention_shapes must be a mapping; got 3"),
        ({"attention_shapes": {3: {}}}, "keyed like encoder.0 or cross.3, but has 3"),
        ({"attention_shapes": {"cross.0": 3}}, r"attention_shapes\[cross.0\] must be a mapping; got 3"),
        ({"attention_shapes": {"cross.0": {"key_dim": "x"}}}, r"\[cross.0\].key_dim must be of type int; got 'x'"),
        ({"attention_shapes": {"cross.0": {"scale": True}}}, r"\[cross.0\].scale must be of type float; got True"),
        ({"attention_shapes": {"cross.0": {"num_heads": -2}}}, r"\[cross.0\]: num_heads must be positive; got -2"),
    ],
)
def test_impossible_flags_are_named(flags, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**{**SMALL, **flags})

"""Settings of the model: shapes of single layers, kept layers, initialisation, and invalid values."""

import pytest
import torch
from fairseq import models
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.attention import AttentionError, GroupedAttention, LatentAttention
from collab_fairseq.models.arguments import inherit_attention
from collab_fairseq.modules.sites import attention_layers
from fairseq_modern.errors import UserError
from tests.common import FLOAT32
from tests.models.cases import SMALL, TINY, Task, arguments, batch, both_sides, build

SHAPES = {
    "encoder.0": {"key_dim": 4},
    "encoder.2": {"key_dim": 5, "scale": 0.25},
    "cross.1": {"num_heads": 1, "head_dim": 8},
    "decoder.1": {"collaborative": False, "key_dim": 4},
}
STANDARD = {"collaborative_heads": "none"}
NO_CROSS = {"no_cross_attention": True, "cross_self_attention": True}
NOISE = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}
DEEP = {**SMALL, "encoder_layers": 3, "key_dim": 6, "attention_shapes": SHAPES}


@pytest.mark.parametrize(
    "keep", [{"encoder": "2", "decoder": "1"}, {"encoder": [2, 0], "decoder": [0, 1]}, {"encoder": "0,2"}], ids=str
)
def test_kept_layers_keep_their_shapes(keep):
    """Compared with the complete model after removing its other layers."""
    complete = build(**DEEP)
    args = arguments(**DEEP, **{f"{side}_layers_to_keep": kept for side, kept in keep.items()})
    pruned = models.build_model(args, Task())
    pruned.load_state_dict(complete.state_dict(), model_cfg=args)
    for side, kept in keep.items():
        stack = getattr(complete, side)
        numbers = kept.split(",") if isinstance(kept, str) else kept
        stack.layers = torch.nn.ModuleList(stack.layers[i] for i in sorted(map(int, numbers)))
    assert list(attention_layers(pruned)) == list(attention_layers(complete))
    assert (pruned.eval()(*batch())[0] - complete.eval()(*batch())[0]).abs().max() < FLOAT32

    # the settings that a training run saves describe the kept layers; those of the same command do so again
    assert (args.encoder_layers, args.encoder_layers_to_keep) == (len(pruned.encoder.layers), None)
    same_command = arguments(**DEEP, **{f"{side}_layers_to_keep": kept for side, kept in keep.items()})
    for settings in (args, same_command):
        resumed = models.build_model(settings, Task())
        resumed.load_state_dict(pruned.state_dict(), model_cfg=settings)
        assert torch.equal(resumed.eval()(*batch())[0], pruned(*batch())[0])


def test_kept_layers_of_gated_models_and_moving_averages():
    flags = {**SMALL, "encoder_layers": 3, "key_dim": 6}
    full = build(**flags)
    gated = {"encoder_layers_to_keep": "0,2", "head_gates": "encoder"}
    args = arguments(**flags, **gated)
    kept = models.build_model(args, Task())
    average = EMA(kept, EMAConfig())
    kept.load_state_dict(full.state_dict(), model_cfg=args)
    average.restore(full.state_dict())
    for model in (kept, average.get_model()):
        for new, old in enumerate((0, 2)):
            assert torch.equal(model.encoder.layers[new].fc1.weight, full.encoder.layers[old].fc1.weight)


@pytest.mark.parametrize("arch", ["transformer", "transformer_collab"])
@pytest.mark.parametrize(
    ("flags", "positions"), [({}, 1024), ({"max_source_positions": 77}, 77), ({"max_source_positions": None}, 1024)]
)
def test_building_a_model_completes_its_settings(arch, flags, positions):
    """fairseq's task online_backtranslation reads them."""
    args = arguments(arch, **SMALL, **flags)
    model = models.build_model(args, Task())
    assert args.max_source_positions == model.args.max_source_positions == positions
    assert args.max_target_positions == 1024
    assert model.args.encoder_embed_dim == 16


def test_quantization_noise_reaches_the_projections():
    """As in fairseq's attention, if that calls its projections. Otherwise it reads their weights, without noise."""
    flags = {**SMALL, "dropout": 0.0, "quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4}
    logits = []
    for arch, reads_weights in (("transformer_collab", None), ("transformer", False), ("transformer", True)):
        model = build(arch, **flags, **({"collaborative_heads": "none"} if arch == "transformer_collab" else {}))
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                module.skip_embed_dim_check = not reads_weights
        before = [parameter.clone() for parameter in model.parameters()]
        torch.manual_seed(3)
        logits.append(model.train()(*batch())[0])
        assert all(map(torch.equal, model.parameters(), before))
    ours, theirs, without_noise = logits
    assert (ours - theirs).abs().max() < FLOAT32
    assert (ours - without_noise).abs().max() > 0.1


def test_quantization_noise_applies_to_one_call():
    """Fan et al. (2020): blocks of the weight are dropped, and its gradient is that of the noisy weight."""
    torch.manual_seed(3)
    layer = quant_noise(torch.nn.Linear(4, 3, bias=False), 0.5, 2)
    weight, x = layer.weight.detach().clone(), torch.eye(4, requires_grad=True)
    y = layer(x)  # (4, 3)
    noisy = y.detach().T
    blocks = (noisy / weight).view(3, 2, 2)
    assert {*blocks[..., 0].unique().tolist()} == {0.0, 2.0}
    assert torch.equal(blocks[..., 0], blocks[..., 1])
    y.square().sum().backward()
    assert torch.equal(layer.weight, weight)
    assert torch.allclose(layer.weight.grad, 2 * noisy)
    assert torch.allclose(x.grad, 2 * y @ noisy)
    assert torch.equal(layer.eval()(x), weight.T)


def test_layers_may_have_their_own_shapes():
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
    assert (layers["encoder.1"].key_dim, layers["encoder.1"].scale, layers["encoder.1"].q_proj.bias) == (5, 0.25, None)
    assert layers["cross.0"].out_proj.weight.shape == (16, 8)
    assert layers["cross.0"].content_bias.shape == (1, 16)
    assert layers["cross.1"].v_proj.weight.shape == (8, 16)
    assert isinstance(layers["decoder.0"], LatentAttention)
    assert layers["decoder.0"].latent_proj.weight.shape == (3, 16)
    assert isinstance(layers["decoder.1"], GroupedAttention)
    assert layers["decoder.1"].k_proj.weight.shape == (2, 16)
    assert model(*batch())[0].shape == (3, 6, 50)


@pytest.fixture
def four_heads(tmp_path):
    """A checkpoint with standard heads: four in the encoder, one in the decoder."""
    settings = {**SMALL, **STANDARD, "encoder_attention_heads": 4, "decoder_attention_heads": 1}
    model = build(**settings).eval()
    cfg = {"model": {"_name": "transformer_collab", **settings}}
    checkpoints.save({"cfg": cfg, "model": model.state_dict()}, tmp_path / "four.pt")
    return model, tmp_path / "four.pt"


def test_attention_from_takes_numbers_of_heads(four_heads):
    """Not those of the preset, with which the same weights would be another function."""
    original, path = four_heads
    sizes = both_sides(embed_dim=16, ffn_embed_dim=20, layers=2)
    model = build(**sizes, attention_from=str(path))
    layers = attention_layers(model)
    heads = {site: layers[f"{site}.1"].num_heads for site in ("encoder", "cross", "decoder")}
    assert heads == {"encoder": 4, "cross": 1, "decoder": 1}
    assert (layers["encoder.1"].scale, layers["decoder.1"].scale) == (0.5, 0.25)
    model.load_state_dict(original.state_dict())
    assert (model.eval()(*batch())[0] - original(*batch())[0]).abs().max() < FLOAT32
    with pytest.raises(RuntimeError, match="num_heads must be 4, as in the state dict; got 8"):
        build(**sizes, **STANDARD).load_state_dict(original.state_dict())


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_from_rejects_another_number_of_heads(four_heads, heads):
    config = OmegaConf.create({"attention_from": str(four_heads[1]), "encoder_attention_heads": heads})
    if heads == 4:
        inherit_attention(config)
        assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 1)
    else:
        with pytest.raises(UserError, match=r"--encoder-attention-heads is 1, but 4 in .*four\.pt; leave out"):
            inherit_attention(config)


def test_sites_may_have_their_own_key_dimensions():
    """With collaborative heads in the encoder only, the decoder is that of fairseq's transformer."""
    model, baseline = build(**SMALL, collaborative_heads="encoder", encoder_key_dim=6), build("transformer", **SMALL)
    ours, theirs = ({n: p.shape for n, p in m.decoder.named_parameters()} for m in (model, baseline))
    assert ours == theirs
    layers = attention_layers(build(**SMALL, key_dim=4, encoder_key_dim=6, cross_key_dim=8))
    assert [layer.key_dim for layer in layers.values()] == [6, 6, 8, 8, 4, 4]


@pytest.mark.parametrize("heads", ["none", "encoder_cross_decoder"])
@pytest.mark.parametrize(
    ("key_dim", "init", "gain"),
    [(32, "default", 0.5**0.5), (32, "authors", 1.0), (128, "default", 0.5**0.5), (128, "authors", 0.5**0.5)],
)
def test_initial_weights_have_the_variance_of_the_authors_code(heads, key_dim, init, gain):
    """In their fork, the key dimension is ``kdim``, and fairseq uses the smaller gain only if all inputs are equal."""
    flags = {**TINY, "encoder_layers": 1, "decoder_layers": 1, "collaborative_heads": heads}
    layers = attention_layers(build(**flags, key_dim=key_dim, attention_init=init))
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
        ({"collaborative_heads": "encoder_cros"}, "--collaborative-heads must be different sites among"),
        ({"collaborative_heads": "encoder_encoder"}, "--collaborative-heads must be different sites"),
        ({"collaborative_heads": "encoder", "decoder_key_dim": 7}, "decoder attention: key_dim must be divisible"),
        ({"mixing_init": "blocks", "encoder_key_dim": 1}, "encoder attention: .*key_dim"),
        ({"value_heads": 3}, "encoder attention: value_heads must divide the 2 heads"),
        ({**STANDARD, "value_heads": 1}, "--value-heads is for collaborative heads; the model has standard heads"),
        ({**NO_CROSS, "mask_heads": "A:1:1"}, "A:1"),
        ({**NO_CROSS, "collaborative_heads": "cross", "value_heads": 1}, "--value-heads is for collaborative heads"),
        ({**NO_CROSS, "cross_key_dim": 6}, "--cross-key-dim needs cross-attention"),
        ({**NO_CROSS, "head_gates": "encoder_cross"}, "--head-gates cross needs cross-attention"),
        ({"kv_heads": 1}, "--kv-heads is for grouped heads; the model has collaborative heads"),
        ({**STANDARD, "kv_heads": 0}, "encoder attention: kv_heads must divide the 2 heads; got 0"),
        ({**STANDARD, "kv_latent_dim": 8, "kv_heads": 1}, "--kv-latent-dim is for latent heads; .* grouped heads"),
        ({"attention_shapes": {"cross.0": {"kv_heads": 1}}}, "cross.0 attention: 'kv_heads' .* collaborative"),
        ({"attention_kernel": "head_loop", **STANDARD}, "must be among auto, bmm, sdpa with standard heads"),
        ({"attention_shapes": {"cross.0": {"keys": 3}}}, "'keys'"),
        ({"attention_shapes": {"encoder.77": {}}}, "encoder.0 to encoder.1, cross.0 to cross.1"),
        ({"encoder_layers_to_keep": [2]}, "--encoder-layers-to-keep .* 0 to 1"),
        ({**STANDARD, "kv_latent_dim": 6, **NOISE}, "encoder attention: Input features must be a multiple of block"),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config"),
        ({"key_dim": "abc"}, "model.key_dim must be of type int; got 'abc'"),
        ({"dropout": 7}, "model.dropout must be between 0 and 1; got 7"),
        ({"share_all_embeddings": "yes"}, "model.share_all_embeddings must be true or false; got 'yes'"),
        ({"attention_shapes": {3: {}}}, "encoder.0 or cross.3; got 3"),
        ({"attention_shapes": {"cross.0": {"scale": True}}}, r"\[cross.0\].scale must be of type float; got True"),
    ],
    ids=str,
)
def test_rejects_invalid_settings(flags, message):
    with pytest.raises((UserError, AttentionError), match=message):
        build(**{**SMALL, **flags})

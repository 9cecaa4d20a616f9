"""The model: sizes, parameters, equality with fairseq's transformer, and support of its features."""

import importlib
import pickle

import pytest
import torch
from fairseq import models, utils
from fairseq.dataclass.initialize import add_defaults
from fairseq.models.transformer import transformer_legacy
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.attention import SITES, CollaborativeAttention, StandardAttention
from collab_fairseq.models import TransformerCollabModel
from collab_fairseq.models.presets import transformer_collab
from collab_fairseq.modules import layers
from collab_fairseq.modules.fairseq_compat import SURPLUS
from collab_fairseq.modules.sites import attention_layers
from fairseq_modern.errors import UserError
from tests.commands import nested
from tests.common import FLOAT32, run
from tests.models.cases import KINDS, SMALL, TINY, Task, arguments, batch, build, logits, same_model

#: our preset → fairseq's preset of the same size, and settings
PRESETS = {
    "transformer_collab": ("transformer", {}),
    "transformer_collab_big": ("transformer_vaswani_wmt_en_de_big", {}),
    "transformer_collab_iwslt_de_en": ("transformer_iwslt_de_en", {}),
    "transformer_collab_tiny": ("transformer", TINY),
}


SMALL_FFN = {"encoder_ffn_embed_dim": 20, "decoder_ffn_embed_dim": 20, "decoder_attention_heads": 2}


def build_as_hydra(arch, **flags):
    """Build a model as fairseq-hydra-train does."""
    cfg = OmegaConf.create({"model": {"_name": arch, "share_all_embeddings": True, **nested(flags)}})
    add_defaults(cfg)
    OmegaConf.set_struct(cfg, True)
    return models.build_model(cfg.model, Task())


@pytest.mark.parametrize("flags", [{}, {"encoder_layers": 2, "encoder_ffn_embed_dim": 77, "dropout": 0.2}])
@pytest.mark.parametrize("builder", [build, build_as_hydra])
@pytest.mark.parametrize("arch", PRESETS)
def test_presets_have_fairseqs_sizes_which_flags_override(arch, builder, flags):
    preset, sizes = PRESETS[arch]
    with torch.device("meta"):
        model = builder(arch, collaborative_heads="none", **flags)
        expected = build(preset, **{**sizes, **flags})
    for ours, theirs in ((model.encoder, expected.encoder), (model.decoder, expected.decoder)):
        assert [(name, p.shape) for name, p in ours.named_parameters()] == [
            (name, p.shape) for name, p in theirs.named_parameters()
        ]
        heads = [[layer.self_attn.num_heads for layer in side.layers] for side in (ours, theirs)]
        assert heads[0] == heads[1]
        assert ours.dropout_module.p == theirs.dropout_module.p


def test_reset_parameters_gives_the_attention_of_a_new_model():
    """With gates and masked heads, after the meta device."""
    flags = {**SMALL, "key_dim": 6, "head_gates": "encoder", "head_gates_init": 1.5, "mask_heads": "E:1:2 D:2:1"}
    layers = attention_layers(build(**flags))
    with torch.device("meta"):
        model = build(**flags)
    for layer_id, layer in attention_layers(model.to_empty(device="cpu")).items():
        for attention in (layer, layers[layer_id]):
            torch.manual_seed(1)
            attention.reset_parameters()
        expected = dict([*layers[layer_id].named_parameters(), *layers[layer_id].named_buffers()])
        actual = dict([*layer.named_parameters(), *layer.named_buffers()])
        assert same_model(actual, expected)
        assert ("head_gates.log_alpha" in actual) == layer_id.startswith("encoder")
    assert layers["decoder.1"].head_multiplier.tolist() == [0, 1]
    assert layers["encoder.0"].head_gates.log_alpha.tolist() == [1.5, 1.5]


@pytest.fixture
def user_presets(monkeypatch):
    """A script with a preset for our model, and with a subclass of it that has a preset and a flag."""
    for name in ("ARCH_MODEL_REGISTRY", "ARCH_MODEL_NAME_REGISTRY", "ARCH_CONFIG_REGISTRY", "MODEL_REGISTRY"):
        monkeypatch.setattr(models, name, {**getattr(models, name)})
    monkeypatch.setattr("tests.models.cases.ARCH_CONFIG_REGISTRY", models.ARCH_CONFIG_REGISTRY)

    @models.register_model("user_model")
    class UserModel(TransformerCollabModel):
        @classmethod
        def build_model(cls, args, task):
            model = super().build_model(args, task)
            model.user_setting = getattr(args, "user_setting", None)
            return model

    def preset(args):
        args.encoder_layers = getattr(args, "encoder_layers", 3)
        args.decoder_layers = getattr(args, "decoder_layers", args.encoder_layers)
        args.encoder_embed_dim = getattr(args, "encoder_embed_dim", 16)
        args.encoder_attention_heads = getattr(args, "encoder_attention_heads", 2)
        args.key_dim = getattr(args, "key_dim", 6)
        transformer_collab(args)

    for name in ("transformer_collab", "user_model"):
        models.register_model_architecture(name, f"user_{name}")(preset)


@pytest.mark.parametrize("builder", [build, build_as_hydra])
@pytest.mark.parametrize("arch", ["user_transformer_collab", "user_user_model"])
def test_presets_of_users(arch, builder, user_presets):
    """Flags and nested settings override them, and what they derive follows."""
    for flags, depth, key_dim in (({}, 3, 6), ({"encoder_layers": 2, "key_dim": 4}, 2, 4)):
        model = builder(arch, **SMALL_FFN, **flags)
        attention = attention_layers(model)
        assert list(attention) == [f"{site}.{layer}" for site in SITES for layer in range(depth)]
        assert {(layer.embed_dim, layer.num_heads, layer.key_dim) for layer in attention.values()} == {(16, 2, key_dim)}
    if arch == "user_user_model":
        assert builder(arch, **SMALL_FFN, user_setting=7).user_setting == 7
    else:  # a setting that nothing reads
        with pytest.raises(UserError, match="user_setting is not a setting"):
            build_as_hydra(arch, user_setting=7)


@pytest.mark.parametrize("builder", [build, build_as_hydra])
def test_attention_from_applies_to_presets_of_users_that_only_call_fairseqs(builder, user_presets, tmp_path):
    """Compared with the layers of the checkpoint; a preset that sets other heads is an error."""
    models.register_model_architecture("transformer_collab", "user_direct")(transformer_legacy.base_architecture)
    flags = {**SMALL, "key_dim": 6, "cross_key_dim": 4, "mixing_lr_multiplier": 3.0}
    saved = build(**flags)
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoints.save(
        {"cfg": {"model": {"_name": "transformer_collab", **flags}}, "model": saved.state_dict()}, checkpoint
    )
    options = {"share_all_embeddings": True, "attention_from": str(checkpoint)}
    layers = attention_layers(builder("user_direct", **SMALL, **options))
    expected = {layer_id: (layer.key_dim, layer.scale) for layer_id, layer in attention_layers(saved).items()}
    assert {layer_id: (layer.key_dim, layer.scale) for layer_id, layer in layers.items()} == expected
    control = attention_layers(builder("user_direct", **SMALL, share_all_embeddings=True))
    assert {layer_id: (layer.key_dim, layer.scale) for layer_id, layer in control.items()} != expected
    others = {name: size for name, size in SMALL.items() if "heads" not in name}
    with pytest.raises(UserError, match=r"--encoder-attention-heads is 8, but 2 in --attention-from"):
        builder("user_direct", **others, **options)


@pytest.mark.parametrize("heads", ["none", "encoder", "cross", "decoder", "decoder_encoder", "cross_decoder_encoder"])
def test_each_site_is_standard_or_collaborative(heads):
    model = build(**SMALL, collaborative_heads=heads, key_dim=6)
    layers = attention_layers(model)
    assert list(layers) == [f"{site}.{layer}" for site in SITES for layer in (0, 1)]
    for layer_id, attention in layers.items():
        collaborative = layer_id.split(".")[0] in heads.split("_")
        assert isinstance(attention, CollaborativeAttention if collaborative else StandardAttention)
        assert attention.q_proj.out_features == attention.k_proj.out_features == 6
        mixing = 2 * 6 if collaborative else 0
        assert sum(p.numel() for p in attention.parameters()) == 2 * 17 * 6 + 2 * 17 * 16 + mixing
        assert attention.scale == 8**-0.5


def test_standard_heads_equal_fairseqs_transformer_with_the_same_seed():
    ours = build("transformer_collab_tiny", collaborative_heads="none", attention_dropout=0.2)
    theirs = build("transformer", **TINY, attention_dropout=0.2)
    assert same_model(ours.state_dict(), theirs.state_dict())
    for training in (False, True):
        logits = []
        for model in (ours, theirs):
            torch.manual_seed(1)
            logits.append(model.train(training)(*batch())[0])
        assert (logits[0] - logits[1]).abs().max() < FLOAT32
    control = build("transformer_collab_tiny", collaborative_heads="none", seed=1).eval()
    assert (control(*batch())[0] - theirs.eval()(*batch())[0]).abs().max() > 0.1


def test_loads_state_dicts_of_published_fairseq():
    """They have surplus parameters of encoder layers, or, in old versions, fused attention projections."""
    theirs = build("transformer", **SMALL).eval()
    state = theirs.state_dict()
    state.update({f"encoder.layers.{layer}.{name}": torch.zeros(1) for layer in (0, 1) for name in SURPLUS})
    for prefix in [name for name, module in theirs.named_modules() if isinstance(module, MultiheadAttention)]:
        for name in ("weight", "bias"):
            parts = [state.pop(f"{prefix}.{part}_proj.{name}") for part in "qkv"]
            state[f"{prefix}.in_proj_{name}"] = torch.cat(parts)
    ours = build(**SMALL, collaborative_heads="none").eval()
    ours.load_state_dict(state, strict=True)
    assert (ours(*batch())[0] - theirs(*batch())[0]).abs().max() < FLOAT32
    with pytest.raises(RuntimeError, match="something_else"):
        ours.load_state_dict({**state, "encoder.layers.0.something_else": torch.zeros(1)}, strict=True)


def gradients(model, seed=0):
    torch.manual_seed(seed)
    model.train()(*batch())[0].logsumexp(-1).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_activation_checkpointing_does_not_change_gradients():
    flags = {**SMALL, "key_dim": 6, "dropout": 0.3, "attention_dropout": 0.2}
    plain, checkpointed = (gradients(build(**flags, checkpoint_activations=c)) for c in (False, True))
    assert plain.keys() == checkpointed.keys()
    assert all((plain[name] - checkpointed[name]).abs().max() < 1e-6 for name in plain)
    control = gradients(build(**flags), seed=1)
    assert any((plain[name] - control[name]).abs().max() > 1e-4 for name in plain)


@pytest.mark.parametrize(("kernel", "of_standard_heads"), [("head_loop", "auto"), ("bmm", "bmm"), ("sdpa", "sdpa")])
def test_kernel_flag_sets_the_kernel_of_layers_that_have_it(kernel, of_standard_heads):
    """test_kernel_equals_the_reference compares the results of kernels."""
    model = build(**SMALL, key_dim=8, attention_kernel=kernel, collaborative_heads="encoder_cross")
    expected = {"encoder": kernel, "cross": kernel, "decoder": of_standard_heads}
    for layer_id, attention in attention_layers(model).items():
        assert attention.kernel == expected[layer_id.split(".")[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind):
    """Otherwise, data-parallel training fails at its second update."""
    model = build(**SMALL, **KINDS[kind])
    assert set(gradients(model)) == {name for name, _ in model.named_parameters()}


def test_layerdrop_drops_layers_only_in_training():
    model = build(**SMALL, key_dim=6, dropout=0.0, encoder_layerdrop=0.5, decoder_layerdrop=0.5)
    plain = build(**SMALL, key_dim=6, dropout=0.0)
    plain.load_state_dict(model.state_dict())
    expected = plain.train()(*batch())[0]
    assert (model.eval()(*batch())[0] - expected).abs().max() < FLOAT32
    model.train()
    torch.manual_seed(0)
    kept = [bool((model(*batch())[0] - expected).abs().max() < FLOAT32) for _ in range(64)]
    assert 0 < sum(kept) < 20  # one in sixteen keeps all four layers


def test_alignment_is_the_cross_attention_of_the_last_layer():
    model = build(**SMALL, key_dim=6).eval()
    source, lengths, target = batch()
    calls = []
    attention_layers(model)["cross.1"].register_forward_hook(lambda *call: calls.append(call[-1][1]))  # (H, N, T, S)
    for heads in (None, 1):
        attention = model(source, lengths, target, alignment_layer=1, alignment_heads=heads)[1]["attn"][0]
        assert torch.allclose(attention, calls[-1][:heads].mean(0))
        assert (attention[1, :, 0] == 0).all()  # padding
    other = model(source, lengths, target, alignment_layer=0)[1]["attn"][0]
    assert (other - calls[0].mean(0)).abs().max() > 1e-4 < (attention - calls[0].mean(0)).abs().max()  # controls


@pytest.mark.parametrize("retained", [False, True])
def test_retained_dropout_reaches_attention(retained):
    model = build(**SMALL, key_dim=6, dropout=0.0, attention_dropout=0.5)
    model.make_generation_fast_(retain_dropout=retained, retain_dropout_modules=["MultiheadAttention"])
    model.eval()
    torch.manual_seed(0)
    difference = (model(*batch())[0] - model(*batch())[0]).abs().max()
    assert difference > 1e-3 if retained else difference == 0


def test_rejects_unpatched_encoder_layer(monkeypatch):
    """It would translate with untrained weights."""

    def published(self, cfg, return_fc=False):
        self.load_to_BT = False

    monkeypatch.setattr(TransformerEncoderLayerBase, "__init__", published)
    with pytest.raises(ImportError, match="start-up hook fairseq_modern is not"):
        importlib.reload(layers)


@pytest.mark.parametrize("kind", KINDS)
def test_models_can_be_pickled(kind):
    model = build(**SMALL, **KINDS[kind]).eval()
    restored = pickle.loads(pickle.dumps(model))
    assert torch.equal(restored(*batch())[0], model(*batch())[0])


def test_a_new_process_can_unpickle_a_model(tmp_path):
    torch.save(build(**SMALL), tmp_path / "model.pt")
    program = "import sys, torch; print(type(torch.load(sys.argv[1], weights_only=False)).__name__)"
    assert run("python", "-c", program, tmp_path / "model.pt").stdout == "TransformerCollabModel\n"


@pytest.mark.parametrize("kind", ["content", "collaborative"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_state_dict_gives_the_same_function_with_another_multiplier(kind, saved, tmp_path):
    """In memory, and from the file of a checkpoint, with the names of fairseq's parameters."""
    model, other, same = (
        build(**SMALL, **{**KINDS[kind], "mixing_lr_multiplier": multiplier}, seed=seed).eval()
        for seed, multiplier in ((0, 3.0), (1, 1.0), (2, 3.0))
    )
    state = model.state_dict()
    assert not [name for name in state if "extra_state" in name]
    if saved:
        torch.save({"model": utils.move_to_cpu(state)}, tmp_path / "checkpoint.pt")
        state = checkpoints.load(tmp_path / "checkpoint.pt")["model"]
    for each in (other, same):
        each.load_state_dict(state)
        assert (each(*batch())[0] - model(*batch())[0]).abs().max() < FLOAT32
    assert same_model(same.state_dict(), model.state_dict())
    other.load_state_dict(dict(state))  # control: without the metadata
    assert (other(*batch())[0] - model(*batch())[0]).abs().max() > 1e-3


@pytest.mark.parametrize("start", [{}, {"encoder.0": {"scale": 0.3}, "cross.1": {"scale": 0.9}}])
def test_training_starts_with_the_function_of_a_checkpoint_with_other_scales(start):
    """Averaged, converted and pruned checkpoints lack the metadata of a state dict."""
    flags, changed = (
        {**SMALL, "collaborative_heads": "none", "attention_shapes": shapes}
        for shapes in (start, {"encoder.0": {"scale": 0.5}})
    )
    model, other = build(**flags).eval(), build(**changed, seed=1).eval()
    state = {"model": dict(model.state_dict()), "cfg": {"model": arguments(**flags)}}
    other.load_state_dict(dict(state["model"]))  # control
    assert (logits(other) - logits(model)).abs().max() > 1e-3
    other.adapt_checkpoint(state, "averaged.pt", reset_optimizer=True)
    other.load_state_dict(state["model"])
    assert (logits(other) - logits(model)).abs().max() < FLOAT32

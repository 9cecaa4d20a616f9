"""Models of transformers with collaborative heads, held to transformers itself and to the float64 reference."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.attention import block_mixing  # noqa: E402
from collab_fairseq.attention.reference import reference_attention  # noqa: E402
from collab_fairseq.huggingface import layers  # noqa: E402
from collab_fairseq.reparam import ReparamError, fit_scores  # noqa: E402
from collab_fairseq.reparam.huggingface import to_collaborative  # noqa: E402
from tests.common import FLOAT64, run  # noqa: E402
from tests.unit.huggingface_cases import BERT, CASES, HEADS, WIDTH, inputs, make, outputs, seen  # noqa: E402


@pytest.mark.parametrize("case", CASES)
def test_attention_weights_hidden_states_and_gradients_are_those_of_the_source(case):
    model, batch = make(case, dtype=torch.float64), inputs(case)
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    made = to_collaborative(model, WIDTH)
    ask = {"output_attentions": True, "output_hidden_states": True}
    expected, got = (m(**batch, **ask) for m in (model, made))
    kinds = [k for k in expected if k.endswith(("attentions", "hidden_states")) and "last" not in k]
    assert len(kinds) == {"bert-decoder": 3, "marian": 5}.get(case, 2)
    for kind in kinds:
        assert len(expected[kind]) > 1
        torch.testing.assert_close(expected[kind], got[kind], rtol=0, atol=FLOAT64 * 100)
    for output in (expected, got):
        seen(case, batch, output.logits).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in made.named_parameters()}
    for name, parameter in model.named_parameters():
        if not name.endswith(("key.bias", "k_lin.bias", "k_proj.bias")) and parameter.grad is not None:
            scale = float(parameter.grad.norm()) + 1
            assert float((parameter.grad - gradients[name]).norm()) < 1e-10 * scale, name
    # sdpa gives weights where they are asked for
    made.set_attn_implementation("sdpa")
    again = outputs(made, batch, output_attentions=True)
    for kind in (kind for kind in kinds if kind.endswith("attentions")):
        torch.testing.assert_close(got[kind], again[kind], rtol=0, atol=1e-10)


def collaborative(case, name, dtype=torch.float64):
    """A layer of shared, not factored heads of an odd key dim with random weights, in a model."""
    model = make(case, dtype=dtype)
    standard = dict(hf.attention_layers(model))[name]
    layer = layers.COLLABORATIVE[type(standard)](standard, hf.Shape(11, 0.37, True, True))
    model.base_model.set_submodule(name, layer)
    with torch.no_grad():
        for part in (layer.mixing, layer.content_bias):
            part.normal_()
    return model, layer.to(dtype)


def reference_parameters(layer):
    """By the names of the reference, the output being left as it is where the layer has none of its own."""
    names = layer.names
    renamed = {names.query: "q_proj", names.key: "k_proj", names.value: "v_proj", names.output: "out_proj"}
    found = {"out_proj.weight": torch.eye(WIDTH, dtype=torch.float64)}
    for name, parameter in layer.named_parameters():
        first, dot, rest = name.partition(".")
        if first != "LayerNorm":
            found[renamed.get(first, first) + dot + rest] = parameter
    return found


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("case", "name"), [(case, name) for case in CASES for name in CASES[case].layers])
def test_a_layer_computes_the_equation(case, name, implementation):
    """Whatever the model hands to the layer (masks, the encoder's output) goes to the reference too."""
    model, layer = collaborative(case, name)
    model.set_attn_implementation(implementation)
    batch = {k: v.double() if v.is_floating_point() else v for k, v in inputs(case).items()}
    calls = []
    handle = layer.register_forward_hook(lambda *call: calls.append(call[1:]), with_kwargs=True)
    outputs(model, batch, **({"use_cache": False} if case in ("marian", "bert-decoder") else {}))
    handle.remove()
    assert len(calls) == (3 if case == "albert" else 1)
    source = {"bert-decoder": "encoder_hidden_states", "marian": "key_value_states"}.get(case, "none")
    decoder, cross = case == "bert-decoder" or name.startswith("decoder"), "cross" in name or "encoder_attn" in name
    for args, kwargs, (output, weights) in calls:
        queries = args[0] if args else kwargs["hidden_states"]
        keys = kwargs[source] if cross else queries
        padding = batch.get("encoder_attention_mask", batch["attention_mask"]) if cross else None
        if padding is None and not (case == "marian" and decoder):
            padding = batch["attention_mask"]
        expected = reference_attention(
            reference_parameters(layer), queries, keys, keys, num_heads=HEADS, scale=0.37,
            key_padding_mask=None if padding is None else padding == 0, causal=decoder and not cross,
        )  # fmt: skip
        wanted = layer.LayerNorm(queries + expected.output) if case == "albert" else expected.output
        torch.testing.assert_close(output, wanted, rtol=0, atol=FLOAT64 * 100)
        assert (weights is None) == (implementation == "sdpa")
        if weights is not None:
            torch.testing.assert_close(weights, expected.weights, rtol=0, atol=FLOAT64 * 100)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_marian_translates_from_its_cache_as_without_one(cache):
    model, batch = make("marian"), inputs("marian")
    search = {"num_beams": 3, "max_new_tokens": 9, "input_ids": batch["input_ids"], "do_sample": False}
    search["attention_mask"] = batch["attention_mask"]
    made = to_collaborative(model, WIDTH)
    expected = model.generate(**search)
    assert expected.size(1) > 5
    assert torch.equal(expected, made.generate(**search, cache_implementation=cache, disable_compile=True))
    small = to_collaborative(model, 12, calibration=[batch])
    assert any(layer.content_bias is not None for _, layer in hf.attention_layers(small))
    cached = small.generate(**search, cache_implementation=cache, disable_compile=True)
    assert torch.equal(small.generate(**search, use_cache=False), cached)


def test_a_bert_decoder_continues_from_its_cache():
    model, batch = make("bert-decoder", dtype=torch.float64), inputs("bert-decoder")
    batch["encoder_hidden_states"] = batch["encoder_hidden_states"].double()
    made = to_collaborative(model, 12, calibration=[batch])
    words, source = batch["input_ids"][:1], {k: v[:1] for k, v in batch.items() if k.startswith("encoder")}
    whole = outputs(made, {"input_ids": words, **source}).logits
    first = outputs(made, {"input_ids": words[:, :4], **source}, use_cache=True)
    rest = outputs(made, {"input_ids": words[:, 4:], **source}, past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole, rtol=0, atol=1e-10)
    assert list(hf.head_layers(made)) == ["decoder.0", "cross.0", "decoder.1", "cross.1"]


@pytest.mark.parametrize("case", CASES)
def test_half_the_key_dim_changes_little_and_loaded_again_it_is_the_same_model(case, tmp_path):
    model, batch = make(case), inputs(case)
    before = copy.deepcopy(model.state_dict())
    made = to_collaborative(model, WIDTH // 2, calibration=[inputs(case, 16, 2)])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not made.training
    broken = to_collaborative(model, WIDTH)  # a control: without these heads the output is far off
    for _, layer in hf.attention_layers(broken):
        nn.init.zeros_(layer.mixing)
    whole, close, far = (seen(case, batch, outputs(m, batch).logits) for m in (model, made, broken))
    assert 1e-4 * whole.norm() < (close - whole).norm() < 0.3 * (far - whole).norm()

    expected = outputs(made, batch).logits
    made.save_pretrained(tmp_path)
    loaded, info = type(made).from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not [*info["missing_keys"], *info["unexpected_keys"]]
    auto = transformers.AutoConfig.from_pretrained(tmp_path)
    assert auto.model_type == f"collaborative_{model.config.model_type}"
    assert set(auto.attention_shapes) == {name for name, _ in hf.attention_layers(made)}
    for again in (loaded, hf.from_pretrained(tmp_path, attn_implementation="eager")):
        assert type(again) is type(made)
        assert torch.equal(outputs(again, batch).logits, expected)
        assert again.num_parameters() == made.num_parameters()
    assert made.num_parameters() < model.num_parameters()
    assert torch.equal(outputs(pickle.loads(pickle.dumps(made)), batch).logits, expected)
    base = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(base).__name__ == f"Collaborative{type(model.base_model).__name__}"
    shared = {k: v for k, v in base.state_dict().items() if k in made.base_model.state_dict()}
    assert len(shared) > 20
    assert all(torch.equal(tensor, made.base_model.state_dict()[name]) for name, tensor in shared.items())


def test_auto_classes_load_what_was_saved_and_damage_is_named(tmp_path):
    made = to_collaborative(make("bert"), {"encoder.layer.0.attention.self": 12})
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is type(made)
    # a transformers without this package takes none of the weights
    load = f"import transformers; transformers.AutoModel.from_pretrained({str(tmp_path)!r})"
    assert "model type `collaborative_bert`" in run("python", "-c", load, check=False).stderr
    kinds = [isinstance(layer, hf.CollaborativeHeads) for _, layer in hf.attention_layers(loaded)]
    assert kinds == [True, False]  # the layer that was not named has standard heads

    state = {name: tensor for name, tensor in made.state_dict().items() if not name.endswith("mixing")}
    made.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ReparamError, match=r"missing: bert\.encoder\.layer\.0\.attention\.self\.mixing"):
        hf.from_pretrained(tmp_path)

    with pytest.raises(ReparamError, match=r"have key_dim \(int\), .*; got \{'key_dim': 12\}"):
        type(made)(made.config_class(**BERT, attention_shapes={"encoder.layer.0.attention.self": {"key_dim": 12}}))
    make("bert").save_pretrained(tmp_path / "standard")
    assert type(hf.from_pretrained(tmp_path / "standard")) is transformers.BertForSequenceClassification


def test_the_scale_of_the_source_is_kept_and_scores_are_given_by_name():
    """The paper's own code changes the scale with the key dim, which multiplies the damage."""
    model = make("bert")
    sources = dict(hf.score_weights(model))
    assert list(sources) == [name for name, _ in hf.attention_layers(model)]
    first = model.bert.encoder.layer[0].attention.self
    assert torch.equal(sources["encoder.layer.0.attention.self"].heads.query, first.query.weight)
    assert torch.equal(sources["encoder.layer.0.attention.self"].heads.mixing, block_mixing([8] * HEADS))
    made = to_collaborative(model, 12)
    for name, weights in hf.score_weights(made):
        assert weights.scale == made.get_submodule(f"bert.{name}").scaling == (WIDTH / HEADS) ** -0.5
        torch.testing.assert_close(weights.heads, fit_scores(sources[name], 12).weights.heads)
    # recompressing a collaborative model starts from its scores
    again = to_collaborative(to_collaborative(model, WIDTH), 12, calibration=[inputs("bert")])
    direct = to_collaborative(model, 12, calibration=[inputs("bert")])
    torch.testing.assert_close(outputs(again, inputs("bert")).logits, outputs(direct, inputs("bert")).logits)


def test_dtype_mode_ties_and_random_numbers_are_kept():
    model = make("marian", dtype=torch.bfloat16).train()
    torch.manual_seed(3)
    made = to_collaborative(model, 12)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert made.training
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert made.get_output_embeddings().weight is made.get_input_embeddings().weight
    assert made.generation_config.to_dict() == model.generation_config.to_dict()
    assert math.isfinite(float(outputs(made, inputs("marian")).loss))


def test_models_that_cannot_be_converted_are_refused_with_the_reason():
    qwen = transformers.Qwen3Model(transformers.Qwen3Config(**BERT, num_key_value_heads=HEADS, head_dim=8))
    roberta = transformers.RobertaModel(transformers.RobertaConfig(**BERT))
    for model, message in (
        (qwen, "must be one of bert, distilbert, albert, marian; got qwen3"),
        (roberta, "must be one of bert, distilbert, albert, marian; got roberta"),
        (nn.Linear(2, 2), "expected a model of transformers, got Linear"),
    ):
        with pytest.raises(ReparamError, match=message):
            to_collaborative(model, 16)
    with pytest.raises(ReparamError, match=r"must be built on BertConfig, .* but RobertaModel is built on Roberta"):
        hf.collaborative_class(transformers.RobertaModel)


def test_bad_requests_are_named():
    model, broken = make("bert"), make("bert")
    broken.bert.encoder.layer[1].attention.self.key = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    for source, key_dim, calibration, message in (
        (model, {"bert.encoder": 16}, None, r"got bert\.encoder$"),
        (model, 16, inputs("bert"), r"calibration must be a list of batches .* got one batch"),
        (broken, 16, None, r"encoder\.layer\.1\.attention\.self: key must be a torch\.nn\.Linear; got Sequential"),
    ):
        with pytest.raises(ReparamError, match=message):
            to_collaborative(source, key_dim, calibration=calibration)
    made = to_collaborative(model, 16)
    made.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ReparamError, match="need attn_implementation eager or sdpa; got flash_attention_2"):
        outputs(made, inputs("bert"))

"""Models of transformers with collaborative heads, compared with the source and the float64 reference; calibration."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.attention import block_mixing  # noqa: E402
from collab_fairseq.huggingface import layers  # noqa: E402
from collab_fairseq.reparam import AttentionError, Calibrator, fit_scores  # noqa: E402
from collab_fairseq.reparam.huggingface import calibrate, to_collaborative  # noqa: E402
from tests.attention.reference import reference_attention  # noqa: E402
from tests.common import FLOAT64, run  # noqa: E402
from tests.huggingface.cases import BERT, CASES, HEADS, WIDTH, inputs, make, outputs, without_padding  # noqa: E402


@pytest.mark.parametrize("case", CASES)
def test_attention_weights_hidden_states_and_gradients_equal_those_of_the_source(case):
    model, batch = make(case, dtype=torch.float64), inputs(case, dtype=torch.float64)
    converted = to_collaborative(model, WIDTH)
    options = {"output_attentions": True, "output_hidden_states": True}
    expected, output = model(**batch, **options), converted(**batch, **options)
    fields = [name for name in expected if name.endswith(("attentions", "hidden_states")) and "last" not in name]
    assert len(fields) == {"bert-decoder": 3, "marian": 5}.get(case, 2)
    for field in fields:
        assert len(expected[field]) > 1
        torch.testing.assert_close(expected[field], output[field], rtol=0, atol=FLOAT64 * 100)
    for logits in (expected.logits, output.logits):
        without_padding(case, batch, logits).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in converted.named_parameters()}
    for name, parameter in model.named_parameters():
        if not name.endswith(("key.bias", "k_lin.bias", "k_proj.bias")) and parameter.grad is not None:
            scale = float(parameter.grad.norm()) + 1
            assert float((parameter.grad - gradients[name]).norm()) < 1e-10 * scale, name
    converted.set_attn_implementation("sdpa")
    sdpa = outputs(converted, batch, output_attentions=True)
    for field in (name for name in fields if name.endswith("attentions")):
        torch.testing.assert_close(output[field], sdpa[field], rtol=0, atol=1e-10)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("case", "name"), [(case, name) for case in CASES for name in CASES[case].layers])
def test_layer_equals_reference(case, name, implementation):
    """The reference receives the same masks and the same encoder output as a random layer in the model."""
    model, batch = make(case, implementation, dtype=torch.float64), inputs(case, dtype=torch.float64)
    standard = dict(hf.attention_layers(model))[name]
    layer = layers.COLLABORATIVE[type(standard)](standard, hf.Shape(11, 0.37, True, True))
    model.base_model.set_submodule(name, layer)
    nn.init.normal_(layer.mixing)
    nn.init.normal_(layer.content_bias)
    query, key, value, *_, out = layer.names
    renamed = {query: "q_proj", key: "k_proj", value: "v_proj", out: "out_proj"}
    parameters = {"out_proj.weight": torch.eye(WIDTH)}  # for layers without an output projection
    for parameter_name, parameter in layer.named_parameters():
        module, dot, rest = parameter_name.partition(".")
        parameters[renamed.get(module, module) + dot + rest] = parameter
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
        mask = None if padding is None else padding == 0
        options = {"num_heads": HEADS, "scale": 0.37, "key_padding_mask": mask, "causal": decoder and not cross}
        expected = reference_attention(parameters, queries, keys, keys, **options)
        expected_output = layer.LayerNorm(queries + expected.output) if case == "albert" else expected.output
        torch.testing.assert_close(output, expected_output, rtol=0, atol=FLOAT64 * 100)
        assert (weights is None) == (implementation == "sdpa")
        if weights is not None:
            torch.testing.assert_close(weights, expected.weights, rtol=0, atol=FLOAT64 * 100)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_marian_translations_are_the_same_with_and_without_cache(cache):
    model, batch = make("marian"), inputs("marian")
    search = {"num_beams": 3, "max_new_tokens": 9, "do_sample": False}
    search.update({name: batch[name] for name in ("input_ids", "attention_mask")})
    with_cache = {**search, "cache_implementation": cache, "disable_compile": True}
    expected = model.generate(**search)
    assert expected.size(1) > 5
    assert torch.equal(expected, to_collaborative(model, WIDTH).generate(**with_cache))
    small = to_collaborative(model, 12, calibration=[batch])
    assert any(layer.content_bias is not None for _, layer in hf.attention_layers(small))
    assert torch.equal(small.generate(**search, use_cache=False), small.generate(**with_cache))


def test_bert_decoder_continues_from_its_cache():
    model, batch = make("bert-decoder", dtype=torch.float64), inputs("bert-decoder", dtype=torch.float64)
    converted = to_collaborative(model, 12, calibration=[batch])
    words, source = batch["input_ids"][:1], {k: v[:1] for k, v in batch.items() if k.startswith("encoder")}
    expected = outputs(converted, {"input_ids": words, **source}).logits
    first = outputs(converted, {"input_ids": words[:, :4], **source}, use_cache=True)
    rest = outputs(converted, {"input_ids": words[:, 4:], **source}, past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), expected, rtol=0, atol=1e-10)
    assert list(hf.head_layers(converted)) == ["decoder.0", "cross.0", "decoder.1", "cross.1"]


@pytest.mark.parametrize(("case", "site"), [("bert", "self"), ("bert-decoder", "self"), ("bert-decoder", "cross")])
def test_prefix_tuning_is_rejected(case, site):
    """PEFT fills the cache with keys and values of standard heads."""
    model, batch = make(case), inputs(case)
    batch["attention_mask"] = nn.functional.pad(batch["attention_mask"], (4 if site == "self" else 0, 0), value=1)
    batch.pop("encoder_attention_mask", None)

    def logits(model, scale):
        size, random = (3, HEADS, 4, WIDTH // HEADS), torch.Generator().manual_seed(0)
        layer_caches = [[torch.randn(size, generator=random) * scale for _ in ("key", "value")] for _ in range(2)]
        cache = transformers.DynamicCache(layer_caches)
        if case == "bert-decoder":
            caches = {"self": transformers.DynamicCache(), "cross": transformers.DynamicCache(), site: cache}
            cache = transformers.EncoderDecoderCache(*caches.values())
        return outputs(model, batch, past_key_values=cache).logits

    # control: standard heads read the prefix
    assert not torch.equal(logits(model, 1.0), logits(model, 2.0))
    for key_dim, width in ((WIDTH, WIDTH), (8, 8 + HEADS)):  # the smaller key dimension has content scores
        message = f"must have one key of width {width} per position .* got 4 of width 8: prefix tuning is not supported"
        with pytest.raises(AttentionError, match=message):
            logits(to_collaborative(model, key_dim), 1.0)


@pytest.mark.parametrize("case", CASES)
def test_half_the_key_dimension_changes_the_output_little_and_is_saved(case, tmp_path):
    source, batch = make(case), inputs(case)
    before = copy.deepcopy(source.state_dict())
    model = to_collaborative(source, WIDTH // 2, calibration=[inputs(case, 16, 2)])
    assert all(torch.equal(before[name], tensor) for name, tensor in source.state_dict().items())
    assert not model.training
    assert model.num_parameters() < source.num_parameters()
    without_heads = to_collaborative(source, WIDTH)  # control: far from the source
    for _, layer in hf.attention_layers(without_heads):
        nn.init.zeros_(layer.mixing)
    models = (source, model, without_heads)
    exact, close, far = (without_padding(case, batch, outputs(each, batch).logits) for each in models)
    assert 1e-4 * exact.norm() < (close - exact).norm() < 0.3 * (far - exact).norm()

    expected = outputs(model, batch).logits
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not [*info["missing_keys"], *info["unexpected_keys"]]
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == f"collaborative_{source.config.model_type}"
    assert set(config.attention_shapes) == {name for name, _ in hf.attention_layers(model)}
    pickled = pickle.loads(pickle.dumps(model))
    for other in (loaded, hf.from_pretrained(tmp_path, attn_implementation="eager"), pickled):
        assert type(other) is type(model)
        assert torch.equal(outputs(other, batch).logits, expected)
        assert other.num_parameters() == model.num_parameters()
    base = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(base).__name__ == f"Collaborative{type(source.base_model).__name__}"
    parameters = model.base_model.state_dict()
    shared = [name for name in base.state_dict() if name in parameters]
    assert len(shared) > 20
    assert all(torch.equal(base.state_dict()[name], parameters[name]) for name in shared)


def test_auto_classes_load_saved_models_and_damage_is_reported(tmp_path):
    model = to_collaborative(make("bert"), {"encoder.layer.0.attention.self": 12})
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    collaborative = [isinstance(layer, hf.CollaborativeHeads) for _, layer in hf.attention_layers(loaded)]
    assert collaborative == [True, False]
    # transformers without this package must not load some of the weights
    load = f"import transformers; transformers.AutoModel.from_pretrained({str(tmp_path)!r})"
    assert "model type `collaborative_bert`" in run("python", "-c", load, check=False).stderr

    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("mixing")}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(AttentionError, match=r"missing: bert\.encoder\.layer\.0\.attention\.self\.mixing"):
        hf.from_pretrained(tmp_path)
    with pytest.raises(AttentionError, match=r"have key_dim \(int\), .*; got \{'key_dim': 12\}"):
        type(model)(model.config_class(**BERT, attention_shapes={"encoder.layer.0.attention.self": {"key_dim": 12}}))
    make("bert").save_pretrained(tmp_path / "standard")
    for standard in (hf.from_pretrained(tmp_path / "standard"), hf.from_pretrained(tmp_path, subfolder="standard")):
        assert type(standard) is transformers.BertForSequenceClassification


@pytest.mark.parametrize("case", CASES)
def test_missing_weights_of_a_standard_model_are_an_error(case, tmp_path):
    """transformers makes them random. Base models may lack their pooler."""
    model = make(case)
    model.save_pretrained(tmp_path, state_dict={f"_orig_mod.{name}": each for name, each in model.state_dict().items()})
    with pytest.raises(AttentionError, match=rf"must have all weights of its {type(model).__name__}; got none for "):
        hf.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded = hf.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    base = model.base_model
    without = {name: each for name, each in base.state_dict().items() if not name.startswith("pooler.")}
    base.save_pretrained(tmp_path / "base", state_dict=without)
    loaded = hf.from_pretrained(tmp_path / "base").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in without.items())


def test_scale_of_the_source_is_kept():
    """The authors' code changes the scale with the key dimension, which increases the error."""
    model = make("bert")
    sources = dict(hf.score_weights(model))
    assert list(sources) == [name for name, _ in hf.attention_layers(model)]
    first = model.bert.encoder.layer[0].attention.self
    assert torch.equal(sources["encoder.layer.0.attention.self"].heads.query, first.query.weight)
    assert torch.equal(sources["encoder.layer.0.attention.self"].heads.mixing, block_mixing([8] * HEADS))
    converted = to_collaborative(model, 12)
    for name, weights in hf.score_weights(converted):
        assert weights.scale == converted.get_submodule(f"bert.{name}").scaling == (WIDTH / HEADS) ** -0.5
        torch.testing.assert_close(weights.heads, fit_scores(sources[name], 12).weights.heads)
    # compressing a collaborative model starts from its scores
    twice = to_collaborative(to_collaborative(model, WIDTH), 12, calibration=[inputs("bert")])
    once = to_collaborative(model, 12, calibration=[inputs("bert")])
    torch.testing.assert_close(outputs(twice, inputs("bert")).logits, outputs(once, inputs("bert")).logits)


def test_dtype_mode_ties_and_random_numbers_are_kept():
    model = make("marian", dtype=torch.bfloat16).train()
    torch.manual_seed(3)
    converted = to_collaborative(model, 12)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert converted.training
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.bfloat16}
    assert converted.get_output_embeddings().weight is converted.get_input_embeddings().weight
    assert converted.generation_config.to_dict() == model.generation_config.to_dict()
    assert math.isfinite(float(outputs(converted, inputs("marian")).loss))


def test_rejects_unsuitable_models_layers_calibration_and_attention():
    roberta = transformers.RobertaModel(transformers.RobertaConfig(**BERT))
    qwen = transformers.Qwen3Model(transformers.Qwen3Config(**BERT, num_key_value_heads=HEADS, head_dim=8))
    broken = make("bert")
    broken.bert.encoder.layer[1].attention.self.key = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    for model, message in (
        (qwen, "must be one of bert, distilbert, albert, marian; got qwen3"),
        (roberta, "must be one of bert, distilbert, albert, marian; got roberta"),
        (nn.Linear(2, 2), "must be a PreTrainedModel of transformers; got Linear"),
        (broken, r"must be a torch\.nn\.Linear .*; got Sequential with NoneType"),
    ):
        with pytest.raises(AttentionError, match=message):
            to_collaborative(model, 16)
    with pytest.raises(AttentionError, match=r"config class of RobertaModel must be .*; got RobertaConfig"):
        hf.collaborative_class(transformers.RobertaModel)
    model = make("bert")
    with pytest.raises(AttentionError, match=r"got bert\.encoder$"):
        to_collaborative(model, {"bert.encoder": 16})
    with pytest.raises(AttentionError, match=r"layers must be among .*; got encoder"):
        calibrate(model, [], ["encoder"])
    with pytest.raises(AttentionError, match=r"calibration must be a list of batches .* got one batch"):
        to_collaborative(model, 16, calibration=inputs("bert"))
    converted = to_collaborative(model, 16)
    converted.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(AttentionError, match="need attn_implementation eager or sdpa; got flash_attention_2"):
        outputs(converted, inputs("bert"))


class Int8Weight(torch.Tensor):
    """As the weights of torchao: only the projection itself knows what they mean."""


@pytest.mark.parametrize("part", ["query", "value"])
def test_adapters_that_replace_forward_are_rejected(part):
    """A converted model would not have them. Hooks of accelerate, which leave the function, are accepted."""
    for hooked in (False, True):
        model = make("bert")
        projection = getattr(model.bert.encoder.layer[1].attention.self, part)
        before, factor, call = outputs(model, inputs("bert")).logits, 1.0 if hooked else 1.5, projection.forward
        projection.forward = lambda states, factor=factor, call=call: factor * call(states)
        if hooked:
            projection._hf_hook = object()
            converted = to_collaborative(model, {"encoder.layer.0.attention.self": 8})
            assert type(converted).__name__ == "CollaborativeBertForSequenceClassification"
            continue
        assert (outputs(model, inputs("bert")).logits - before).abs().max() > 1e-3
        with pytest.raises(
            AttentionError, match=rf"layer\.1\.attention\.self\.{part} must have the forward of its class"
        ):
            to_collaborative(model, {"encoder.layer.0.attention.self": 8})


def test_weights_of_another_class_are_rejected():
    model = make("bert")
    key = model.bert.encoder.layer[1].attention.self.key
    key.weight = nn.Parameter(key.weight.detach().as_subclass(Int8Weight))
    with pytest.raises(
        AttentionError, match=r"must be a torch\.nn\.Linear with Parameter .*; got Linear with Int8Weight"
    ):
        to_collaborative(model, 16)


def assert_calibrated(result, scores, sentences, causal=False):
    """Compare with single sentences: pairs of inputs (S, D) and the mask (S) of positions without padding."""
    calibrator, uniform = Calibrator(scores), Calibrator()
    for states, mask in sentences:
        words = states[mask][None]
        future = torch.ones(words.size(1), words.size(1), dtype=torch.bool).triu(1) if causal else None
        calibrator.update(words, words, attn_mask=future)
        uniform.update(words, words, attn_mask=future)
    expected, control = calibrator.result(), uniform.result()
    assert result.queries == expected.queries
    for actual, correct, wrong in zip(result[1:], expected[1:], control[1:], strict=True):
        torch.testing.assert_close(actual, correct, rtol=0, atol=1e-4)
        assert (correct - wrong).abs().max() > 1e-3  # control: attention matters


@pytest.mark.parametrize(("case", "uses"), [("bert", [1]), ("albert", [0, 1, 2])])
def test_calibration_ignores_padding_and_counts_every_use_of_a_shared_layer(case, uses):
    model, batches = make(case), [inputs(case, 5, 3), inputs(case, 4, 4)]
    (result,) = calibrate(model, batches, CASES[case].layers).values()
    sentences = []
    for batch in batches:
        states = outputs(model, batch, output_hidden_states=True).hidden_states
        for use in uses:
            sentences += zip(states[use], batch["attention_mask"].bool(), strict=True)
    assert_calibrated(result, dict(hf.score_weights(model))[CASES[case].layers[0]], sentences)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_calibration_of_a_decoder_sees_the_past_and_no_padding(implementation):
    model, batch = make("marian", implementation), inputs("marian", 4)
    results = calibrate(model, [batch])
    assert len(results) == 6
    kept = batch["labels"] != -100
    states = outputs(model, batch, output_hidden_states=True).decoder_hidden_states
    name = "decoder.layers.1.self_attn"
    scores = dict(hf.score_weights(model))[name]
    assert_calibrated(results[name], scores, zip(states[1], kept, strict=True), causal=True)
    source_words = int(batch["attention_mask"].sum())
    assert {r.queries for layer, r in results.items() if layer.startswith("encoder.")} == {source_words}
    assert {r.queries for layer, r in results.items() if layer.startswith("decoder.")} == {int(kept.sum())}
    # with decoder_input_ids, the last word before the padding, which has no label, counts too
    text = {name: tensor for name, tensor in batch.items() if name != "labels"}
    text["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    assert calibrate(model, [text])[name].queries == int(kept.sum()) + 1
    text["decoder_attention_mask"] = kept.long()
    torch.testing.assert_close(calibrate(model, [text])[name], results[name])


def test_calibration_replaces_attention_whose_masks_it_cannot_read():
    model, batch = make("bert", "sdpa"), inputs("bert", 5, 3)
    expected = calibrate(model, [batch])
    model.config._attn_implementation_internal = "flex_attention"
    results = calibrate(model, [batch])
    assert model.config._attn_implementation == "flex_attention"
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


def test_key_dimensions_are_integers_of_any_type():
    numpy = pytest.importorskip("numpy")
    model = make("bert")
    expected, converted = to_collaborative(model, 10), to_collaborative(model, numpy.int64(10))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(converted.state_dict()[name], tensor)
    for wrong in (10.0, numpy.float64(10), "10"):
        with pytest.raises(AttentionError, match="must be an integer; got"):
            to_collaborative(model, wrong)

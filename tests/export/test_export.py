"""Exports to other engines: attention as standard heads, and equal results from every engine."""

import math
import os
import subprocess
import sys

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import collab_fairseq
from collab_fairseq import checkpoints
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from collab_fairseq.export.standard_heads import as_standard, standard_layers
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.head_names import parse_heads
from collab_fairseq.modules.sites import attention_layers, swapped
from fairseq_modern.errors import UserError
from tests.common import collab, mostly_slow
from tests.export.cases import SOURCES
from tests.models.cases import batch, logits

pytest.importorskip("ctranslate2")

SEARCH = {"beam": 3, "lenpen": 0.6, "max_length": 60}

#: name → one of KINDS and flags
MODELS = {
    "collaborative": ("collaborative", {}),
    "wide key dimension": ("collaborative", {"key_dim": 12}),
    "content bias": ("content", {}),
    "content bias, wide": ("content", {"key_dim": 8}),
    "mixed sites": ("mixed", {}),
    "standard": ("standard", {}),
    "standard, reduced key dimension": ("standard", {"key_dim": 8}),
    "shared values": ("content", {"value_heads": 1}),
    "shared keys and values": ("shared-values", {}),
    "grouped keys": ("standard", {"kv_heads": 1}),
    "groups of two": ("standard", {"kv_heads": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}),
    "latents": ("standard", {"kv_latent_dim": 5}),
    "pre-norm": ("pre-norm", {"encoder_normalize_before": True}),
    "masks": ("collaborative", {"mask_heads": "E:1:2 A:2:1"}),
    "shapes": ("content", {"attention_shapes": {
        "encoder.0": {"key_dim": 3, "scale": 0.3, "query_bias": False}, "cross.1": {"key_dim": 11, "key_bias": False},
        "decoder.0": {"collaborative": False, "key_dim": 10, "content_bias": False}}}),
    "tied": ("collaborative", {"share_all_embeddings": True}),
    "quantised": ("collaborative", {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}),
    "pruned": ("collaborative", {}),  # layers with 1 and 2 heads
}  # fmt: skip
#: models that fairseq and FSMT cannot compute, whose heads have 8 dimensions
WIDER = ("wide key dimension", "content bias, wide", "groups of two", "shapes")
FAIRSEQ = [name for name in MODELS if name not in WIDER]
FSMT = [name for name in FAIRSEQ if name not in ("pre-norm", "quantised")]
#: one for each branch of an export; the others have the same standard heads, which are compared in float64
DIFFERENT = (
    "content bias",
    "shared keys and values",
    "groups of two",
    "pre-norm",
    "shapes",
    "tied",
    "pruned",
    "quantised",
)


@pytest.fixture(scope="module")
def read(models):
    """Function that reads one of MODELS."""

    def read(name):
        kind, flags = MODELS[name]
        path = models.checkpoint(kind, **flags)
        if name == "pruned":
            state = remove_heads(checkpoints.load(path), parse_heads("E:1:2 A:2:1 D:1:1")).state
            path = models.data.parent / "pruned.pt"
            checkpoints.save(state, path)
        return read_source(path)

    return read


@pytest.mark.parametrize("name", MODELS)
def test_standard_heads_compute_the_same_in_float64(read, name):
    model = read(name).model.double()
    expected = logits(model)
    standard = standard_layers(model)
    assert not any(hasattr(layer, "mixing") for layer in standard.values())
    with swapped(model, standard):
        torch.testing.assert_close(logits(model), expected, atol=1e-11, rtol=0)
    layers = attention_layers(model)
    wide = 3 + max(tensor.size(1) for layer in layers.values() for tensor in layer.head_maps())
    padded = {layer_id: as_standard(layer, 5, wide, 0.2) for layer_id, layer in layers.items()}
    with swapped(model, padded):
        torch.testing.assert_close(logits(model), expected, atol=1e-11, rtol=0)
        padded["encoder.0"].q_proj.weight.data.mul_(1.1)
        assert float((logits(model) - expected).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("target", "kind", "flags", "match"),
    [
        ("fairseq", "collaborative", {"key_dim": 12}, "key dimension 12 .*; use --to folder or ctranslate2$"),
        ("fairseq", "collaborative", {"quant_noise_scalar": 0.1}, "--quant-noise-scalar"),
        ("huggingface", "content", {"key_dim": 8}, "content bias .* 8 dimensions; it needs 9"),
        ("huggingface", "collaborative", {"activation_fn": "relu_squared"}, "relu_squared"),
        ("ctranslate2", *MODELS["quantised"], "--quant-noise-pq"),
        ("ctranslate2", "pre-norm", {"encoder_normalize_before": True, "no_decoder_final_norm": True}, "final-norm"),
    ],
)
def test_rejects_models_that_the_target_cannot_express(models, target, kind, flags, match, tmp_path):
    with pytest.raises(UserError, match=match):
        write(read_source(models.checkpoint(kind, **flags)), target, tmp_path / "out")
    assert not os.listdir(tmp_path)


def load_both(source, folder):
    """The model in PyTorch and in CTranslate2."""
    for target in ("folder", "ctranslate2"):
        write(source, target, folder / target)
    return [collab_fairseq.load(folder / target) for target in ("folder", "ctranslate2")]


def assert_same_translations(engines, lines=SOURCES, **search):
    """With beam 1: in larger beams, the engines treat an initial </s> differently."""
    ours, theirs = (engine.search(lines, beam=1, **search) for engine in engines)
    for (one,), (other,) in zip(ours, theirs, strict=True):
        assert one.target == other.target
        assert other.score == pytest.approx(one.score, abs=1e-4)
    return [best for (best,) in ours]


def test_translations_end_at_the_decoder_positions(models, tmp_path):
    source = read_source(models.checkpoint("collaborative", max_target_positions=9))
    with torch.no_grad():  # </s> is never probable
        source.model.decoder.output_projection.weight[2] = -source.model.decoder.output_projection.weight[5]
    engines = load_both(source, tmp_path)
    for max_length, expected in ((200, 8), (9, 8), (8, 8), (3, 3)):
        found = assert_same_translations(engines, SOURCES[:3], max_length=max_length)
        assert {len(best.target) for best in found} == {expected}


def test_padding_is_never_translated(models, tmp_path):
    """fairseq excludes padding from the search, and so does CTranslate2, which calls it <blank>."""
    source = read_source(models.checkpoint("collaborative"))
    write(source, "folder", tmp_path / "before")
    first = collab_fairseq.load(tmp_path / "before").search(SOURCES, max_length=20)[0][0].target[0]
    with torch.no_grad():  # padding becomes more probable than this token
        weight = source.model.decoder.output_projection.weight
        weight[1] = 1.5 * weight[source.trained.task.target_dictionary.index(first)]
    assert assert_same_translations(load_both(source, tmp_path), max_length=20)[0].score < -1


def test_scores_order_the_hypotheses_of_ctranslate2(models, tmp_path):
    """Its search ranks some differently, because it renormalises where </s> is not allowed."""
    source = read_source(models.checkpoint("collaborative"))
    with torch.no_grad():  # an initial </s> is often probable
        source.model.decoder.output_projection.weight[2] *= 2
    write(source, "ctranslate2", tmp_path / "out")
    translator = collab_fairseq.load(tmp_path / "out")
    search = {"beam": 5, "max_length": 60}
    best_two = translator.search(SOURCES, nbest=2, **search)
    assert any(first.score > second.score + 0.01 for first, second in best_two)
    for hypotheses, two in zip(translator.search(SOURCES, nbest=5, **search), best_two, strict=True):
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert [one.score for one in two] == pytest.approx(scores[:2], abs=1e-5)
    assert translator.translate(SOURCES, **search) != [first.text for first, _ in best_two]


def log_probability(trained, source, target):
    """Σ log p of a target with </s>, and its length."""
    words, end = trained.task.source_dictionary, trained.task.source_dictionary.eos()
    tokens = torch.tensor([[*map(words.index, source), end]])
    prefix = torch.tensor([[end, *map(trained.task.target_dictionary.index, target), end]])
    with torch.no_grad():
        output = trained.model(tokens, torch.tensor([tokens.size(1)]), prefix[:, :-1])[0].log_softmax(-1)
    return float(output.gather(2, prefix[:, 1:, None]).sum()), prefix.size(1) - 1


@pytest.mark.parametrize("name", mostly_slow([name for name in MODELS if name != "quantised"], *DIFFERENT))
def test_ctranslate2_translates_the_same(read, name, tmp_path):
    source = read(name)
    engines = load_both(source, tmp_path)
    for engine in engines:
        translations = [one for best in engine.search(SOURCES, nbest=2, **SEARCH) for one in best]
        for one in translations:
            total, length = log_probability(source.trained, one.source, one.target)
            assert one.score == pytest.approx(total / math.log(2) / length**0.6, abs=1e-4)
        assert len({one.score for one in translations}) > 12
    assert_same_translations(engines, max_length=60)


def test_precision_of_ctranslate2(models, tmp_path):
    sizes, translations = {}, {}
    for name in ("float32", "int8"):
        words = ["--to", "ctranslate2", "--quantization", name, "--output", tmp_path / name]
        collab("export", models.checkpoint("collaborative"), *words)
        sizes[name] = os.path.getsize(tmp_path / name / "model.bin")
        engine = collab_fairseq.load(tmp_path / name, precision=name, threads=1)
        translations[name] = engine.search(SOURCES, max_length=60)
    assert sizes["int8"] < 0.8 * sizes["float32"]
    gaps = [abs(a[0].score - b[0].score) for a, b in zip(*translations.values(), strict=True)]
    assert 0 < max(gaps) < 1  # depends on the CPU; a uniform distribution would be 5 bits worse
    with pytest.raises(UserError, match="int4"):
        collab_fairseq.load(tmp_path / "int8", precision="int4")


def test_ctranslate2_folder_needs_no_torch(read, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write(read("collaborative"), "ctranslate2", folder)
    translate_one = f"collab_fairseq.load({str(folder)!r}).translate(['a'])"
    code = f"import collab_fairseq, sys; {translate_one}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'collab_fairseq\[serve\]'"):
        collab_fairseq.load(folder)


@pytest.mark.parametrize("name", mostly_slow(FAIRSEQ, *DIFFERENT))
def test_plain_transformer_computes_the_same(read, name, tmp_path):
    source = read(name)
    write(source, "fairseq", tmp_path / "out")
    (model,) = TransformerModel.from_pretrained(str(tmp_path / "out")).models
    assert type(model) is TransformerModel
    torch.testing.assert_close(logits(model), logits(source.model), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", mostly_slow(FSMT, *DIFFERENT))
def test_transformers_computes_the_same(read, name, tmp_path):
    transformers = pytest.importorskip("transformers")
    source = read(name)
    write(source, "huggingface", tmp_path / "out")
    model = transformers.FSMTForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    tokens, _, target = batch()
    rows = [row[row != 1] for row in tokens]  # fairseq pads on the left, FSMT on the right
    right = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    with torch.no_grad():
        output = model(input_ids=right, attention_mask=right.ne(1), decoder_input_ids=target, use_cache=False)
    torch.testing.assert_close(output.logits, logits(source.model), atol=1e-4, rtol=0)


def test_fairseq_loads_a_model_of_some_kept_layers(models, tmp_path):
    state = checkpoints.load(models.checkpoint("collaborative", encoder_layers=1))
    state["cfg"]["model"].update(encoder_layers_to_keep="2", decoder_layers_to_keep="0,1")  # as a training run saves it
    checkpoints.save(state, tmp_path / "kept.pt")
    write(read_source(tmp_path / "kept.pt"), "fairseq", tmp_path / "out")
    (model,) = TransformerModel.from_pretrained(str(tmp_path / "out")).models
    assert len(model.encoder.layers) == 1


CRITERION = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.2, "sentence_avg": False}


@pytest.mark.parametrize(
    ("own", "of_fairseq"),
    [
        ({**CRITERION, "_name": "label_smoothed_cross_entropy_chunked"}, CRITERION),
        ({**CRITERION, "_name": "label_smoothed_cross_entropy_with_gates", "gate_penalty": 0.5}, CRITERION),
        ({"_name": "cross_entropy", "sentence_avg": True}, {"_name": "cross_entropy", "sentence_avg": True}),
    ],
    ids=lambda criterion: criterion["_name"],
)
def test_fairseq_can_build_the_loss_of_an_export_without_this_project(models, tmp_path, own, of_fairseq):
    state = checkpoints.load(models.checkpoint("collaborative"))
    state["cfg"]["criterion"] = own
    checkpoints.save(state, tmp_path / "own.pt")
    source = read_source(tmp_path / "own.pt")
    for target, expected in (("fairseq", of_fairseq), ("folder", own)):
        write(source, target, tmp_path / target)
        exported = checkpoints.load(tmp_path / target / "model.pt")["cfg"]["criterion"]
        assert {name: exported[name] for name in own if name in exported} == expected

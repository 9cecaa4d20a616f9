"""Exports to other engines: every shape of attention written as standard heads, and what each engine makes of it."""

import math
import os
import subprocess
import sys

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import collab_fairseq
from collab_fairseq import checkpoints
from collab_fairseq.cli import main
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from collab_fairseq.export.standard_heads import as_standard, standard_layers
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.heads import parse_heads
from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.translation import TranslationError
from fairseq_modern.errors import UserError
from tests.fairseq.models import batch
from tests.fairseq.serving_cases import SOURCES, cases, write_checkpoint

pytest.importorskip("ctranslate2")

SEARCH = {"beam": 3, "lenpen": 0.6, "max_length": 60}

#: name → one of KINDS and flags
MODELS = {
    "collaborative": ("collaborative", {}),
    "wide key dim": ("collaborative", {"key_dim": 12}),
    "content bias": ("content", {}),
    "content bias, wide": ("content", {"key_dim": 8}),
    "mixed sites": ("mixed", {}),
    "standard": ("standard", {}),
    "standard, small keys": ("standard", {"key_dim": 8}),
    "shared values": ("content", {"value_heads": 1}),
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
}  # fmt: skip
SHAPES = [*MODELS, "pruned"]
#: those that fairseq and FSMT can compute: with heads of 8 dimensions
LARGER = ("wide key dim", "content bias, wide", "groups of two", "pre-norm", "shapes", "quantised")
FITTING = [name for name in SHAPES if name not in LARGER]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return cases(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def source(models):
    """Reads one of MODELS, or ``pruned``: one whose layers have 1 and 2 heads."""

    def read(name):
        if name != "pruned":
            kind, flags = MODELS[name]
            return read_source(models.checkpoint(kind, **flags))
        path = models.data.parent / "pruned.pt"
        if not path.exists():
            state = checkpoints.load(models.checkpoint("collaborative"))
            checkpoints.save(remove_heads(state, parse_heads("E:1:2 A:2:1 D:1:1")).state, path)
        return read_source(path)

    return read


def logits(model):
    tokens, lengths, target = batch()
    with torch.no_grad():
        return model(tokens, lengths, target)[0]


@pytest.mark.parametrize("name", SHAPES)
def test_standard_heads_compute_the_same(source, name):
    """In float64, against the layers' own way, which the tests of attention hold to the reference."""
    model = source(name).model.double()
    expected = logits(model)
    made = standard_layers(model)
    assert not any(hasattr(layer, "mixing") for layer in made.values())
    with swapped(model, made):
        torch.testing.assert_close(logits(model), expected, atol=1e-11, rtol=0)
    wide = 3 + max(x.size(1) for layer in attention_layers(model).values() for x in layer.head_maps())
    filled = {place: as_standard(layer, 5, wide, 0.2) for place, layer in attention_layers(model).items()}
    with swapped(model, filled):
        torch.testing.assert_close(logits(model), expected, atol=1e-11, rtol=0)
    filled["encoder.0"].q_proj.weight.data.mul_(1.1)
    with swapped(model, filled):
        assert float((logits(model) - expected).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("target", "kind", "flags", "match"),
    [
        ("fairseq", "collaborative", {"key_dim": 12}, "heads of 12 .*; take --to folder or ctranslate2$"),
        ("fairseq", "collaborative", {"quant_noise_scalar": 0.1}, "--quant-noise-scalar"),
        ("huggingface", "content", {"key_dim": 8}, "heads of 9 .* its content bias"),
        ("huggingface", "collaborative", {"activation_fn": "relu_squared"}, "relu_squared"),
        ("huggingface", *MODELS["quantised"], "--quant-noise-pq"),
        ("ctranslate2", *MODELS["quantised"], "--quant-noise-pq"),
        ("ctranslate2", "pre-norm", {"encoder_normalize_before": True, "no_decoder_final_norm": True}, "final-norm"),
        ("ctranslate2", "collaborative", {"decoder_normalize_before": True}, "CTranslate2 lacks"),
        ("ctranslate2", "collaborative", {"activation_fn": "tanh"}, "tanh"),
    ],
)
def test_what_does_not_fit_is_named(models, target, kind, flags, match, tmp_path):
    if target == "huggingface":
        pytest.importorskip("transformers")
    with pytest.raises(UserError, match=match):
        write(read_source(models.checkpoint(kind, **flags)), target, tmp_path / "out")
    assert not os.listdir(tmp_path)


def two_engines(given, folder):
    """The model as it translates with torch and with CTranslate2."""
    for target in ("folder", "ctranslate2"):
        write(given, target, folder / target)
    return [collab_fairseq.load(folder / target) for target in ("folder", "ctranslate2")]


def same_translations(ours, theirs):
    """Of a beam of one: in larger ones the engines weigh a </s> in the first place differently."""
    for (one,), (other,) in zip(ours, theirs, strict=True):
        assert one.target == other.target
        assert other.score == pytest.approx(one.score, abs=1e-4)


def test_a_translation_ends_at_the_positions_of_the_decoder(models, tmp_path):
    """With either engine, whatever length is asked for."""
    given = read_source(models.checkpoint("collaborative", max_target_positions=9))
    with torch.no_grad():  # no sentence ends before it has to
        given.model.decoder.output_projection.weight[2] = -given.model.decoder.output_projection.weight[5]
    engines = two_engines(given, tmp_path)
    for asked, longest in ((200, 8), (9, 8), (8, 8), (3, 3)):
        ours, theirs = (engine.search(SOURCES[:3], beam=1, max_length=asked) for engine in engines)
        assert {len(best.target) for (best,) in ours} == {longest}
        same_translations(ours, theirs)


def test_padding_is_never_a_translation(models, tmp_path):
    """fairseq leaves it out of the search, and so does CTranslate2, which calls it <blank>."""
    given = read_source(models.checkpoint("collaborative"))
    write(given, "folder", tmp_path / "before")
    common = collab_fairseq.load(tmp_path / "before").search(SOURCES, max_length=20)[0][0].target[0]
    with torch.no_grad():  # now padding is more probable than what begins a translation
        weight = given.model.decoder.output_projection.weight
        weight[1] = 1.5 * weight[given.trained.task.target_dictionary.index(common)]
    ours, theirs = (engine.search(SOURCES, beam=1, max_length=20) for engine in two_engines(given, tmp_path))
    same_translations(ours, theirs)
    assert ours[0][0].score < -1


def log_probability(trained, source, target):
    """Σ log p of a target with </s>, and its length."""
    words, end = trained.task.source_dictionary, trained.task.source_dictionary.eos()
    tokens = torch.tensor([[*map(words.index, source), end]])
    prefix = torch.tensor([[end, *map(trained.task.target_dictionary.index, target), end]])
    with torch.no_grad():
        found = trained.model(tokens, torch.tensor([tokens.size(1)]), prefix[:, :-1])[0].log_softmax(-1)
    return float(found.gather(2, prefix[:, 1:, None]).sum()), prefix.size(1) - 1


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "quantised"])
def test_ctranslate2_translates_the_same(source, name, tmp_path):
    given = source(name)
    engines = two_engines(given, tmp_path)
    for engine in engines:
        best = [best for (best,) in engine.search(SOURCES, **SEARCH)]
        for one in best:
            total, length = log_probability(given.trained, one.source, one.target)
            assert one.score == pytest.approx(total / math.log(2) / length**0.6, abs=1e-4)
        assert len({one.score for one in best}) > 6
    same_translations(*(engine.search(SOURCES, beam=1, max_length=60) for engine in engines))


def test_precision_of_ctranslate2(source, tmp_path):
    given = source("collaborative")
    sizes, found = {}, {}
    for name in ("float32", "int8"):
        write(given, "ctranslate2", tmp_path / name, quantization=name)
        sizes[name] = os.path.getsize(tmp_path / name / "model.bin")
        found[name] = collab_fairseq.load(tmp_path / name, precision=name, threads=1).search(SOURCES, max_length=60)
    assert sizes["int8"] < 0.8 * sizes["float32"]
    assert found["int8"] != found["float32"]
    with pytest.raises(TranslationError, match="int4"):
        collab_fairseq.load(tmp_path / "int8", precision="int4")
    (tmp_path / "int8" / "model.bin").write_bytes(b"damaged")
    with pytest.raises(TranslationError, match="CTranslate2 cannot use"):
        collab_fairseq.load(tmp_path / "int8")


def test_a_model_folder_is_exported_again_for_ctranslate2(models, tmp_path, monkeypatch, capfd):
    given, text = str(models.checkpoint("collaborative")), tmp_path / "text"
    for target in ("folder", "ctranslate2"):
        assert main.main(["export", given, "--to", target, "--output", str(tmp_path / target)]) == 0
        given = str(tmp_path / target)
    text.write_text("".join(f"{line}\n" for line in SOURCES))
    capfd.readouterr()
    argv = ["translate", given, "--max-length", "60", str(text)]
    assert main.main(argv) == 0
    code = (  # what serves takes no torch along
        f"import sys, collab_fairseq; collab_fairseq.load({given!r}).translate(['a red dog']); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr().out.splitlines() == collab_fairseq.load(given).translate(SOURCES, max_length=60)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert main.main(argv) == 1
    assert "): pip install 'collab_fairseq[serve]'" in capfd.readouterr().err


@pytest.mark.parametrize("name", [*FITTING, "pre-norm", "quantised"])
def test_a_plain_transformer_computes_the_same(source, name, tmp_path):
    given = source(name)
    write(given, "folder", tmp_path / "folder")
    write(given, "fairseq", tmp_path / "fairseq")
    hub = TransformerModel.from_pretrained(str(tmp_path / "fairseq"))
    assert type(hub.models[0]) is TransformerModel
    torch.testing.assert_close(logits(hub.models[0]), logits(given.model), atol=1e-4, rtol=0)
    expected = collab_fairseq.load(tmp_path / "folder").translate(SOURCES, **SEARCH)
    assert collab_fairseq.load(tmp_path / "fairseq").translate(SOURCES, **SEARCH) == expected
    assert hub.translate(SOURCES, beam=3, lenpen=0.6, max_len_a=0, max_len_b=60) == expected


@pytest.mark.parametrize("name", FITTING)
def test_transformers_computes_the_same(source, name, tmp_path):
    transformers = pytest.importorskip("transformers")
    given = source(name)
    write(given, "huggingface", tmp_path / "out")
    model = transformers.FSMTForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    tokens, _, target = batch()
    rows = [row[row != 1] for row in tokens]  # fairseq pads on the left, FSMT on the right
    right = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    with torch.no_grad():
        found = model(input_ids=right, attention_mask=right.ne(1), decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(found, logits(given.model), atol=1e-4, rtol=0)


def test_transformers_splits_text_with_bpe_codes(models, tmp_path):
    transformers = pytest.importorskip("transformers")
    (data := tmp_path / "data-bin").mkdir()
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nr e\nre d</w>\nd o\n")
    units = ["red", "do@@", "g", "t@@", "h@@", "e", ".", *(f"madeupword{n}" for n in range(6))]
    for lang in ("en", "de"):
        (data / f"dict.{lang}.txt").write_text("".join(f"{unit} 1\n" for unit in units))
    path = write_checkpoint(tmp_path / "bpe.pt", data, langs=("en", "de"), key_dim=6)
    given = read_source(path, bpe_codes=codes, moses=True)
    for target in ("huggingface", "folder"):
        write(given, target, tmp_path / target)
    theirs = transformers.FSMTTokenizer.from_pretrained(tmp_path / "huggingface")
    tokenizer = collab_fairseq.load(tmp_path / "folder").tokenizer
    dictionary = given.trained.task.source_dictionary
    ids = [*map(dictionary.index, tokenizer.split("the red dog.")), dictionary.eos()]
    assert theirs("the red dog.").input_ids == ids
    assert tokenizer.split("the red dog.") == ["t@@", "h@@", "e", "red", "do@@", "g", "."]
    assert theirs.decode(ids, skip_special_tokens=True) == "the red dog."
    assert tokenizer.join(tokenizer.split("the red dog.")) == "the red dog."
    with pytest.raises(TranslationError, match="give the checkpoint or model folder it was made from"):
        read_source(tmp_path / "huggingface")

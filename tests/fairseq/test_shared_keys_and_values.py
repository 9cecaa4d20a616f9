"""Models whose heads share keys or values: loading, conversion, analyses and export."""

import os
from argparse import Namespace

import pytest
import torch
from fairseq import models

import collab_fairseq
from collab_fairseq import checkpoints
from collab_fairseq.export import ctranslate2
from collab_fairseq.export.source import read_source
from collab_fairseq.heads import relevance
from collab_fairseq.heads.redundancy import read_weights
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.reparam import ReparamError
from collab_fairseq.reparam.fairseq import convert
from collab_fairseq.translation import batches
from collab_fairseq.translation.load import run_state
from collab_fairseq.translation.translator import Search
from fairseq_modern.errors import UserError
from tests.fairseq.heads_cases import load, relevance_totals, standard_state
from tests.fairseq.models import KINDS
from tests.fairseq.serving_cases import cases

SHARED = ["shared-values", "multi-query", "latent"]
MIXED = {"key_dim": 6, "collaborative_heads": "encoder", "value_heads": 1}


@pytest.fixture(scope="module")
def saved(tiny_run, tiny_data, tmp_path_factory):
    """Attention → the model loaded from a checkpoint, and the logits of the saved model."""
    folder, loaded = tmp_path_factory.mktemp("shared"), {}
    state = standard_state(tiny_run)
    task = load(state, tiny_data).task
    for kind, flags in {**{kind: KINDS[kind] for kind in SHARED}, "mixed": MIXED}.items():
        config = {**model_config(state), "collaborative_heads": "encoder_cross_decoder", **flags}
        torch.manual_seed(0)
        model = models.build_model(Namespace(**config), task).eval()
        changed = {**state, "model": model.state_dict(), "cfg": {**state["cfg"], "model": Namespace(**config)}}
        checkpoints.save(changed, folder / f"{kind}.pt")
        trained = run_state(checkpoints.load(folder / f"{kind}.pt"), kind, tiny_data)
        loaded[kind] = trained, logits(model, trained)
    return loaded


def first_batch(trained):
    return next(iter(batches(trained, "test", max_tokens=200)))


def logits(model, trained):
    with torch.no_grad():
        return model(**first_batch(trained)["net_input"])[0]


@pytest.mark.parametrize("kind", SHARED)
def test_loaded_model_equals_the_saved_model(saved, kind):
    trained, expected = saved[kind]
    assert torch.equal(logits(trained.model, trained), expected)
    assert expected.std() > 0.1


@pytest.mark.parametrize("kind", ["shared-values", "multi-query", "mixed"])
def test_conversion_at_the_full_key_dimension_keeps_the_function(saved, tiny_data, kind):
    """Groups of standard heads become collaborative heads with shared values."""
    trained, expected = saved[kind]
    dims = {layer_id: layer.key_dim for layer_id, layer in attention_layers(trained.model).items()}
    state, _ = convert(trained, dims)
    converted = run_state(state, "converted", tiny_data)
    assert (logits(converted.model, trained) - expected).abs().max() < 1e-4
    for layer_id, layer in attention_layers(converted.model).items():
        groups = 2 if kind == "mixed" and layer_id != "encoder.0" else 1
        assert (layer.num_heads, layer.value_heads, hasattr(layer, "mixing")) == (2, groups, True)
    smaller = run_state(convert(trained, dict.fromkeys(dims, 3))[0], "smaller", tiny_data)
    assert (logits(smaller.model, trained) - expected).abs().max() > 1e-3


def test_conversion_rejects_latent_heads(saved):
    with pytest.raises(ReparamError, match="LatentAttention cannot be converted"):
        convert(saved["latent"][0], 3)


@pytest.mark.parametrize("kind", SHARED)
def test_rejects_removal_of_single_heads(saved, kind):
    with pytest.raises(UserError, match="heads of A:1 share"):
        remove_heads(saved[kind][0].state, {"cross.0": [1]})


def test_redundancy_needs_separate_keys(saved):
    assert read_weights(saved["shared-values"][0].state)["cross.0"].num_heads == 2
    for kind in ("multi-query", "latent"):
        with pytest.raises(ConfigurationError, match="E:1 share keys"):
            read_weights(saved[kind][0].state)


@pytest.mark.parametrize("kind", SHARED)
def test_relevance_is_conserved(saved, kind):
    """Relevance of a prediction returns to embeddings and biases, through shared values."""
    trained, _ = saved[kind]
    model, sample = trained.model, first_batch(trained)
    with relevance.linearised(model), relevance.values_only(attention_layers(model)):
        top, returned = relevance_totals(model, sample)
    assert returned.shape == top.shape[1:]
    assert ((returned - top.sum(0)).abs() < 1e-3 * top.abs().sum(0)).all()
    assert all(heads["encoder.0"].abs().max() > 1e-3 for heads in relevance.steps(trained, sample))


@pytest.mark.parametrize(
    ("kind", "groups", "one_cache"),
    [("collaborative", 1, True), ("standard", 1, True), ("standard", 2, False)],
)
def test_ctranslate2_export_stores_shared_heads_once(kind, groups, one_cache, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    flags = {"key_dim": 4, "value_heads": groups} if kind == "collaborative" else {"kv_heads": groups}
    source = read_source(cases(tmp_path / "made").checkpoint(kind, **heads, **flags))
    search = Search(beam=3, nbest=3, max_length=20)
    sources, targets = [["▁a"] * 5, ["▁o"] * 9, ["▁a"] * 9], [["▁a", "▁o"], ["▁a"] * 12, ["▁o", "▁a"]]
    tokens, scores, sizes = [], [], []
    for number, output in enumerate([tmp_path / "shared", tmp_path / "copies"]):
        if number:
            monkeypatch.setattr(ctranslate2, "_remove_copies", lambda layer: layer.num_heads)
        ctranslate2.export(source, output)
        engine = collab_fairseq.load(output).engine
        ranked = [[(0.0, target)] for target in targets]
        engine._rescore(sources, ranked, [0, 1, 2], search)
        hypotheses = [each for best in engine.search(sources, search) for each in best]
        tokens.append([each.tokens for each in hypotheses])
        scores.append([score for ((score, _),) in ranked] + [each.score for each in hypotheses])
        sizes.append(os.path.getsize(output / "model.bin"))
    assert tokens[0] == tokens[1]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    layer = attention_layers(source.model)["decoder.0"]
    saved = 2 * (layer.num_heads - groups) * layer.head_dim * (layer.embed_dim + 1)  # weights and biases of a layer
    assert sizes[1] - sizes[0] == pytest.approx(6 * 4 * saved, abs=500)  # six layers, float32, and names
    assert ("keys and values of one head only" in (tmp_path / "shared" / "README.md").read_text()) == one_cache

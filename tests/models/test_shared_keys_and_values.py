"""Models whose heads share keys or values: conversion, analyses and export."""

import os

import pytest
import torch

from collab_fairseq.export import ctranslate2, write
from collab_fairseq.export.source import read_source
from collab_fairseq.heads import relevance
from collab_fairseq.heads.redundancy import read_weights
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.reparam import AttentionError
from collab_fairseq.translation import load_model, with_state
from fairseq_modern.errors import UserError
from tests.heads.cases import convert, relevance_totals
from tests.models.cases import batch, logits

SHARED = ["shared-values", "multi-query", "latent"]


@pytest.fixture(scope="module")
def trained(models):
    """Attention → the model loaded from a checkpoint."""
    paths = {kind: models.checkpoint(kind) for kind in ("multi-query", "latent")}
    paths["shared-values"] = models.checkpoint("shared-values", collaborative_heads="encoder_cross_decoder")
    paths["mixed"] = models.checkpoint("mixed", collaborative_heads="encoder", value_heads=1)
    return {kind: load_model(path) for kind, path in paths.items()}


@pytest.mark.parametrize("kind", ["shared-values", "multi-query", "mixed"])
def test_conversion_at_the_full_key_dimension_keeps_the_function(trained, kind):
    """Groups of standard heads become collaborative heads with shared values."""
    source = trained[kind]
    expected = logits(source.model)
    dims = {layer_id: layer.key_dim for layer_id, layer in attention_layers(source.model).items()}
    converted = with_state(source, convert(source, dims)[0])
    assert (logits(converted.model) - expected).abs().max() < 1e-4
    for layer_id, layer in attention_layers(converted.model).items():
        groups = 2 if kind == "mixed" and not layer_id.startswith("encoder") else 1
        assert (layer.num_heads, layer.value_heads, hasattr(layer, "mixing")) == (2, groups, True)
    smaller = with_state(source, convert(source, dict.fromkeys(dims, 3))[0])
    assert (logits(smaller.model) - expected).abs().max() > 1e-3


def test_rejects_conversion_and_analyses_of_heads_that_are_not_separate(trained):
    with pytest.raises(AttentionError, match="LatentAttention cannot be converted"):
        convert(trained["latent"], 3)
    for kind in SHARED:
        with pytest.raises(UserError, match="heads of A:1 share"):
            remove_heads(trained[kind].state, {"cross.0": [1]})
    for kind in ("multi-query", "latent"):
        with pytest.raises(UserError, match="E:1 share keys"):
            read_weights(trained[kind].state)
    assert read_weights(trained["shared-values"].state)["cross.0"].num_heads == 2


@pytest.mark.parametrize("kind", SHARED)
def test_relevance_is_conserved(trained, kind):
    """Relevance of a prediction returns to embeddings and biases, through shared values."""
    model = trained[kind].model
    source, lengths, target = batch()
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target}}
    plain = relevance_totals(model, sample)[1]
    with relevance.linearised(model), relevance.values_only(attention_layers(model)):
        top, returned = relevance_totals(model, sample)
    assert returned.shape == top.shape[1:]
    assert ((returned - top.sum(0)).abs() < 1e-3 * top.abs().sum(0)).all()
    assert not torch.allclose(plain, top.double().sum(0), rtol=1e-3)  # control: without the rules
    assert all(heads["encoder.0"].abs().max() > 1e-3 for heads in relevance.relevance_by_step(trained[kind], sample))


@pytest.mark.parametrize(
    ("kind", "groups", "one_cache"),
    [("collaborative", 1, True), ("standard", 1, True), ("standard", 2, False)],
)
def test_ctranslate2_export_stores_shared_heads_once(models, kind, groups, one_cache, tmp_path, monkeypatch):
    """test_ctranslate2_translates_the_same compares translations and scores."""
    pytest.importorskip("ctranslate2")
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    flags = {"key_dim": 4, "value_heads": groups} if kind == "collaborative" else {"kv_heads": groups}
    source = read_source(models.checkpoint(kind, **heads, **flags))
    sizes = []
    for output in (tmp_path / "shared", tmp_path / "copies"):
        write(source, "ctranslate2", output)
        sizes.append(os.path.getsize(output / "model.bin"))
        monkeypatch.setattr(ctranslate2, "_remove_copies", lambda layer: layer.num_heads)
    layer = attention_layers(source.model)["decoder.0"]
    saved = 2 * (layer.num_heads - groups) * layer.head_dim * (layer.embed_dim + 1)  # weights and biases of a layer
    assert sizes[1] - sizes[0] == pytest.approx(6 * 4 * saved, abs=500)  # six layers, float32, and names
    assert ("keys and values of one head only" in (tmp_path / "shared" / "README.md").read_text()) == one_cache

"""Models whose heads share keys or values, saved and loaded, converted, served, and what analyses make of them."""

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
MIXED = {"key_dim": 6, "collaborative_heads": "encoder", "value_heads": 1}  # of the encoder alone


@pytest.fixture(scope="module")
def saved(tiny_run, tiny_data, tmp_path_factory):
    """Attention type → a checkpoint, and the logits of the model that it was made of."""
    folder, found = tmp_path_factory.mktemp("shared"), {}
    state = standard_state(tiny_run)
    task = load(state, tiny_data).task
    for kind in [*SHARED, "mixed"]:
        flags = MIXED if kind == "mixed" else KINDS[kind]
        config = {**model_config(state), "collaborative_heads": "encoder_cross_decoder", **flags}
        torch.manual_seed(0)
        model = models.build_model(Namespace(**config), task).eval()
        made = {**state, "model": model.state_dict(), "cfg": {**state["cfg"], "model": Namespace(**config)}}
        checkpoints.save(made, folder / f"{kind}.pt")
        trained = run_state(checkpoints.load(folder / f"{kind}.pt"), kind, tiny_data)
        found[kind] = trained, logits(model, trained)
    return found


def first_batch(trained):
    return next(iter(batches(trained, "test", max_tokens=200)))


def logits(model, trained):
    with torch.no_grad():
        return model(**first_batch(trained)["net_input"])[0]


@pytest.mark.parametrize("kind", SHARED)
def test_a_loaded_model_is_the_saved_one(saved, kind):
    trained, expected = saved[kind]
    assert torch.equal(logits(trained.model, trained), expected)
    assert expected.std() > 0.1


@pytest.mark.parametrize("kind", ["shared-values", "multi-query", "mixed"])
def test_conversion_at_the_full_key_dim_changes_nothing(saved, tiny_data, kind):
    """Groups of standard heads become collaborative heads that share values in these groups."""
    trained, expected = saved[kind]
    dims = {place: layer.key_dim for place, layer in attention_layers(trained.model).items()}
    state, _ = convert(trained, dims)
    made = run_state(state, "converted", tiny_data)
    assert (logits(made.model, trained) - expected).abs().max() < 1e-4
    for place, layer in attention_layers(made.model).items():
        groups = 2 if kind == "mixed" and place != "encoder.0" else 1
        assert (layer.num_heads, layer.value_heads, hasattr(layer, "mixing")) == (2, groups, True)
    smaller = run_state(convert(trained, dict.fromkeys(dims, 3))[0], "smaller", tiny_data)
    assert (logits(smaller.model, trained) - expected).abs().max() > 1e-3


def test_latent_heads_are_not_converted(saved):
    with pytest.raises(ReparamError, match="LatentAttention cannot be converted"):
        convert(saved["latent"][0], 3)


@pytest.mark.parametrize(
    ("kind", "shared"), [("shared-values", "values"), ("multi-query", "keys and values"), ("latent", "keys and values")]
)
def test_heads_that_share_are_not_removed_one_by_one(saved, kind, shared):
    state = saved[kind][0].state
    with pytest.raises(UserError, match=f"heads of A:1 share {shared}, so that none can be removed"):
        remove_heads(state, {"cross.0": [1]})
    if shared == "values":
        assert read_weights(state)["cross.0"].num_heads == 2
    else:
        with pytest.raises(ConfigurationError, match="heads of E:1 share keys"):
            read_weights(state)


@pytest.mark.parametrize("kind", SHARED)
def test_relevance_is_conserved(saved, kind):
    """All of a prediction goes back to embeddings and biases, through values that heads share."""
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
def test_ctranslate2_gets_no_copies_of_what_heads_share(kind, groups, one_cache, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    flags = {"key_dim": 4, "value_heads": groups} if kind == "collaborative" else {"kv_heads": groups}
    given = read_source(cases(tmp_path / "made").checkpoint(kind, **heads, **flags))
    search = Search(beam=3, nbest=3, max_length=20)
    sources, targets = [["▁a"] * 5, ["▁o"] * 9, ["▁a"] * 9], [["▁a", "▁o"], ["▁a"] * 12, ["▁o", "▁a"]]
    tokens, scores, sizes = [], [], []
    for number, output in enumerate([tmp_path / "shared", tmp_path / "copies"]):
        if number:
            monkeypatch.setattr(ctranslate2, "_leave_out_copies", lambda layer: layer.num_heads)
        ctranslate2.export(given, output)
        engine = collab_fairseq.load(output).engine
        ranked = [[(0.0, target)] for target in targets]
        engine._score(sources, ranked, [0, 1, 2], search)  # of several lengths
        hypotheses = [each for best in engine.search(sources, search) for each in best]
        tokens.append([each.tokens for each in hypotheses])
        scores.append([score for ((score, _),) in ranked] + [each.score for each in hypotheses])
        sizes.append(os.path.getsize(output / "model.bin"))
    assert tokens[0] == tokens[1]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    layer = attention_layers(given.model)["decoder.0"]
    fewer = 2 * (layer.num_heads - groups) * layer.head_dim * (layer.embed_dim + 1)  # weights and biases, in a layer
    assert sizes[1] - sizes[0] == pytest.approx(6 * 4 * fewer, abs=500)  # six layers; names take some bytes as well
    assert ("One head of keys and values is cached" in (tmp_path / "shared" / "README.md").read_text()) == one_cache

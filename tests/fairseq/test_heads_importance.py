"""Importance of heads, against finite differences and one sentence at a time."""

import itertools
import json
from collections import Counter
from functools import partial

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from collab_fairseq.heads.attention_hooks import masked, multiplied
from collab_fairseq.heads.figures import grids
from collab_fairseq.heads.importance import batch_of, gradients, importance
from collab_fairseq.heads.relevance import relevance
from collab_fairseq.heads.roles import roles
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.heads import head_name, parse_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import batches
from fairseq_modern.errors import UserError
from tests.fairseq.heads_cases import HEADS, LAYER_IDS, collaborative_state, load, standard_state


@pytest.fixture(scope="module", params=[standard_state, collaborative_state])
def trained(request, tiny_run, tiny_data):
    return load(request.param(tiny_run), tiny_data)


@pytest.fixture(autouse=True)
def loss_in_float64(monkeypatch):
    """fairseq takes the logarithm of probabilities in float32 whatever the model's type."""
    monkeypatch.setattr("fairseq.utils.log_softmax", lambda x, dim, onnx_trace=False: torch.log_softmax(x, dim))


def loss_of(trained, sample):
    with torch.no_grad():
        return float(trained.criterion(trained.model, sample)[0])


def single(trained, number):
    """A batch of one sentence of valid."""
    data = trained.task.dataset("valid")
    return data.collater([data[number]])


def of_sample(trained, sample, **options):
    return gradients(trained.model, attention_layers(trained.model), batch_of(trained, sample), **options)


def slope(ends, step=1e-5):
    """The central difference of ``ends``, a function of a factor near 1."""
    return (ends(1 + step) - ends(1 - step)) / (2 * step)


def test_gradients_are_finite_differences(trained):
    sample = next(iter(batches(trained, "valid", sentences=3)))
    layers = attention_layers(trained.model)
    found, tokens = (of_sample(trained, sample, tokens=tokens) for tokens in (False, True))

    def with_head(alone, layer_id, head, factor):
        factors = torch.ones(layers[layer_id].num_heads, dtype=torch.float64)
        factors[head] = factor
        with multiplied(layers, {layer_id: factors}):
            return loss_of(trained, alone)

    for row, number in enumerate(sample["id"].tolist()):
        alone = single(trained, number)
        for layer_id, head in itertools.product(layers, range(2)):
            expected = slope(partial(with_head, alone, layer_id, head))
            assert abs(found[layer_id][row, head].item() - expected) < 1e-6 * max(1, abs(expected))
            assert abs(tokens[layer_id][row, :, head].sum().item() - expected) < 1e-6 * max(1, abs(expected))
    assert max(gradient.abs().max() for gradient in found.values()) > 0.01


@pytest.mark.parametrize("tokens", [False, True])
def test_importance_is_the_mean_over_sentences_or_tokens_of_the_queries(trained, tokens):
    """Sentences taken one by one, so that no padding is there."""
    result = importance(trained, "valid", max_tokens=60, sentences=7, tokens=tokens)
    sums = {layer_id: torch.zeros(2, dtype=torch.float64) for layer_id in LAYER_IDS}
    seen = Counter()
    for number in range(7):
        sample = single(trained, number)
        source_tokens, target_tokens = sample["net_input"]["src_tokens"].numel(), sample["target"].numel()
        seen.update(sentences=1, source_tokens=source_tokens, target_tokens=target_tokens)
        for layer_id, gradient in of_sample(trained, sample, tokens=tokens).items():
            sums[layer_id] += gradient[0].abs().reshape(-1, 2).sum(0)
    assert {name: result[name] for name in seen} == seen
    for layer_id in LAYER_IDS:
        over = ("source_tokens" if layer_id == "encoder.0" else "target_tokens") if tokens else "sentences"
        found = [result["heads"][head_name(layer_id, head)]["raw"] for head in range(2)]
        assert found == pytest.approx((sums[layer_id] / seen[over]).tolist(), rel=1e-9, abs=0)
    assert all(parameter.requires_grad for parameter in trained.model.parameters())
    assert all(layer.head_multiplier is None for layer in attention_layers(trained.model).values())


def test_a_masked_head_has_no_importance_and_no_effect(trained):
    layers = attention_layers(trained.model)
    before = importance(trained, "valid", sentences=3)
    with masked(layers, parse_heads("A:1:2")):
        found = importance(trained, "valid", sentences=3)
    assert found["heads"]["A:1:2"]["raw"] == 0 < found["heads"]["A:1:1"]["raw"]
    assert before["heads"]["A:1:2"]["raw"] > 0


def test_without_cross_attention_the_encoder_has_no_part(tiny_run, tiny_data):
    state = standard_state(tiny_run)
    model_config(state)["no_cross_attention"] = True
    state["model"] = {name: tensor for name, tensor in state["model"].items() if "encoder_attn" not in name}
    trained = load(state, tiny_data)
    found = importance(trained, "valid", sentences=3)["heads"]
    assert list(found) == HEADS[:2] + HEADS[4:]
    assert [found[head]["raw"] > 1e-3 for head in found] == [False, False, True, True]
    with pytest.raises(UserError, match="encoder heads have no relevance, since the decoder has no cross-attention"):
        relevance(trained, "valid", sentences=3)
    model_config(state)["cross_self_attention"] = True
    with pytest.raises(UserError, match="D:1 looks at source and target at once"):
        roles(load(state, tiny_data), "valid", sentences=3)


def test_heads_stand_in_grids():
    assert dict(grids({"E:1:1": 1, "E:2:2": 4, "D:1:1": 5})) == {"encoder": [[1, None], [None, 4]], "decoder": [[5]]}


def test_the_command_prints_draws_and_takes_one_process(tiny_run, tiny_data, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    checkpoint, result, picture = (tmp_path / name for name in ("collaborative.pt", "result.json", "picture.svg"))
    checkpoints.save(collaborative_state(tiny_run), checkpoint)
    command = ["heads", "importance", checkpoint, "--data", tiny_data, "--json", result, "--figure", picture]
    assert main([str(word) for word in command]) == 0
    assert "20 sentences" in capsys.readouterr().out
    found = json.loads(result.read_text(encoding="utf-8"))["parts"]["importance"]["heads"]
    assert list(found) == HEADS
    assert sum(found[head]["normalised"] ** 2 for head in HEADS[:2]) == pytest.approx(1)
    assert "normalised in the layer" in picture.read_text(encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([str(word) for word in command]) == 1
    assert "start it without torchrun" in capsys.readouterr().err

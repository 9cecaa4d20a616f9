"""Head importance, against finite differences and single sentences."""

import itertools
from collections import Counter

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.heads.attention_hooks import masked, multiplied
from collab_fairseq.heads.importance import batch_of, gradients, importance
from collab_fairseq.heads.relevance import relevance
from collab_fairseq.heads.roles import roles
from collab_fairseq.modules.head_names import head_name, parse_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import batches
from fairseq_modern.errors import UserError
from tests.heads.cases import HEADS, LAYER_IDS, collab, collaborative_state, load, parts_of, standard_state


@pytest.fixture(scope="module", params=[standard_state, collaborative_state])
def trained(request, tiny_run, tiny_data):
    return load(request.param(tiny_run), tiny_data)


@pytest.fixture(autouse=True)
def loss_in_float64(monkeypatch):
    """fairseq computes log-probabilities in float32 for every dtype of the model."""
    monkeypatch.setattr("fairseq.utils.log_softmax", lambda x, dim, onnx_trace=False: torch.log_softmax(x, dim))


def single(trained, number):
    """A batch of one sentence of valid."""
    data = trained.task.dataset("valid")
    return data.collater([data[number]])


def sample_gradients(trained, sample, **options):
    return gradients(trained.model, attention_layers(trained.model), batch_of(trained, sample), **options)


def test_gradients_equal_finite_differences(trained):
    sample = next(iter(batches(trained, "valid", sentences=3)))
    layers = attention_layers(trained.model)
    by_sentence = sample_gradients(trained, sample)
    by_token = sample_gradients(trained, sample, tokens=True)

    def loss(sentence, layer_id, head, factor):
        factors = torch.ones(layers[layer_id].num_heads, dtype=torch.float64)
        factors[head] = factor
        with torch.no_grad(), multiplied(layers, {layer_id: factors}):
            return float(trained.criterion(trained.model, sentence)[0])

    step = 1e-5
    for row, number in enumerate(sample["id"].tolist()):
        sentence = single(trained, number)
        for layer_id, head in itertools.product(layers, range(2)):
            above, below = (loss(sentence, layer_id, head, factor) for factor in (1 + step, 1 - step))
            expected = (above - below) / (2 * step)
            assert abs(by_sentence[layer_id][row, head].item() - expected) < 1e-6 * max(1, abs(expected))
            assert abs(by_token[layer_id][row, :, head].sum().item() - expected) < 1e-6 * max(1, abs(expected))
    assert max(gradient.abs().max() for gradient in by_sentence.values()) > 0.01


@pytest.mark.parametrize("tokens", [False, True])
def test_importance_is_the_mean_over_sentences_or_query_tokens(trained, tokens):
    """Compared with single sentences, which have no padding."""
    result = importance(trained, "valid", max_tokens=60, sentences=7, tokens=tokens)
    sums = {layer_id: torch.zeros(2, dtype=torch.float64) for layer_id in LAYER_IDS}
    sizes = Counter()
    for number in range(7):
        sample = single(trained, number)
        source_tokens, target_tokens = sample["net_input"]["src_tokens"].numel(), sample["target"].numel()
        sizes.update(sentences=1, source_tokens=source_tokens, target_tokens=target_tokens)
        for layer_id, gradient in sample_gradients(trained, sample, tokens=tokens).items():
            sums[layer_id] += gradient[0].abs().reshape(-1, 2).sum(0)
    assert {name: result[name] for name in sizes} == sizes
    for layer_id in LAYER_IDS:
        queries = "source_tokens" if layer_id == "encoder.0" else "target_tokens"
        expected = sums[layer_id] / sizes[queries if tokens else "sentences"]
        raw = [result["heads"][head_name(layer_id, head)]["raw"] for head in range(2)]
        assert raw == pytest.approx(expected.tolist(), rel=1e-9, abs=0)
    assert all(parameter.requires_grad for parameter in trained.model.parameters())
    assert all(layer.head_multiplier is None for layer in attention_layers(trained.model).values())


def test_masked_head_has_no_importance(trained):
    with masked(attention_layers(trained.model), parse_heads("A:1:2")):
        heads = importance(trained, "valid", sentences=3)["heads"]
    assert heads["A:1:2"]["raw"] == 0 < heads["A:1:1"]["raw"]
    assert importance(trained, "valid", sentences=3)["heads"]["A:1:2"]["raw"] > 0


def test_encoder_heads_have_no_importance_without_cross_attention(tiny_run, tiny_data):
    state = standard_state(tiny_run)
    checkpoints.model_settings(state)["no_cross_attention"] = True
    checkpoints.model_settings(state)["checkpoint_activations"] = True  # only saves memory in training
    state["model"] = {name: tensor for name, tensor in state["model"].items() if "encoder_attn" not in name}
    trained = load(state, tiny_data)
    heads = importance(trained, "valid", sentences=3)["heads"]
    assert list(heads) == HEADS[:2] + HEADS[4:]
    assert [values["raw"] > 1e-3 for values in heads.values()] == [False, False, True, True]
    with pytest.raises(UserError, match="the decoder has no cross-attention"):
        relevance(trained, "valid", sentences=3)
    checkpoints.model_settings(state)["cross_self_attention"] = True
    with pytest.raises(UserError, match="D:1 attends to source and target together"):
        roles(load(state, tiny_data), "valid", sentences=3)


def test_command_prints_and_draws(tiny_run, tiny_data, tmp_path):
    pytest.importorskip("matplotlib")
    checkpoint, record, figure = (tmp_path / name for name in ("collaborative.pt", "result.json", "figure.svg"))
    checkpoints.save(collaborative_state(tiny_run), checkpoint)
    command = ["importance", checkpoint, "--data", tiny_data, "--sentences", 8, "--json", record, "--figure", figure]
    assert "8 of 20 sentences" in collab(*command)
    heads = parts_of(record)["importance"]["heads"]
    assert list(heads) == HEADS
    assert sum(heads[head]["normalised"] ** 2 for head in HEADS[:2]) == pytest.approx(1)
    assert "normalised in the layer" in figure.read_text(encoding="utf-8")

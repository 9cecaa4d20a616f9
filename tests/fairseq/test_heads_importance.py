"""Importance of heads and shared key dimensions, against finite differences and one sentence at a time."""

import itertools
import json
from functools import partial

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from collab_fairseq.heads.figures import grids
from collab_fairseq.heads.importance import gradients, importance
from collab_fairseq.heads.taps import masked, multiplied
from collab_fairseq.modules.heads import head_name, parse_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import batches
from tests.common import free_port, run
from tests.fairseq.heads_cases import HEADS, PLACES, collaborative_state, load, standard_state


@pytest.fixture(scope="module", params=["standard", "collaborative"])
def trained(request, tiny_run, tiny_data):
    state = {"standard": standard_state, "collaborative": collaborative_state}[request.param](tiny_run)
    return load(state, tiny_data)


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


def slope(ends, step=1e-5):
    """The central difference of ``ends``, a function of a factor near 1."""
    return (ends(1 + step) - ends(1 - step)) / (2 * step)


def test_gradients_are_finite_differences(trained):
    sample = next(iter(batches(trained, "valid", sentences=3)))
    layers = attention_layers(trained.model)
    found, dims = gradients(trained, sample)
    tokens, _ = gradients(trained, sample, tokens=True)

    def with_head(alone, place, head, factor):
        factors = torch.ones(layers[place].num_heads, dtype=torch.float64)
        factors[head] = factor
        with multiplied(layers, {place: factors}):
            return loss_of(trained, alone)

    def with_dimension(alone, place, dimension, factor):
        projection = layers[place].q_proj
        before = {name: tensor.clone() for name, tensor in projection.state_dict().items()}
        with torch.no_grad():
            projection.weight[dimension] *= factor
            projection.bias[dimension] *= factor
        changed = loss_of(trained, alone)
        projection.load_state_dict(before)
        return changed

    for row, number in enumerate(sample["id"].tolist()):
        alone = single(trained, number)
        for place, head in itertools.product(layers, range(2)):
            expected = slope(partial(with_head, alone, place, head))
            assert abs(found[place][row, head].item() - expected) < 1e-6 * max(1, abs(expected))
            assert abs(tokens[place][row, :, head].sum().item() - expected) < 1e-6 * max(1, abs(expected))
    assert max(gradient.abs().max() for gradient in found.values()) > 0.01
    alone = single(trained, int(sample["id"][0]))
    for place, dimension in itertools.product(dims, (0, 5)):
        expected = slope(partial(with_dimension, alone, place, dimension))
        assert abs(dims[place][0, dimension].item() - expected) < 1e-6 * max(1, abs(expected))


def raw(result, place):
    return torch.tensor([result["heads"][head_name(place, head)]["raw"] for head in range(2)], dtype=torch.float64)


def test_importance_is_the_mean_over_sentences_taken_one_by_one(trained):
    result = importance(trained, "valid", max_tokens=60, sentences=7)
    sums = {place: torch.zeros(2, dtype=torch.float64) for place in PLACES}
    for number in range(7):
        sample = single(trained, number)
        ones = {place: torch.ones(2, dtype=torch.float64, requires_grad=True) for place in PLACES}
        with multiplied(attention_layers(trained.model), ones):
            loss = trained.criterion(trained.model, sample)[0]
        for place, gradient in zip(PLACES, torch.autograd.grad(loss, list(ones.values())), strict=True):
            sums[place] += gradient.abs()
    assert result["sentences"] == 7
    for place in PLACES:
        assert torch.allclose(raw(result, place), sums[place] / 7, rtol=1e-9, atol=0)
    signed = importance(trained, "valid", max_tokens=60, sentences=7, tokens=True)
    assert all((raw(signed, place) - raw(result, place)).abs().max() > 1e-4 for place in PLACES)
    assert all(parameter.requires_grad for parameter in trained.model.parameters())
    assert all(layer.head_multiplier is None for layer in attention_layers(trained.model).values())


def test_the_token_form_averages_over_the_tokens_of_the_queries(trained):
    """One sentence a batch, so that no padding is there."""
    result = importance(trained, "valid", max_tokens=60, sentences=4, tokens=True)
    sums = {place: torch.zeros(2, dtype=torch.float64) for place in PLACES}
    lengths = [0, 0]
    for number in range(4):
        sample = single(trained, number)
        lengths[0] += sample["net_input"]["src_tokens"].numel()
        lengths[1] += sample["target"].numel()
        for place, gradient in gradients(trained, sample, tokens=True)[0].items():
            sums[place] += gradient[0].abs().sum(0)
    assert [result["source_tokens"], result["target_tokens"]] == lengths
    for place in PLACES:
        expected = sums[place] / lengths[0 if place == "encoder.0" else 1]
        assert torch.allclose(raw(result, place), expected, rtol=1e-9, atol=0)


def test_a_masked_head_has_no_importance_and_no_effect(trained):
    layers = attention_layers(trained.model)
    before = importance(trained, "valid", sentences=3)
    with masked(layers, parse_heads("A:1:2")):
        found = importance(trained, "valid", sentences=3)
    assert found["heads"]["A:1:2"]["raw"] == 0 < found["heads"]["A:1:1"]["raw"]
    assert before["heads"]["A:1:2"]["raw"] > 0


def test_heads_stand_in_grids():
    assert dict(grids({"E:1:1": 1, "E:2:2": 4, "D:1:1": 5})) == {"encoder": [[1, None], [None, 4]], "decoder": [[5]]}


def test_two_processes_give_what_one_gives(tiny_run, tiny_data, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    checkpoint = tmp_path / "collaborative.pt"
    checkpoints.save(collaborative_state(tiny_run), checkpoint)
    options = ["heads", "importance", checkpoint, "--data", tiny_data, "--max-tokens", 50, "--device", "cpu"]
    one, two, picture = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "picture.svg"
    assert main([str(word) for word in [*options, "--json", one, "--figure", picture]]) == 0
    printed = capsys.readouterr().out
    port = ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    done = run("torchrun", "--nproc_per_node", 2, *port, "-m", "collab_fairseq.cli.main", *options, "--json", two)
    assert done.stdout == printed
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (one, two)]
    first, second = (record["parts"]["importance"] for record in records)
    assert list(first["heads"]) == HEADS
    assert first["sentences"] == second["sentences"] == 20
    assert sum(first["heads"][head]["normalised"] ** 2 for head in HEADS[:2]) == pytest.approx(1)
    for head in HEADS:
        assert first["heads"][head]["raw"] == pytest.approx(second["heads"][head]["raw"], rel=1e-5)
    assert first["shared_dims"]["cross.0"] == pytest.approx(second["shared_dims"]["cross.0"], rel=1e-5)
    assert "normalised in the layer" in picture.read_text(encoding="utf-8")

"""How dimensions are spread over layers, and local distillation."""

import contextlib
import itertools

import pytest
import torch

from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.reparam import ReparamError
from collab_fairseq.reparam.allocation import (
    Budget,
    allocate,
    at_multiples,
    convex,
    divergences,
    measure_curves,
    parameters_of,
    spend,
)
from collab_fairseq.reparam.distill import distill, divergence, log_weights
from collab_fairseq.reparam.fairseq import calibrate, calls, convert, converted, sources
from collab_fairseq.translation import batches, load_model, with_state
from tests.common import FLOAT32

PLACES = ["encoder.0", "cross.0", "decoder.0"]


@pytest.fixture(scope="module")
def trained(tiny_run, tiny_data):
    model = load_model(tiny_run / "checkpoint_best.pt", tiny_data)
    with torch.no_grad():
        for layer in attention_layers(model.model).values():
            layer.q_proj.weight.mul_(3.0)
            layer.q_proj.bias.normal_(generator=torch.Generator().manual_seed(1))
    model.state["model"].update(model.model.state_dict())
    return model


@pytest.fixture(scope="module")
def calibrations(trained):
    return calibrate(trained, "train", PLACES, sentences=100)


def test_the_convex_hull_of_a_curve():
    assert convex({8: 0.0, 4: 1.0, 2: 4.0}) == [(2, 4.0), (4, 1.0), (8, 0.0)]
    # 6 lies above the line from 4 to 8; 3 is better than 4, which is noise
    assert convex({8: 0.0, 6: 0.9, 4: 1.0, 3: 0.9, 2: 4.0}) == [(2, 4.0), (3, 0.9), (8, 0.0)]


@pytest.mark.parametrize("budget", [9, 14, 20, 27, 30])
def test_greedy_is_as_good_as_trying_everything(budget):
    random = torch.Generator().manual_seed(budget)
    curves, costs = {}, {"a": 1, "b": 2, "c": 1}
    for name in costs:  # convex by construction
        steps = torch.rand(7, generator=random).sort().values
        falls = torch.flip(steps.cumsum(0), [0]).tolist()
        curves[name] = dict(zip(range(1, 9), [*falls, 0.0], strict=True))
    found = allocate(curves, costs, budget)
    spent = sum(found[name] * costs[name] for name in costs)
    assert spent <= budget < spent + 2 * max(costs.values())
    total = sum(curves[name][found[name]] for name in costs)
    every = [dict(zip(costs, dims, strict=True)) for dims in itertools.product(range(1, 9), repeat=3)]
    # greedy is the best way to spend what it has spent; a rest smaller than a step may buy something else
    best = min(
        sum(curves[n][dims[n]] for n in costs) for dims in every if sum(dims[n] * costs[n] for n in costs) <= spent
    )
    worst = max(
        sum(curves[n][dims[n]] for n in costs) for dims in every if sum(dims[n] * costs[n] for n in costs) == spent
    )
    assert best - 1e-9 <= total <= best + 1e-9
    assert total < worst


def test_a_budget_below_the_least_is_refused():
    with pytest.raises(ReparamError, match="need at least 6 and may have 5"):
        allocate({"a": {2: 1.0, 4: 0.0}}, {"a": 3}, 5)


@pytest.mark.parametrize("text", ["mean", "mean:0", "mean:x", "parameters:1.5", "rank:3", ":4"])
def test_budgets_are_read(text):
    assert Budget.parse("mean:85.3") == Budget(mean=85.3)
    assert Budget.parse("parameters:1500000") == Budget(parameters=1500000)
    with pytest.raises(ReparamError, match="mean:KEY_DIM or parameters:NUMBER"):
        Budget.parse(text)


def test_divergences_are_those_of_the_predictions(trained, calibrations):
    """Against probabilities of whole models, one token after the other."""
    small = with_state(trained, convert(trained, 4, calibrations)[0])
    found = divergences(
        trained, {"none": {}, "all": attention_layers(small.model)}, "valid", sentences=6, max_tokens=40
    )
    total, tokens = 0.0, 0
    for sample in batches(trained, "valid", sentences=6, max_tokens=40):
        with torch.no_grad():
            p, q = (torch.softmax(m.model(**sample["net_input"])[0].double(), -1) for m in (trained, small))
        for row, position in sample["target"].ne(1).nonzero().tolist():
            total += float((p[row, position] * (p[row, position] / q[row, position]).log2()).sum())
            tokens += 1
    assert found["all"] == pytest.approx(total / tokens, rel=1e-3)
    assert found["all"] > 1e-6
    assert found["none"] == pytest.approx(0, abs=1e-7)


def test_swapped_layers_come_back(trained):
    before = attention_layers(trained.model)
    other = attention_layers(with_state(trained, trained.state).model)
    with swapped(trained.model, {"cross.0": other["cross.0"]}):
        assert attention_layers(trained.model)["cross.0"] is other["cross.0"]
    assert attention_layers(trained.model) == before
    with contextlib.suppress(KeyError), swapped(trained.model, other):
        raise KeyError
    assert attention_layers(trained.model) == before


def test_a_curve_at_multiples():
    curve = {4: 1.0, 8: 0.6, 12: 0.2, 20: 0.0}
    assert at_multiples(curve, 8) == pytest.approx({8: 0.6, 16: 0.1})
    assert at_multiples(curve, 3) == pytest.approx({6: 0.8, 9: 0.5, 12: 0.2, 15: 0.125, 18: 0.05})
    assert at_multiples({2: 1.0, 9: 0.0}, 8) == pytest.approx({8: 1 / 7})
    with pytest.raises(ReparamError, match="must be multiples of 8, but a layer has only 7"):
        at_multiples({1: 1.0, 7: 0.0}, 8)


def test_budgets_are_spent_in_multiples(trained):
    full = dict.fromkeys(PLACES, 16)
    curves = {name: {2: 1.0 + n, 7: 0.3, 16: 0.0} for n, name in enumerate(PLACES)}
    for multiple in (3, 4, 8):
        dims = spend(trained, curves, Budget(mean=9), multiple=multiple)
        assert all(dim % multiple == 0 for dim in dims.values())
        assert 9 * 3 - 2 * multiple < sum(dims.values()) <= 9 * 3
    assert any(dim % 8 for dim in spend(trained, curves, Budget(mean=9)).values())
    assert spend(trained, curves, Budget(mean=16), multiple=8) == full


def test_budgets_are_spent_where_they_matter(trained, calibrations):
    curves = measure_curves(trained, PLACES, "train", calibrations, grid=(0.25, 0.5, 0.75), sentences=30, seed=1)
    assert list(curves) == PLACES
    assert all(sorted(curve) == [4, 8, 12, 16] for curve in curves.values())
    assert all(curve[16] == 0 < curve[4] for curve in curves.values())
    dims = spend(trained, curves, Budget(mean=9))
    assert 9 * 3 - 1 <= sum(dims.values()) <= 9 * 3
    full = parameters_of(converted(trained, sources(trained)))
    limit = full - 500
    state, _ = convert(trained, spend(trained, curves, Budget(parameters=limit)), calibrations)
    counted = sum(p.numel() for p in with_state(trained, state).model.parameters())
    assert parameters_of(state) == counted
    assert limit - 34 < counted <= limit


def test_attention_weights_are_the_layers_own(trained, calibrations):
    """Standard and collaborative layers, with their masks, against what the layers themselves return."""
    small = with_state(trained, convert(trained, 5, calibrations)[0])
    for model in (trained, small):
        layers, scores = attention_layers(model.model), sources(model)
        for batch in calls(trained, batches(trained, "valid", max_tokens=60), PLACES):
            for name, call in batch.items():
                with torch.no_grad():
                    found, counted = log_weights(scores[name], call)
                    _, weights = layers[name](
                        *(tensor.transpose(0, 1) for tensor in (call.query, call.key, call.value)),
                        key_padding_mask=call.key_padding_mask, attn_mask=call.attn_mask, need_head_weights=True,
                    )  # fmt: skip
                weights = weights.transpose(0, 1)
                torch.testing.assert_close(found.exp(), weights, atol=FLOAT32, rtol=0)
                assert bool((~counted | (weights > 0)).all())


def test_the_divergence_of_attention_by_hand(trained, calibrations):
    scores, fit = sources(trained), convert(trained, 4, calibrations)[1]
    batch = next(iter(calls(trained, batches(trained, "valid", max_tokens=60), ["decoder.0"])))
    call = batch["decoder.0"]
    given = [log_weights(s, call)[0].exp() for s in (scores["decoder.0"], fit["decoder.0"].weights)]
    total, number = 0.0, 0
    for row, position in (~call.query_padding_mask).nonzero().tolist():
        for head in range(2):
            p, q = (weights[row, head, position, : position + 1].double() for weights in given)
            total += float((p * (p / q).log()).sum())
            number += 1
    found = divergence(scores["decoder.0"], fit["decoder.0"].weights, call)
    assert float(found) == pytest.approx(total / number, rel=1e-4)
    assert float(found) > 1e-4
    assert float(divergence(scores["decoder.0"], scores["decoder.0"], call)) == pytest.approx(0, abs=1e-7)


def test_distillation_brings_attention_closer(trained, calibrations):
    _, fits = convert(trained, {"encoder.0": 4, "cross.0": 4, "decoder.0": 16}, calibrations)
    start = {name: fit.weights for name, fit in fits.items()}
    runs = [distill(trained, start, "train", 60, sentences=100, max_tokens=300, seed=seed) for seed in (1, 1, 2)]

    def total(weights):
        values = dict.fromkeys(PLACES, 0.0)
        for batch in calls(trained, batches(trained, "valid"), PLACES):
            for name, call in batch.items():
                values[name] += float(divergence(sources(trained)[name], weights[name], call))
        return values

    before, after = total(start), total({name: done.weights for name, done in runs[0].items()})
    for name in ("encoder.0", "cross.0"):
        assert 0 < after[name] < before[name]
        assert 0 < runs[0][name].after < runs[0][name].before
    assert after["encoder.0"] < 0.95 * before["encoder.0"]
    assert runs[0]["decoder.0"].weights is start["decoder.0"]  # exact: nothing to learn
    one, again, other = (run["cross.0"].weights.heads.query for run in runs)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.shape[0] == 4
    with pytest.raises(ReparamError, match="at least one step"):
        distill(trained, start, "train", 0)
    biased = {"cross.0": start["cross.0"]._replace(query_bias=torch.zeros(4))}
    with pytest.raises(ReparamError, match=r"cross\.0 have one"):
        distill(trained, biased, "train", 1)

"""Allocation of ranks to layers, and distillation."""

import itertools
import math

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.reparam import ReparamError, relative_error, scores_of
from collab_fairseq.reparam.allocation import (
    allocate_ranks,
    convex,
    divergences,
    measure_curves,
    parse_budget,
)
from collab_fairseq.reparam.distill import distill
from collab_fairseq.reparam.fairseq import calibrate, convert, converted
from collab_fairseq.reparam.text import text_of
from collab_fairseq.translation import batches, load_model, with_state

LAYER_IDS = ["encoder.0", "cross.0", "decoder.0"]


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
    return calibrate(trained, "train", LAYER_IDS, sentences=100)


def test_the_convex_hull_of_a_curve():
    assert convex({8: 0.0, 4: 1.0, 2: 4.0}) == [(2, 4.0), (4, 1.0), (8, 0.0)]
    # 6 lies above the line from 4 to 8; 3 is better than 4, which is noise
    assert convex({8: 0.0, 6: 0.9, 4: 1.0, 3: 0.9, 2: 4.0}) == [(2, 4.0), (3, 0.9), (8, 0.0)]


@pytest.mark.parametrize("budget", [4, 9, 14, 20, 24])
def test_greedy_is_as_good_as_trying_everything(budget):
    random = torch.Generator().manual_seed(budget)
    curves = {}
    for name in "abc":  # convex by construction
        steps = torch.rand(7, generator=random).sort().values
        falls = torch.flip(steps.cumsum(0), [0]).tolist()
        curves[name] = dict(zip(range(1, 9), [*falls, 0.0], strict=True))
    found = allocate_ranks(curves, budget / 3)
    assert sum(found.values()) == budget
    total = sum(curves[name][dim] for name, dim in found.items())
    every = [dims for dims in itertools.product(range(1, 9), repeat=3) if sum(dims) == budget]
    totals = [sum(curve[dim] for curve, dim in zip(curves.values(), dims, strict=True)) for dims in every]
    assert min(totals) - 1e-9 <= total <= min(totals) + 1e-9
    assert len(totals) == 1 or total < max(totals)


def test_budgets_are_read():
    assert parse_budget("mean:85.3") == 85.3
    for text in ("mean", "mean:0", "parameters:1500000"):
        with pytest.raises(ReparamError, match=f"must be mean:KEY_DIM; got '{text}'"):
            parse_budget(text)


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


def test_budgets_are_allocated_where_they_matter(trained, calibrations):
    curves = measure_curves(trained, LAYER_IDS, "train", calibrations, grid=(0.25, 0.5, 0.75), sentences=30, seed=1)
    assert list(curves) == LAYER_IDS
    assert all(sorted(curve) == [4, 8, 12, 16] for curve in curves.values())
    assert all(curve[16] == 0 < curve[4] for curve in curves.values())
    dims = allocate_ranks(curves, 9)
    assert 9 * 3 - 1 <= sum(dims.values()) <= 9 * 3
    state, _ = convert(trained, dims, calibrations)
    assert checkpoints.num_parameters(state) == sum(p.numel() for p in with_state(trained, state).model.parameters())


@pytest.fixture(scope="module")
def start(trained, calibrations):
    """Scores of two layers with a quarter of their dimensions, and far off, and of one that is exact."""
    fits = convert(trained, {"encoder.0": 4, "cross.0": 4, "decoder.0": 16}, calibrations)[1]
    found = {name: fit.weights for name, fit in fits.items()}
    for name in ("encoder.0", "cross.0"):
        found[name].heads.mixing.normal_(0, 3, generator=torch.Generator().manual_seed(1))
        found[name] = found[name]._replace(heads=found[name].heads.balanced())
    return found


@pytest.fixture(scope="module")
def own(trained):
    """The name of a split of 64 training sentences with translations drawn from the model."""
    return text_of("train:64", trained, 4000, option="own", seed=1)[0]


def test_translations_are_drawn_from_the_model(trained, own):
    """No reference is read; another seed draws others; what is drawn is likelier than the references are."""
    drawn, given = (trained.task.dataset(name) for name in (own, "train"))
    pairs = [(drawn.src[n], given.src[n]) for n in range(64)]
    assert all(torch.equal(one.long(), other.long()) for one, other in pairs)
    targets = [[tuple(data.tgt[n].tolist()) for n in range(64)] for data in (drawn, given)]
    other = trained.task.dataset(text_of("train:64", trained, 4000, option="other", seed=2)[0])
    again = trained.task.dataset(text_of("train:64", trained, 4000, option="again", seed=1)[0])
    assert [tuple(again.tgt[n].tolist()) for n in range(64)] == targets[0]
    assert [tuple(other.tgt[n].tolist()) for n in range(64)] != targets[0]
    assert sum(one == reference for one, reference in zip(*targets, strict=True)) < 10


def scores_of_predictions(trained, start, split, steps, rate):
    """:func:`distill` on a single batch, by autograd of the loss as it is written in its module."""
    model = with_state(trained, converted(trained, start)).model
    sizes = {}
    for layer_id, layer in attention_layers(model).items():
        for name, parameter in layer.named_parameters():
            if layer_id in start and not name.startswith(("v_proj", "out_proj")):
                sizes[parameter] = float(parameter.detach().square().mean().sqrt())
    optimizer = torch.optim.Adam([{"params": [parameter]} for parameter in sizes], betas=(0.9, 0.98))
    (sample,) = batches(trained, split)
    with torch.no_grad():
        p = torch.softmax(trained.model(**sample["net_input"])[0], -1)
    for step in range(steps):
        q = torch.softmax(model(**sample["net_input"])[0], -1)
        optimizer.zero_grad()
        (p * (p / q).log()).sum(-1)[sample["target"] != 1].mean().backward()
        for group, size in zip(optimizer.param_groups, sizes.values(), strict=True):
            group["lr"] = rate * size * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.step()
    layers = attention_layers(model)
    return {name: scores_of(layers[name]) for name in start}


def test_a_step_is_one_on_the_divergence_of_predictions(trained, start, own):
    some = {name: start[name] for name in ("encoder.0", "cross.0")}
    expected = scores_of_predictions(trained, some, own, 3, 0.01)
    found, _ = distill(trained, some, own, 3, max_tokens=4000, rate=0.01)
    for name, scores in found.items():
        wanted = expected[name]._replace(heads=expected[name].heads.balanced())
        moved = relative_error(wanted.heads, start[name].heads)
        assert relative_error(wanted.heads, scores.heads) < 1e-2 * moved
        torch.testing.assert_close(scores.content_bias, wanted.content_bias, atol=1e-4, rtol=0)
        assert moved > 1e-3
        assert float((wanted.content_bias - start[name].content_bias).abs().max()) > 1e-3


def test_distillation_brings_predictions_closer(trained, start, own):
    """On text that it does not see, and as far as it says; what it was given stays as it was."""
    weights, told = distill(trained, start, own, 60, max_tokens=300, rate=0.03)
    models = {"before": start, "after": weights}
    variants = {
        name: attention_layers(with_state(trained, converted(trained, scores)).model) for name, scores in models.items()
    }
    unseen = divergences(trained, variants, "valid")
    assert 0 < unseen["after"] < 0.8 * unseen["before"]
    measured = divergences(trained, variants, own)
    assert measured == pytest.approx({name: told[name] for name in models}, rel=1e-3)
    assert weights["decoder.0"] is start["decoder.0"]  # exact: nothing to learn
    assert [step for step, _ in told["curve"]] == [50, 60]
    assert told["curve"][-1][1] < told["before"]
    with pytest.raises(ReparamError, match="at least one step"):
        distill(trained, start, own, 0)
    assert distill(trained, {"decoder.0": start["decoder.0"]}, own, 1)[1]["curve"] == []


def test_where_steps_lead_away_the_start_stays(trained, start, own):
    weights, told = distill(trained, start, own, 2, rate=100.0)
    assert weights == start
    assert told["after"] == told["before"] > 0


def test_distillation_is_repeated_by_its_seed(trained, start, own):
    found = [distill(trained, start, own, 3, max_tokens=200, seed=seed)[1]["curve"] for seed in (5, 5, 6)]
    assert found[0] == found[1] != found[2]

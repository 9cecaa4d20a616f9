"""Allocation of ranks to layers, and distillation."""

import itertools
import json
import math
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.data import LanguagePairDataset

from collab_fairseq import checkpoints
from collab_fairseq.heads.relevance import relevance_by_step
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.reparam import AttentionError, allocation, relative_error, scores_of
from collab_fairseq.reparam.allocation import allocate_ranks, divergences, lower_convex_hull, measure_divergences
from collab_fairseq.reparam.distill import distill
from collab_fairseq.reparam.fairseq import converted_state
from collab_fairseq.reparam.text import text_of
from collab_fairseq.translation import batches, load_model, with_state
from fairseq_modern.errors import UserError
from tests.common import collab
from tests.heads.cases import LAYER_IDS, convert


def test_convex_hull():
    assert lower_convex_hull({8: 0.0, 4: 1.0, 2: 4.0}) == [(2, 4.0), (4, 1.0), (8, 0.0)]
    # 6 lies above the line from 4 to 8; due to noise, 3 is better than 4
    assert lower_convex_hull({8: 0.0, 6: 0.9, 4: 1.0, 3: 0.9, 2: 4.0}) == [(2, 4.0), (3, 0.9), (8, 0.0)]


@pytest.mark.parametrize("budget", [4, 9, 14, 20, 24])
def test_greedy_allocation_equals_exhaustive_search(budget):
    random = torch.Generator().manual_seed(budget)
    by_layer = {}
    for name in "abc":  # convex by construction
        steps = torch.rand(7, generator=random).sort().values
        values = torch.flip(steps.cumsum(0), [0]).tolist()
        by_layer[name] = dict(zip(range(1, 9), [*values, 0.0], strict=True))
    allocated = allocate_ranks(by_layer, budget / 3)
    assert sum(allocated.values()) == budget
    total = sum(by_layer[name][key_dim] for name, key_dim in allocated.items())
    choices = [key_dims for key_dims in itertools.product(range(1, 9), repeat=3) if sum(key_dims) == budget]
    totals = [sum(by_layer[name][dim] for name, dim in zip("abc", key_dims, strict=True)) for key_dims in choices]
    assert total == pytest.approx(min(totals), abs=1e-9)
    assert len(totals) == 1 or total < max(totals)


def test_divergences_equal_kl_of_whole_models(trained, calibrations):
    """Computed from the probabilities of both models, token by token."""
    small = with_state(trained, convert(trained, 4, calibrations)[0])
    variants = {"none": {}, "all": attention_layers(small.model)}
    measured = divergences(trained, variants, "valid", sentences=6, max_tokens=40)
    total, tokens = 0.0, 0
    for sample in batches(trained, "valid", sentences=6, max_tokens=40):
        with torch.no_grad():
            p, q = (torch.softmax(m.model(**sample["net_input"])[0].double(), -1) for m in (trained, small))
        for row, position in sample["target"].ne(1).nonzero().tolist():
            total += float((p[row, position] * (p[row, position] / q[row, position]).log2()).sum())
            tokens += 1
    assert measured["all"] == pytest.approx(total / tokens, rel=1e-3)
    assert measured["all"] > 1e-6
    assert measured["none"] == pytest.approx(0, abs=1e-7)


def test_allocates_measured_divergences(trained, calibrations):
    options = {"grid": (0.25, 0.5, 0.75), "sentences": 30, "seed": 1}
    by_layer = measure_divergences(trained, LAYER_IDS, "train", calibrations, **options)
    assert list(by_layer) == list(LAYER_IDS)
    for divergence_by_rank in by_layer.values():
        assert sorted(divergence_by_rank) == [4, 8, 12, 16]
        assert divergence_by_rank[16] == 0 < divergence_by_rank[4]
    key_dims = allocate_ranks(by_layer, 9)
    assert 9 * 3 - 1 <= sum(key_dims.values()) <= 9 * 3


def test_interrupted_conversion_continues_with_its_divergences(tiny_run, tiny_data, tmp_path, monkeypatch, caplog):
    """It equals an uninterrupted one. Another model, text or seed does not continue with them."""
    caplog.set_level("INFO")
    for name in ("model.pt", "other.pt"):
        shutil.copy(tiny_run / "checkpoint_best.pt", tmp_path / name)
    state = checkpoints.load(tmp_path / "other.pt")
    next(iter(state["model"].values())).mul_(1.01)
    checkpoints.save(state, tmp_path / "other.pt")
    calls = []

    def convert(output, limit, model="model.pt", text="train:30", seed=1):
        """The record, and the number of measurements; more than the limit of them are interrupted."""

        def measured(*arguments, **options):
            calls.append(arguments)
            if len(calls) > limit:
                raise UserError("interrupted")
            return divergences(*arguments, **options)

        calls.clear()
        monkeypatch.setattr(allocation, "divergences", measured)
        words = ["reparam", tmp_path / model, "--data", tiny_data, "--output", tmp_path / output, "--seed", seed]
        words += ["--budget", "mean:8", "--calibration", text, "--json", tmp_path / "record.json"]
        collab(*words, status=int(limit < len(allocation.GRID)))

    def parts(file):
        return json.loads((tmp_path / file).read_text())["parts"]

    convert("whole.pt", 8)
    assert len(calls) == 8
    whole = parts("record.json")
    convert("out.pt", 3)
    kept = tmp_path / "out.pt.divergences.json"
    assert [*parts(kept)] == ["0.125", "0.1875", "0.25"]
    interrupted = kept.read_text()
    assert "step 2 of 3: measuring divergences: 3 layers at 8 key dimensions each" in caplog.text

    for change in ({"model": "other.pt"}, {"text": "train:29"}, {"seed": 2}, {}):
        kept.write_text(interrupted)
        convert("out.pt", 1, **change)
        assert [*parts(kept)][:1] == ["0.125"]
        assert len(parts(kept)) == (1 if change else 4)
        assert ("measured again" in caplog.text) == bool(change)
        caplog.clear()
    convert("out.pt", 8)
    assert len(calls) == 4
    assert not kept.exists()
    result = parts("record.json")
    for layer in (*whole["layers"], *result["layers"]):
        del layer["seconds"]
    assert (result["divergences"], result["layers"]) == (whole["divergences"], whole["layers"])
    models = [checkpoints.load(tmp_path / name)["model"] for name in ("whole.pt", "out.pt")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.fixture(scope="module")
def start(trained, calibrations):
    """Scores of two layers with rank 4 and random mixing, and of one layer at its full key dimension."""
    fits = convert(trained, {"encoder.0": 4, "cross.0": 4, "decoder.0": 16}, calibrations)[1]
    weights = {name: fit.weights for name, fit in fits.items()}
    for name in ("encoder.0", "cross.0"):
        weights[name].heads.mixing.normal_(0, 3, generator=torch.Generator().manual_seed(1))
        weights[name] = weights[name]._replace(heads=weights[name].heads.balanced())
    return weights


@pytest.fixture(scope="module")
def sampled(trained):
    """Name of a split: 64 training sentences with translations sampled from the model."""
    return text_of("train:64", trained, 4000, option="sampled", seed=1)[0]


def test_translations_are_sampled_from_the_model(trained, sampled):
    def targets(split):
        return [tuple(trained.task.dataset(split).tgt[n].tolist()) for n in range(64)]

    sources = [trained.task.dataset(split).src for split in (sampled, "train")]
    assert all(torch.equal(sources[0][n].long(), sources[1][n].long()) for n in range(64))
    for seed, equal in ((1, True), (2, False)):
        split, _ = text_of("train:64", trained, 4000, option=f"seed {seed}", seed=seed)
        assert (targets(split) == targets(sampled)) == equal
    assert sum(one == reference for one, reference in zip(targets(sampled), targets("train"), strict=True)) < 10


def test_text_records_the_sentences_that_exist(trained):
    """The corpus has 200 training pairs."""
    for flag, number in (("train:1000000", 200), ("train", 200), ("train:64", 64)):
        expected = {"text": f"the first {number} sentences of train", "sentences": number}
        assert text_of(flag, trained, 4000) == ("train", expected)
    description = text_of("train:201", trained, 4000, option="beyond", seed=1)[1]
    expected = "the first 200 sentences of train, translations drawn from the model"
    assert description == {"text": expected, "sentences": 200}


def distill_by_autograd(trained, start, split, steps, rate):
    """:func:`distill` on a single batch, by autograd of the loss in its docstring."""
    model = with_state(trained, converted_state(trained, start)).model
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


def test_distillation_steps_equal_autograd(trained, start, sampled):
    start = {name: start[name] for name in ("encoder.0", "cross.0")}
    expected = distill_by_autograd(trained, start, sampled, 3, 0.01)
    distilled, _ = distill(trained, start, sampled, 3, max_tokens=4000, rate=0.01)
    for name, scores in distilled.items():
        heads, content_bias = expected[name].heads.balanced(), expected[name].content_bias
        change = relative_error(heads, start[name].heads)
        assert change > 1e-3
        assert relative_error(heads, scores.heads) < 1e-2 * change
        torch.testing.assert_close(scores.content_bias, content_bias, atol=1e-4, rtol=0)
        assert float((content_bias - start[name].content_bias).abs().max()) > 1e-3


def test_distillation_lowers_the_divergence_on_unseen_text(trained, start, sampled):
    weights, measurements = distill(trained, start, sampled, 60, max_tokens=300, rate=0.03)
    models = {"before": converted_state(trained, start), "after": converted_state(trained, weights)}
    variants = {name: attention_layers(with_state(trained, state).model) for name, state in models.items()}
    unseen = divergences(trained, variants, "valid")
    assert 0 < unseen["after"] < 0.8 * unseen["before"]
    expected = divergences(trained, variants, sampled)
    assert {name: measurements[name] for name in models} == pytest.approx(expected, rel=1e-3)
    assert weights["decoder.0"] is start["decoder.0"]  # exact at its full key dimension
    assert [step for step, _ in measurements["curve"]] == [50, 60]
    assert measurements["curve"][-1][1] < measurements["before"]
    with pytest.raises(AttentionError, match="at least one step"):
        distill(trained, start, sampled, 0)
    assert distill(trained, {"decoder.0": start["decoder.0"]}, sampled, 1)[1]["curve"] == []


def test_distillation_that_diverges_returns_the_start(trained, calibrations, sampled):
    start = {name: fit.weights for name, fit in convert(trained, 8, calibrations)[1].items()}
    weights, measurements = distill(trained, start, sampled, 2, rate=100.0)
    assert weights == start
    assert measurements["after"] == measurements["before"] > 0


def test_rejects_adaptive_softmax_where_logits_are_needed(trained, start, sampled, tiny_data, tmp_path, caplog):
    """Conversion without them is the control."""
    not_shared = dict.fromkeys(("share_all_embeddings", "share_decoder_input_output_embed"), False)
    config = Namespace(**{**checkpoints.model_settings(trained.state), **not_shared, "adaptive_softmax_cutoff": [8]})
    model = trained.task.build_model(config)
    cfg = {**trained.state["cfg"], "model": config}
    checkpoints.save({**trained.state, "cfg": cfg, "model": model.state_dict()}, tmp_path / "adaptive.pt")
    source = load_model(tmp_path / "adaptive.pt", tiny_data)
    sample = next(iter(batches(source, "valid")))
    for measure in (
        lambda: divergences(source, {}, "valid"),
        lambda: distill(source, start, sampled, 1),
        lambda: next(relevance_by_step(source, sample)),
    ):
        with pytest.raises(UserError, match="has an adaptive softmax"):
            measure()
    command = ["reparam", tmp_path / "adaptive.pt", "--data", tiny_data, "--calibration", "train:9"]
    command += ["--output", tmp_path / "converted.pt"]
    caplog.set_level("INFO")
    for flags in ("--budget mean:8", "--key-dim 8 --distill 1"):
        assert "which are needed for a budget or distillation" in collab(*command, *flags.split(), status=1)
        assert not (tmp_path / "converted.pt").exists()
    assert "calibrating on" not in caplog.text
    collab(*command, "--key-dim", 8)
    assert "calibrating on" in caplog.text


def test_seed_determines_distillation(trained, start, sampled):
    curves = [distill(trained, start, sampled, 3, max_tokens=200, seed=seed)[1]["curve"] for seed in (5, 5, 6)]
    assert curves[0] == curves[1] != curves[2]


def test_max_tokens_limits_all_batches(tiny_run, tiny_data, tmp_path, monkeypatch):
    limits = set()
    batch_by_size = LanguagePairDataset.batch_by_size

    def recorded(data, order, max_tokens, **options):
        limits.add(max_tokens)
        return batch_by_size(data, order, max_tokens, **options)

    monkeypatch.setattr(LanguagePairDataset, "batch_by_size", recorded)
    command = ["reparam", tiny_run / "checkpoint_best.pt", "--data", tiny_data, "--output", tmp_path / "out.pt"]
    command += ["--key-dim", 8, "--calibration", "train:9", "--distill", 1, "--max-tokens", 50]
    collab(*command)
    assert limits == {50}

"""Ablation, pruning and removal of heads: the smaller model equals the masked model."""

import copy
import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.heads import ablation, importance, pruning
from collab_fairseq.heads.ablation import Evaluated, TestSet, evaluate
from collab_fairseq.heads.attention_hooks import masked
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.head_names import describe, parse_heads
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.records.record import Record
from collab_fairseq.translation import loss, translate
from fairseq_modern.errors import UserError
from tests.commands import USER_DIR
from tests.common import run
from tests.fixtures import sentence_pairs
from tests.heads.cases import (
    HEADS,
    LAYER_IDS,
    collab,
    collaborative_state,
    load,
    logits,
    parts_of,
    standard_state,
)


@pytest.fixture(scope="module")
def states(tiny_run):
    states = {
        "standard": standard_state(tiny_run),
        "collaborative": collaborative_state(tiny_run, key_dim=11),
        "content-bias": collaborative_state(tiny_run, content_bias=True),
        "grouped": standard_state(tiny_run),
    }
    # one head per group, so that heads can be removed
    checkpoints.model_settings(states["content-bias"])["value_heads"] = 2
    checkpoints.model_settings(states["grouped"])["kv_heads"] = 2
    return states


@pytest.fixture(scope="module")
def references(states, tiny_data, tmp_path_factory):
    """The targets and translations by the model, so that BLEU is neither 0 nor 100."""
    hypotheses = translate(load(states["standard"], tiny_data, double=False), "test")
    targets = [target for _, target in sentence_pairs(20, seed=2)]
    lines = [f"{target} {line}" for target, line in zip(targets, hypotheses, strict=True)]
    path = tmp_path_factory.mktemp("references") / "test.tgt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        *(("standard", heads) for heads in ("E:1:1", "A:1:2 D:1:1")),
        *((name, "E:1:1,2 D:1:2") for name in ("standard", "grouped", "collaborative", "content-bias")),
    ],
)
def test_model_without_heads_equals_masked_model(states, name, heads, tiny_data):
    state = states[name]
    before, trained = copy.deepcopy(state["model"]), load(state, tiny_data)
    with masked(attention_layers(trained.model), parse_heads(heads)):
        expected = logits(trained)
        translations = translate(trained, "test", max_len_b=20)
    assert (expected - logits(trained)).abs().max() > 1e-3
    result = remove_heads(state, parse_heads(heads), empty_layers=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state["model"].items())
    assert describe(result.removed) == heads == result.state["extra_state"]["removed_heads"]
    smaller = load(result.state, tiny_data)
    assert (logits(smaller) - expected).abs().max() < 1e-10
    assert translate(smaller, "test", max_len_b=20) == translations
    layers = attention_layers(smaller.model)
    parameters = sum(parameter.numel() for layer in layers.values() for parameter in layer.parameters())
    assert result.parameters_after == parameters < result.parameters_before
    layer = layers[list(result.removed)[-1]]
    assert (layer.num_heads, layer.head_dim) == (1, 8)
    assert layer.q_proj.out_features == {"collaborative": 11, "content-bias": 16}.get(name, 8)


def test_unused_shared_dimensions_are_removed(states, tiny_data):
    state = copy.deepcopy(states["content-bias"])
    state["model"][parameter_prefix("cross.0") + "mixing"][1, [2, 5, 6]] = 0.0
    trained, heads = load(state, tiny_data), parse_heads("A:1:1")
    result = remove_heads(state, heads).state
    smaller = load(result, tiny_data)
    assert attention_layers(smaller.model)["cross.0"].key_dim == 13
    with masked(attention_layers(trained.model), heads):
        assert (logits(smaller) - logits(trained)).abs().max() < 1e-10
    twice = remove_heads(result, parse_heads("D:1:2"))
    assert attention_layers(load(twice.state, tiny_data).model)["cross.0"].key_dim == 13


def test_rejects_impossible_removals(states):
    for heads, message in (
        ("", "there are no heads to remove"),
        ("E:1:1,2 A:1:1,2 D:1:1,2", "E:1, A:1, D:1 would lose all heads"),
        ("D:1:3", "D:1:3 names head 3, but D:1 has 2 heads"),
    ):
        with pytest.raises(UserError, match=message):
            remove_heads(states["standard"], parse_heads(heads))


def test_conditions_and_correlation():
    counts = {"encoder.0": 3, "cross.0": 1}
    assert ablation.heads_to_mask(counts, "without")["E:1:2"] == {"encoder.0": (1,)}
    assert ablation.heads_to_mask(counts, "only")["E:1:2"] == {"encoder.0": (0, 2)}
    assert "A:1:1" not in ablation.heads_to_mask(counts, "only")
    record = Record("heads", "ablate", "", {}, device="cpu")
    with pytest.raises(UserError, match="all layers have a single head"):
        ablation.ablate(record, Evaluated({"cross.0": SimpleNamespace(num_heads=1)}, {}, dict, dict), modes=["only"])
    parts = {}
    for head, (first, second) in enumerate([(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)], 1):
        parts[f"a/without/E:1:{head}"] = {"difference": first}
        parts[f"b/without/E:1:{head}"] = {"difference": second}
    assert ablation.correlation(parts, ["a", "b"], "without") == pytest.approx({"all": 0.5, "E": 0.5})


def test_report_has_all_heads_of_test_sets_with_different_heads():
    """The analysis was interrupted before test set b, and resumed with fewer --sites."""
    differences = {"a": {"E:1:1": 1.0, "E:1:2": 2.0, "E:1:3": 3.0, "D:1:1": -4.0}, "b": {}}
    differences["b"] = {head: 5 * value for head, value in differences["a"].items() if head[0] == "E"}
    parts = {}
    for split, heads in differences.items():
        parts[f"whole/{split}"] = {"score": 30.0}
        for head, difference in heads.items():
            result = {"bleu": 30.0 + difference, "difference": difference, "p_value": 0.01}
            parts[f"{split}/without/{head}"] = result
    for splits, row in (
        (["a", "b"], "| D:1:1 | -4.00 | 0.010 | – | – |"),
        (["b", "a"], "| D:1:1 | – | – | -4.00 | 0.010 |"),
    ):
        report = ablation.report(parts, splits, "without")
        rows = [line for line in report.splitlines() if ":1:" in line]
        assert [line.split(" | ")[0][2:] for line in rows] == ["E:1:1", "E:1:2", "E:1:3", "D:1:1"]
        assert rows[-1] == row
        assert "3 of 3 differences" in report
        assert "4 of 4 differences" in report
        assert "correlation of the differences on the two sets (Pearson): all 1.00, E 1.00\n" in report


def test_pruning_measures_the_masked_model(states, references, tiny_data, monkeypatch):
    trained = load(states["collaborative"], tiny_data, double=False)
    test = TestSet("test", references, {"sentences": 12})
    ranks = {head: float(rank) for rank, head in enumerate(HEADS)}
    record = Record("heads", "prune", "collab", {})
    orders = {"all": pruning.by_ascending_importance(ranks, ["encoder", "cross", "decoder"])}
    monkeypatch.setattr(pruning, "PERCENTAGES", (0, 50))
    pruning.prune(record, orders, ablation.evaluated(trained, [test]))
    points = pruning.pruning_points(record.parts)["all"]
    assert points[50]["heads"] == "E:1:1,2 A:1:1"
    assert points[50]["left"] == 3
    half, full = (points[percent]["tests"]["test"] for percent in (50, 0))
    assert full["p_value"] == 1.0
    assert half["difference"] == pytest.approx(half["bleu"] - full["bleu"]) != 0
    with masked(attention_layers(trained.model), parse_heads(points[50]["heads"])):
        expected = loss(trained, "valid")
        assert half["bleu"] == evaluate(trained, test)["score"]
    assert points[50]["loss"] == expected.loss != points[0]["loss"]


def test_ablation_measures_the_masked_model(states, references, tiny_data):
    trained = load(states["collaborative"], tiny_data, double=False)
    test, record = TestSet("test", references, {"sentences": 12}), Record("heads", "ablate", "collab", {})
    ablation.ablate(record, ablation.evaluated(trained, [test]), modes=["without"])
    for head in HEADS:
        with masked(attention_layers(trained.model), parse_heads(head)):
            assert record.parts[f"test/without/{head}"]["bleu"] == evaluate(trained, test)["score"]
    assert any(record.parts[f"test/without/{head}"]["difference"] for head in HEADS)


def test_commands_prune_remove_and_rank(states, references, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(pruning, "PERCENTAGES", (0, 10, 40))
    names = ("model.pt", "copy.pt", "pruned.pt", "pruning.json", "importance.json", "raw.json", "when.svg")
    checkpoint, copied, pruned, record, importance, raw, figure = (tmp_path / name for name in names)
    for path in (checkpoint, copied):
        checkpoints.save(states["standard"], path)
    few = ["--data", tiny_data, "--sentences", 4]
    test = [*few, "--reference", f"test={references}", "--device", "cpu"]
    printed = collab("prune", checkpoint, *test, "--by-site", "--json", record)
    assert printed.count("\n") == 2 + 4 * 3
    assert "removed " in collab("prune", checkpoint, *few, "--remove", 40, "--output", pruned)
    heads = parts_of(record)["encoder_cross_decoder/40"]["heads"]
    assert checkpoints.load(pruned)["extra_state"]["removed_heads"] == heads

    by_token = tmp_path / "token.json"
    for path, form in ((by_token, ["--form", "token"]), (importance, [])):
        collab("importance", checkpoint, *few, "--json", path, *form)
    assert parts_of(by_token)["importance"]["heads"] != parts_of(importance)["importance"]["heads"]
    by_token.unlink()
    collab("prune", checkpoint, *test, "--importance", importance, "--ranking", "raw", "--json", raw)
    ranks = {head: values["raw"] for head, values in parts_of(importance)["importance"]["heads"].items()}
    assert parts_of(raw)["importance"] == ranks
    assert parts_of(raw)["encoder_cross_decoder/10"]["heads"] == min(ranks, key=ranks.get)

    command = ["prune", checkpoint, *test, "--importance", importance, "--ranking", "raw", "--json", raw]
    assert collab(*command).count("\n") == 2 + 3  # resumed
    content = json.loads(importance.read_text())
    content["parts"]["importance"]["heads"]["E:1:1"]["raw"] *= 2
    importance.write_text(json.dumps(content))
    assert "raw.json was made with importance = importance.json, SHA-256" in collab(*command, status=1)

    pytest.importorskip("matplotlib")
    lines = collab("prune", checkpoint, copied, *test, "--figure", figure).splitlines()
    curves = [[line.split("|")[2:] for line in lines if line.startswith(f"| {name}/")] for name in names[:2]]
    assert len(curves[0]) == 3
    assert curves[0] == curves[1]
    assert "copy.pt: all heads" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ablate model.pt --reference test=GOOD --reference tst1=GOOD", "the split must be one of those in .*got tst1"),
        (
            "ablate model.pt --reference test=GOOD --reference valid=GOOD",
            "test.tgt must have the sentences of the .* valid",
        ),
        ("ablate model.pt --reference test=few", "few must have 20 lines, one per hypothesis; got 19"),
        ("ablate model.pt --reference test=few --sentences 20", "few must have 20 lines, one per hypothesis; got 19"),
        ("prune model.pt --reference test=swapped", "swapped must have the sentences of the target side of test"),
        ("prune model.pt --reference test=GOOD --split valdi", "the split must be one of those in .*got valdi"),
        ("prune model.pt damaged.pt --reference test=GOOD", "damaged.pt was not loaded"),
        ("prune grouped.pt --remove 40 --output smaller.pt", "the heads of E:1 share keys and values: none can"),
    ],
)
def test_mistakes_are_found_before_the_work(words, message, states, references, tiny_data, tmp_path, monkeypatch):
    """Later, results would be lost, since the record of the wrong command cannot be continued by the right one."""
    grouped = copy.deepcopy(states["grouped"])
    checkpoints.model_settings(grouped)["kv_heads"] = 1
    for name in grouped["model"]:
        if re.search(r"attn\.[kv]_proj\.", name):
            grouped["model"][name] = grouped["model"][name][:8]
    checkpoints.save(grouped, tmp_path / "grouped.pt")
    checkpoints.save(states["standard"], tmp_path / "model.pt")
    (tmp_path / "damaged.pt").write_bytes(b"PK")
    lines = references.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "few").write_text("".join(lines[1:]), encoding="utf-8")
    (tmp_path / "swapped").write_text("".join(reversed(lines)), encoding="utf-8")
    for module, name in ((ablation, "score"), (ablation, "loss"), (importance, "measure")):
        monkeypatch.setattr(module, name, lambda *arguments, **options: pytest.fail("the work has begun"))
    monkeypatch.chdir(tmp_path)
    printed = collab(*words.replace("GOOD", str(references)).split(), "--data", tiny_data, "--device", "cpu", status=1)
    assert re.search(message, printed)


def test_checkpoints_of_a_figure_have_one_text(states, references, tiny_data, tmp_path, monkeypatch):
    other = shutil.copytree(tiny_data, tmp_path / "other")
    for path in other.glob("valid.*"):
        shutil.copy(path.with_name(path.name.replace("valid", "test")), path)
    for name, data in (("one.pt", tiny_data), ("two.pt", other)):
        state = copy.deepcopy(states["standard"])
        state["cfg"]["task"]["data"] = str(data)
        checkpoints.save(state, tmp_path / name)
    monkeypatch.setattr(pruning, "prune", lambda *_, **__: pytest.fail("the work has begun"))
    command = ["prune", tmp_path / "one.pt", tmp_path / "two.pt", "--reference", f"test={references}"]
    assert "several checkpoints must have the same split valid" in collab(*command, "--device", "cpu", status=1)


def test_random_orders_of_a_record_have_its_sites(states, references, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(pruning, "PERCENTAGES", (0, 10, 50))
    checkpoints.save(states["standard"], tmp_path / "model.pt")
    test = ["--data", tiny_data, "--sentences", 4, "--reference", f"test={references}", "--device", "cpu"]
    command = ["prune", tmp_path / "model.pt", *test, "--random-orders", 1, "--json", tmp_path / "record.json"]
    printed = collab(*command)
    assert "random-1/10 of the record must be without E:1:" in collab(*command, "--sites", "encoder", status=1)
    assert collab(*command) == printed
    command[command.index("--random-orders") + 1] = 0
    assert "| encoder | 50 % | 1 |" in collab(*command, "--sites", "encoder")


@pytest.mark.parametrize("command", ["prune {} --remove E:1:1", "gates {}"])
def test_existing_checkpoint_is_not_overwritten(command, states, tmp_path):
    checkpoint, existing = tmp_path / "model.pt", tmp_path / "existing.pt"
    state = copy.deepcopy(states["standard"])
    for layer_id in LAYER_IDS:
        state["model"][parameter_prefix(layer_id) + "head_gates.log_alpha"] = torch.tensor([1.0, -1.0])
    checkpoints.save(state, checkpoint)
    existing.write_text("another model")
    words = command.format(checkpoint).split()
    assert "existing.pt already exists" in collab(*words, "--output", existing, status=1)
    assert existing.read_text() == "another model"
    collab(*words, "--output", tmp_path / "new.pt")
    assert "E:1:" in checkpoints.load(tmp_path / "new.pt")["extra_state"]["removed_heads"]


def test_fairseq_generate_loads_a_pruned_checkpoint(states, tiny_data, tmp_path):
    pruned = tmp_path / "pruned.pt"
    checkpoints.save(remove_heads(states["collaborative"], parse_heads("E:1:2 A:1:1")).state, pruned)
    options = ["--beam", "2", "--max-tokens", "500", "--gen-subset", "test", "--max-len-b", "20", "--cpu"]
    log = run("fairseq-generate", tiny_data, "--path", pruned, "--user-dir", USER_DIR, *options).stdout
    fields = [line.split("\t") for line in log.splitlines() if line.startswith("H-")]
    hypotheses = {int(number[2:]): text for number, _, text in fields}
    expected = translate(load(checkpoints.load(pruned), tiny_data, double=False), "test", beam=2, max_len_b=20)
    assert [hypotheses[number] for number in sorted(hypotheses)] == expected


def test_report_without_heads_is_empty():
    """With --mode only, layers of one head have nothing to mask."""
    parts = {"whole/text": {"score": 91.2, "right": "1"}, "text/without/E:1:1": {"difference": 0.0, "p_value": 1.0}}
    assert ablation.report(parts, ["text"], "only") == ""
    assert "91.20 with all heads" in ablation.report(parts, ["text"], "without")

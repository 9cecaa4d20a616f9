"""Ablation, pruning and removal of heads: masked equals removed, and which differences are significant."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from collab_fairseq.heads import ablation, pruning
from collab_fairseq.heads.ablation import TestSet, evaluate
from collab_fairseq.heads.attention_hooks import masked
from collab_fairseq.heads.removal import remove_heads
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.heads import describe, parse_heads
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.records.record import Record
from collab_fairseq.translation import loss, translate
from fairseq_modern.errors import UserError
from tests.common import run
from tests.fairseq.commands import USER_DIR
from tests.fairseq.heads_cases import (
    HEADS,
    LAYER_IDS,
    collaborative_state,
    load,
    logits,
    logits_without,
    standard_state,
)


@pytest.fixture(scope="module")
def states(tiny_run):
    made = {"standard": standard_state(tiny_run), "collaborative": collaborative_state(tiny_run, key_dim=11)}
    made.update({"content-bias": collaborative_state(tiny_run, content_bias=True), "grouped": standard_state(tiny_run)})
    # as many groups as heads, so that none share
    model_config(made["content-bias"])["value_heads"] = model_config(made["grouped"])["kv_heads"] = 2
    return made


@pytest.fixture(scope="module")
def references(states, tiny_data, tmp_path_factory):
    """What the model itself says, a little disturbed, so that BLEU is neither 0 nor 100."""
    hypotheses = translate(load(states["standard"], tiny_data, double=False), "test")
    lines = [" ".join(["dogo", *line.split(), "treeo"][n % 2 :]) for n, line in enumerate(hypotheses)]
    path = tmp_path_factory.mktemp("references") / "test.tgt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["standard", "grouped", "collaborative", "content-bias"])
@pytest.mark.parametrize("heads", ["E:1:1", "A:1:2 D:1:1", "E:1:1,2 D:1:2"])
def test_removed_is_masked(states, kind, heads, tiny_data):
    state = states[kind]
    before, trained = copy.deepcopy(state["model"]), load(state, tiny_data)
    whole, expected = logits(trained), logits_without(trained, parse_heads(heads))
    with masked(attention_layers(trained.model), parse_heads(heads)):
        translations = translate(trained, "test", max_len_b=20)
    result = remove_heads(state, parse_heads(heads), empty_layers=True)
    smaller = load(result.state, tiny_data)
    assert (logits(smaller) - expected).abs().max() < 1e-10
    assert (expected - whole).abs().max() > 1e-3
    assert translate(smaller, "test", max_len_b=20) == translations
    assert describe(result.removed) == heads == result.state["extra_state"]["removed_heads"]
    sizes = [sum(p.numel() for layer in attention_layers(t.model).values() for p in layer.parameters())
             for t in (trained, smaller)]  # fmt: skip
    assert [result.parameters_before, result.parameters_after] == sizes
    assert sizes[1] < sizes[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in state["model"].items())
    layer = attention_layers(smaller.model)[list(result.removed)[-1]]
    assert (layer.num_heads, layer.head_dim) == (1, 8)
    assert layer.q_proj.out_features == {"collaborative": 11, "content-bias": 16}.get(kind, 8)


def test_shared_dimensions_that_no_head_uses_go_too(states, tiny_data):
    state = copy.deepcopy(states["content-bias"])
    state["model"][parameter_prefix("cross.0") + "mixing"][1, [2, 5, 6]] = 0.0
    expected = logits_without(load(state, tiny_data), parse_heads("A:1:1"))
    result = remove_heads(state, parse_heads("A:1:1")).state
    smaller = load(result, tiny_data)
    assert attention_layers(smaller.model)["cross.0"].key_dim == 13
    assert (logits(smaller) - expected).abs().max() < 1e-10
    twice = remove_heads(result, parse_heads("D:1:2"))
    assert attention_layers(load(twice.state, tiny_data).model)["cross.0"].key_dim == 13


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("", "there are no heads to remove"),
        ("E:1:1,2", "E:1 would lose all heads; leave one, or allow it with --empty-layers"),
        ("E:1:1,2 A:1:1,2 D:1:1,2", "all heads of the model would be removed"),
        ("D:1:3", "D:1:3 names head 3, but D:1 has 2 heads"),
    ],
)
def test_removals_that_cannot_be(states, heads, message):
    with pytest.raises(UserError, match=message):
        remove_heads(states["standard"], parse_heads(heads))


def test_conditions_and_correlation():
    counts = {"encoder.0": 3, "cross.0": 1}
    assert ablation.conditions(counts, "without")["E:1:2"] == {"encoder.0": (1,)}
    assert ablation.conditions(counts, "only")["E:1:2"] == {"encoder.0": (0, 2)}
    assert "A:1:1" not in ablation.conditions(counts, "only")
    record = Record("heads", "ablate", "", {}, device="cpu")
    with pytest.raises(UserError, match="no layer has a second head"):
        ablation.ablate_split(record, "test", {"cross.0": SimpleNamespace(num_heads=1)}, dict, dict, modes=["only"])
    values = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)]
    parts = {f"{split}/without/E:1:{n}": {"difference": pair[side]}
             for n, pair in enumerate(values, 1) for side, split in enumerate(("a", "b"))}  # fmt: skip
    assert ablation.correlation(parts, ["a", "b"], "without") == pytest.approx({"all": 0.5, "E": 0.5})


def test_pruning_measures_the_masked_model(states, references, tiny_data):
    trained = load(states["collaborative"], tiny_data, double=False)
    test = TestSet("test", references, {"sentences": 12})
    ranks = {head: float(n) for n, head in enumerate(HEADS)}
    record = Record("heads", "prune", "collab", {})
    pruning.prune(
        trained, ranks, record, "all", sites=["encoder", "cross", "decoder"], tests=[test], loss_split="valid",
        percentages=(0, 50),
    )  # fmt: skip
    points = pruning.pruning_points(record.parts, "all")
    assert points[50]["heads"] == "E:1:1,2 A:1:1"
    assert points[50]["left"] == 3
    half, whole = (points[percent]["tests"]["test"] for percent in (50, 0))
    assert whole["p_value"] == 1.0
    assert half["difference"] == pytest.approx(half["bleu"] - whole["bleu"]) != 0
    with masked(attention_layers(trained.model), parse_heads(points[50]["heads"])):
        expected = loss(trained, "valid")
        assert half["bleu"] == evaluate(trained, test)["score"]
    assert points[50]["loss"] == expected.loss != points[0]["loss"]


def test_the_commands_prune_compare_and_remove(states, references, tiny_data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    checkpoint, pruned = tmp_path / "model.pt", tmp_path / "pruned.pt"
    checkpoints.save(states["standard"], checkpoint)
    few = ["--sentences", 4]
    test = ["--data", tiny_data, "--reference", f"test={references}", "--device", "cpu"]

    def collab(*words):
        assert main(["heads", *map(str, words)]) == 0
        return capsys.readouterr().out

    result = tmp_path / "pruning.json"
    printed = collab("prune", checkpoint, *test, *few, "--by-site", "--json", result)
    assert printed.count("\n") == 2 + 4 * 10
    printed = collab("prune", checkpoint, *test[:2], *few, "--remove", 40, "--output", pruned)
    assert "removed " in printed
    parts = json.loads(result.read_text(encoding="utf-8"))["parts"]
    assert checkpoints.load(pruned)["extra_state"]["removed_heads"] == parts["encoder_cross_decoder/40"]["heads"]

    ranked, result = tmp_path / "importance.json", tmp_path / "raw.json"
    collab("importance", checkpoint, *few, "--json", ranked)
    collab("prune", checkpoint, *test, *few, "--importance", ranked, "--ranking", "raw", "--json", result)
    heads = json.loads(ranked.read_text(encoding="utf-8"))["parts"]["importance"]["heads"]
    parts = json.loads(result.read_text(encoding="utf-8"))["parts"]
    assert parts["importance"] == {head: values["raw"] for head, values in heads.items()}
    assert parts["encoder_cross_decoder/10"]["heads"] == min(heads, key=lambda head: heads[head]["raw"])

    copied = tmp_path / "again.pt"
    copied.write_bytes(checkpoint.read_bytes())
    picture = tmp_path / "when.svg"
    printed = collab("prune", checkpoint, copied, *test, *few, "--figure", picture)
    rows = [[line.split("|")[2:] for line in printed.splitlines() if line.startswith(f"| {name}/encoder")]
            for name in ("model.pt", "again.pt")]  # fmt: skip
    assert len(rows[0]) == 10
    assert rows[0] == rows[1]
    assert "again.pt: all heads" in picture.read_text(encoding="utf-8")


def test_a_pruned_checkpoint_generates_with_fairseqs_tools(states, tiny_data, tmp_path):
    pruned = tmp_path / "pruned.pt"
    checkpoints.save(remove_heads(states["collaborative"], parse_heads("E:1:2 A:1:1")).state, pruned)
    log = run(
        "fairseq-generate", tiny_data, "--path", pruned, "--user-dir", USER_DIR, "--beam", 2, "--max-tokens", 500,
        "--gen-subset", "test", "--max-len-b", 20, "--cpu",
    ).stdout  # fmt: skip
    ours = translate(load(checkpoints.load(pruned), tiny_data, double=False), "test", beam=2, max_len_b=20)
    theirs = {int(line.split("\t")[0][2:]): line.split("\t")[2] for line in log.splitlines() if line.startswith("H-")}
    assert [theirs[n] for n in sorted(theirs)] == ours
    assert set(LAYER_IDS) >= set(checkpoints.load(pruned)["cfg"]["model"].attention_shapes)

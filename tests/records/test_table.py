"""Tables and comparisons from records, against separately computed numbers."""

import itertools
import random

import numpy
import pytest

from collab_fairseq.records import table
from collab_fairseq.records.rows import frame, hardware
from collab_fairseq.scoring.significance import interval, jackknife
from collab_fairseq.scoring.sufficient_statistics import SCORES, load
from fairseq_modern.errors import UserError
from tests.records.cases import SEEDS, TESTS, rows_of

OVER_SEEDS = "In brackets: 95 % intervals over the seeds (Student's t)"


def contributions(by_name, row, metric):
    """Scores of a row on test_a (seeds), and pseudovalues of the sentences (seeds, sentences)."""
    evaluations = [by_name[f"{row}-s{seed}"]["scores"]["test_a"] for seed in SEEDS]
    scores = [entry["score"] for each in evaluations for entry in each["scores"] if entry["metric"] == metric]
    rows = [load(each["sentence_statistics"]["rows"][metric], metric) for each in evaluations]
    return numpy.array(scores), numpy.stack([jackknife(sums, SCORES[metric]) for sums in rows])


def test_numbers_are_means_and_sample_deviations(runs, by_name):
    rows = rows_of(table.markdown_table(runs))
    expected_rows = [("standard", "128"), ("standard", "32"), ("collaborative", "32")]
    assert [(row["heads"], row["key dimension"]) for row in rows] == expected_rows
    limits = interval(*contributions(by_name, "none-32", "sacreBLEU"))
    expected = {
        "sacreBLEU test_a": f"{limits.mean:.2f} [{limits.low:.2f}, {limits.high:.2f}]",
        "updates": "2,500",
        "seeds": "3",
        "validation loss": "5.200 ± 0.100",
        "words/s": "2,000 ± 1,000",
        "training (h)": "0.20 ± 0.02",
        "peak memory (GiB)": "1.00",
        "parameters": "1,785,056",
    }
    assert {header: rows[1][header] for header in expected} == expected
    assert rows[1]["sacreBLEU test_b"] != rows[1]["sacreBLEU test_a"]


def test_losses_of_all_sets(by_name):
    runs = [by_name[f"none-32-s{seed}"] for seed in SEEDS]
    for run in runs[:2]:
        run["curves"]["valid1"] = [{"updates": n, "loss": n + run["seed"]} for n in (7, 9)]
    (row,) = rows_of(table.markdown_table(runs, columns=["valid_loss"]))
    assert row == {"validation loss": "5.200 ± 0.100", "validation loss valid1": "10.500 ± 0.707 (of 2)"}
    runs[0]["curves"]["valid1"][-1].pop("loss")  # it was not finite
    runs[1]["curves"]["valid1"][0].pop("loss")
    (row,) = rows_of(table.markdown_table(runs, columns=["valid_loss"]))
    assert row["validation loss valid1"] == f"{9 + runs[1]['seed']:.3f} (of 1)"
    for run in runs[1:]:
        run["losses"] = {"test_b": {"loss": 9, "nll_loss": 4 + run["seed"] / 10, "tokens": 40}}
    markdown = table.markdown_table(runs, columns=["nll"])
    half = 12.7062 * 0.05  # Student's t with one degree of freedom
    assert rows_of(markdown) == [{"NLL test_b": f"4.250 [{4.25 - half:.3f}, {4.25 + half:.3f}] (of 2)"}]
    assert OVER_SEEDS in markdown
    assert "sentences" not in markdown
    assert "NLL" not in table.markdown_table(runs)
    for run in runs[1:]:
        nll = run["losses"]["test_b"]["nll_loss"]
        run["losses"]["test_b"]["sentences"] = "; ".join([f"{nll} 1"] * 40)
        run["losses"]["test_c"] = {"loss": 9, "nll_loss": 1.0, "tokens": 80}  # without sentences
    markdown = table.markdown_table(runs[1:], columns=["nll all tests"])
    assert rows_of(markdown)[0]["NLL all tests"].startswith("2.083 [")  # weighted by tokens
    assert OVER_SEEDS in markdown
    assert "sentences" not in markdown


def test_order_of_records_does_not_matter(runs):
    once = table.markdown_table(runs, baselines=["none-32-s1"])
    random.Random(1).shuffle(runs)
    assert table.markdown_table(runs, baselines=["none-32-s1"]) == once


def test_compares_with_baseline_paired_by_seed(runs, by_name):
    markdown = table.markdown_table(runs, baselines=["none-32-s2"], columns=["heads"])
    text = markdown[markdown.index("Compared with standard, key dimension 32, updates 2,500") :]
    rows = rows_of(text.split("\n\n", 1)[1])
    assert [(row["heads"], row["key dimension"], row["seeds"], row["test set"]) for row in rows] == [
        (h, d, "3", t) for h, d in (("standard", "128"), ("collaborative", "32")) for t in TESTS
    ]
    sides = [contributions(by_name, row, "sacreBLEU") for row in ("decoder_cross_encoder-32", "none-32")]
    limits = interval(*(ours - theirs for ours, theirs in zip(*sides, strict=True)))
    assert limits.low > 0  # hence the star
    assert rows[2]["difference in sacreBLEU"] == f"{limits.mean:+.2f} [{limits.low:+.2f}, {limits.high:+.2f}] *"
    markdown = table.markdown_table(runs, baselines=["none-None-s1"])
    equal = rows_of(markdown.split("Compared with")[1].split("\n\n", 1)[1])[2]
    assert not equal["difference in sacreBLEU"].endswith("*")


def test_seeds_with_different_references_are_an_interval_over_the_seeds_only(runs, by_name):
    """As in the demo, where every seed has its own corpus."""
    row = [run for run in runs if run["name"].startswith("none-32")]
    assert f"{OVER_SEEDS} and the sentences (jackknife)." in table.markdown_table(row, columns=["sacrebleu"])
    assert "(jackknife; not for chrF)" in table.markdown_table(row, columns=["sacrebleu", "chrf"])
    scores, _ = contributions(by_name, "none-32", "sacreBLEU")
    for run in runs:
        for scored in run["scores"].values():
            scored["sentence_statistics"]["references_sha256"] = f"{run['seed']}" * 64
    markdown = table.markdown_table(runs, columns=["heads", "key_dim", "sacrebleu"], baselines=["none-32-s1"])
    limits = interval(scores)
    assert rows_of(markdown)[1]["sacreBLEU test_a"] == f"{limits.mean:.2f} [{limits.low:.2f}, {limits.high:.2f}]"
    assert markdown.count(OVER_SEEDS) == 2  # of the table and of the comparison
    assert "sentences" not in markdown


@pytest.mark.parametrize("statistics", [True, False])
def test_seeds_of_a_row_have_the_same_signature(runs, statistics):
    scored = runs[0]["scores"]["test_a"]
    next(entry for entry in scored["scores"] if entry["metric"] == "sacreBLEU")["signature"] = "tok:none"
    if not statistics:
        scored["sentence_statistics"] = None
    with pytest.raises(
        UserError, match=r"must have the same signatures; got (nrefs.* and tok:none|tok:none and nrefs)"
    ):
        table.markdown_table(runs, columns=["sacrebleu"])


def test_seeds_of_a_row_have_the_same_tokenisation(runs):
    forms = ("moses 0.1; references: a", "moses 0.1; references: b", "moses 0.2; references: a")
    for run, form in zip(runs, itertools.cycle(forms[:2])):
        run["scores"]["test_a"]["scores"].insert(0, {"metric": "tokenised BLEU", "score": 30.0, "compared": form})
    table.markdown_table(runs, columns=["tokenised test_a"])
    runs[0]["scores"]["test_a"]["scores"][0]["compared"] = forms[2]
    with pytest.raises(UserError, match=r"must have the same signatures; got moses 0\.[12] and moses 0\.[12]"):
        table.markdown_table(runs, columns=["tokenised test_a"])


def test_reports_missing_values(runs):
    runs = [run for run in runs if "decoder" in run["name"] or run["name"] == "none-32-s1"]
    for run in runs:
        for test in TESTS:
            run["scores"][test]["sentence_statistics"] = None
    del runs[0]["scores"]["test_b"]
    runs[0]["training"]["words_per_second"] = None
    markdown = table.markdown_table(runs, baselines=["none-32-s1"])
    assert "chrF++" not in markdown
    assert OVER_SEEDS in markdown
    assert "sentences" not in markdown
    row = rows_of(markdown)[1]
    assert row["words/s"] == "2,500 ± 707 (of 2)"
    assert row["sacreBLEU test_b"].endswith("(of 2)")
    for run in runs:
        run["training"]["peak_memory_bytes"] = None
    assert "peak memory" not in table.markdown_table(runs)
    assert "Training speed, time and memory on: A CPU" in table.markdown_table(runs)
    for run in runs:
        run["training"].update(words_per_second=None, wall_seconds=None)
    assert "Training speed" not in table.markdown_table(runs)
    chosen = table.markdown_table(runs, columns=["peak_memory", "key_dim"])
    assert rows_of(chosen)[0] == {"peak memory (GiB)": "–", "key dimension": "32"}


def test_rejects_runs_with_same_seed_or_different_settings(runs):
    with pytest.raises(UserError, match=r"none-32-s1, none-32-s1, .* have the same seed 1"):
        frame([*runs, next(run for run in runs if run["name"] == "none-32-s1")], table.GROUP_BY)
    with pytest.raises(UserError, match=r"differ in config\.model\.key_dim: .* group by it as well"):
        frame(runs, ["heads"])
    changed = next(run for run in runs if run["name"] == "none-32-s2")
    changed["config"]["model"]["dropout"] = 0.1
    with pytest.raises(UserError, match=r"none-32-s1, none-32-s2, .* differ in config\.model\.dropout"):
        frame(runs, table.GROUP_BY)
    assert frame(runs, [*table.GROUP_BY, "config.model.dropout"])["row"].nunique() == 4


def test_does_not_average_speed_over_machines(runs):
    runs[0]["hardware"].update(device="gpu", gpus=[{"name": "A GPU", "memory_bytes": 1}])
    runs[0]["training"]["peak_gpu_bytes"] = 3 * 2**30
    row = rows_of(table.markdown_table(runs))[2]
    assert row["words/s"] == row["training (h)"] == row["peak memory (GiB)"] == "different machines"
    assert "±" in row["validation loss"]
    alone = table.markdown_table(runs[:1])
    assert rows_of(alone)[0]["peak memory (GiB)"] == "3.00"
    assert "on: A GPU." in alone
    runs[0]["hardware"]["gpus"] = [{"name": name, "memory_bytes": 1} for name in ("A GPU", "another", "A GPU")]
    assert hardware(runs[0]) == "2 × A GPU, another"


def test_notes_different_precisions_in_a_row(runs):
    row = [run for run in runs if run["name"].startswith("none-32-")]
    for run, flag in zip(row, (None, "amp", "amp"), strict=True):
        run["config"]["common"] = {name: name == flag for name in ("fp16", "amp")}
    markdown = table.markdown_table(runs, columns=["seeds"])
    assert "different precisions: standard, 32, 2,500: --amp on a CPU (seed 2, 3); fp32 (seed 1)." in markdown
    row[0]["config"]["common"]["amp"] = True
    assert "different precisions" not in table.markdown_table(runs, columns=["seeds"])
    del row[0]["config"]["common"]
    assert "--amp on a CPU (seed 2, 3); not recorded (seed 1)." in table.markdown_table(runs, columns=["seeds"])


def test_nll_of_all_tests_needs_all_tests_of_all_runs(runs):
    loss = {"nll_loss": 2.0, "tokens": 9}
    for run in runs:
        run["losses"] = {"valid": loss, "test_a": loss, "test_b": loss}
    assert "NLL all tests" in table.markdown_table(runs, columns=["nll"])
    del runs[0]["losses"]["test_b"]
    markdown = table.markdown_table(runs, columns=["nll"])
    assert "NLL all tests" not in markdown
    assert "(of 2)" in markdown
    for run in runs:
        if run["name"].startswith("none-32-"):
            run["losses"].pop("test_b")
    assert "all tests" not in table.markdown_table(runs, columns=["nll"], baselines=["none-None-s1"])
    for run in runs:
        del run["losses"]
    assert set(rows_of(table.markdown_table(runs, columns=["nll"]))[0]) == {"NLL"}


def test_rows_without_common_seeds_have_no_notes_on_intervals(runs):
    for run in runs:
        run["seed"] += 10 * (run["config"]["model"]["key_dim"] is None)
    assert "A star" not in table.markdown_table(runs, columns=["heads"], baselines=["none-None-s1"])

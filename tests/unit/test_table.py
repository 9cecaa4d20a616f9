"""Tables and comparisons from records, against separately computed numbers."""

import copy
import hashlib
import json
import random
import statistics

import numpy
import pytest

from collab_fairseq.records import table
from collab_fairseq.records.rows import cache, frame, hardware, heads, keys, load_run
from collab_fairseq.scoring.significance import compare, interval, jackknife, over_seeds
from collab_fairseq.scoring.sufficient_statistics import SCORES, load
from fairseq_modern.errors import UserError
from tests.unit.conftest import SEEDS, TESTS, in_envelope, record, rows_of, sacrebleu_scores, sentences

GROUP_BY_RATE = (*table.GROUP_BY, "config.optimization.lr")


def of_test_a(*runs):
    """Arguments of `compare` for the first test set."""
    return *(run["scores"]["test_a"] for run in runs), [run["name"] for run in runs]


def test_rejects_different_references_and_inconsistent_scores(records):
    one, other = records["none-32-s1"], copy.deepcopy(records["none-None-s1"])
    stored = other["scores"]["test_a"]["sentence_statistics"]
    digest, rows = stored["references_sha256"], stored["rows"]["sacreBLEU"].split("; ")
    assert digest == hashlib.sha256("".join(f"{line}\n" for line in sentences()).encode()).hexdigest()
    assert compare(*of_test_a(one, other)) is not None
    stored["references_sha256"] = "0" * 64
    sides = [[run["scores"]["test_a"]] * 2 for run in (one, other)]
    for compared in (
        lambda: compare(*of_test_a(one, other)),
        lambda: over_seeds(*sides, metric="sacreBLEU", names=["none-32-s1"] * 2 + ["none-None-s1"] * 2),
    ):
        with pytest.raises(UserError, match="none-32-s1 and none-None-s1 must have the same references"):
            compared()
    stored.update(references_sha256=digest, rows={"sacreBLEU": "; ".join([*rows[:-1], "4 4 4 3 2 1"])})
    with pytest.raises(UserError, match="none-None-s1: sacreBLEU must be the score of its sentence statistics"):
        compare(*of_test_a(one, other))
    del other["scores"]["test_a"]["sentence_statistics"]
    assert compare(*of_test_a(one, other)) is None


def expected_interval(systems, test, metric, base=()):
    """From the records, by functions that other tests verify."""
    sides = [[run["scores"][test] for run in side] for side in (systems, base) if side]
    scores = [[next(s["score"] for s in each["scores"] if s["metric"] == metric) for each in side] for side in sides]
    values = [
        [jackknife(load(each["sentence_statistics"]["rows"][metric], metric), SCORES[metric]) for each in side]
        for side in sides
    ]
    signed = [1, -1][: len(sides)]
    both = [sum(sign * numpy.array(each) for sign, each in zip(signed, of, strict=True)) for of in (scores, values)]
    return interval(*both)


def test_numbers_are_means_and_sample_deviations(runs, files, records):
    markdown = table.markdown_table(runs, folder=files[0].parent.parent)
    rows = rows_of(markdown)
    expected_rows = [("standard", "128"), ("standard", "32"), ("collaborative", "32")]
    assert [(row["heads"], row["key dimension"]) for row in rows] == expected_rows
    scores = sacrebleu_scores(records, "none-32-")
    runs = [records[f"none-32-s{seed}"] for seed in SEEDS]
    limits = expected_interval(runs, "test_a", "sacreBLEU")
    assert limits.mean == pytest.approx(statistics.mean(scores))
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
    assert "\nRecords: [`*.json`](runs).\n" in markdown
    assert "; for chrF, compound-split BLEU, tokenised BLEU over the seeds only." in markdown
    assert markdown.count("`nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|") == 1
    assert "A CPU, 2 threads." in markdown


def test_losses_of_all_sets(records):
    runs = [{**copy.deepcopy(records[f"none-32-s{seed}"]), "path": f"{seed}.json"} for seed in SEEDS]
    for run in runs[:2]:
        run["curves"]["valid1"] = [{"updates": n, "loss": n + run["seed"]} for n in (7, 9)]
    (row,) = rows_of(table.markdown_table(runs, columns=["valid_loss"]))
    assert row == {"validation loss": "5.200 ± 0.100", "validation loss valid1": "10.500 ± 0.707 (of 2)"}
    for run in runs[1:]:
        run["losses"] = {"test_b": {"loss": 9, "nll_loss": 4 + run["seed"] / 10, "tokens": 3}}
    markdown = table.markdown_table(runs, columns=["nll"])
    half = 12.7062 * 0.05  # Student's t with one degree of freedom
    assert rows_of(markdown) == [{"NLL test_b": f"4.250 [{4.25 - half:.3f}, {4.25 + half:.3f}] (of 2)"}]
    assert "for NLL over the seeds only" in markdown
    assert "NLL" not in table.markdown_table(runs)
    for run in runs[1:]:
        sums = [(run["seed"] + 2 + n % 3, 2 + n % 3) for n in range(40)]
        total, tokens = map(sum, zip(*sums, strict=True))
        run["losses"]["test_b"].update(nll_loss=total / tokens, sentences="; ".join(f"{b} {t}" for b, t in sums))
        run["losses"]["test_b"]["tokens"] = tokens
        run["losses"].update(
            valid={**run["losses"]["test_b"]}, test_c={"loss": 9, "nll_loss": 1.0, "tokens": 2 * tokens}
        )
    markdown = table.markdown_table(runs[1:], columns=["nll"])
    both = statistics.mean((run["losses"]["test_b"]["nll_loss"] + 2) / 3 for run in runs[1:])  # weighted by tokens
    assert rows_of(markdown)[0]["NLL all tests"].startswith(f"{both:.3f} [")
    assert "for NLL over the seeds only" in markdown  # one of the sets has no sentence losses
    (row,) = rows_of(table.markdown_table(runs[1:], columns=["nll all tests"]))
    assert row == {"NLL all tests": rows_of(markdown)[0]["NLL all tests"]}
    for column, message in [("nll test_x", "has NLL of test_x; expected one of test_b, "), ("seeds test_b", "must be")]:
        with pytest.raises(UserError, match=message):
            table.markdown_table(runs[1:], columns=[column])
    for run in runs[1:]:
        del run["losses"]["test_c"], run["losses"]["valid"]
    markdown = table.markdown_table(runs, columns=["nll"])
    assert "seeds only" not in markdown
    (low, high) = map(float, rows_of(markdown)[0]["NLL test_b"].split("[")[1].split("]")[0].split(","))
    seeds = 12.7062 * 40 / (2 * tokens)  # the second seed has one more bit per sentence
    assert (high - low) / 2 == pytest.approx(seeds, abs=1e-3)  # the sentences are nearly equal


def test_order_of_records_does_not_matter(runs):
    once = table.markdown_table(runs, baselines=["none-32-s1"])
    random.Random(1).shuffle(runs)
    assert table.markdown_table(runs, baselines=["none-32-s1"]) == once
    alone = table.markdown_table([run for run in runs if run["seed"] == 1], baselines=["none-32-s1"])
    assert ("±" in once, "±" in alone) == (True, False)
    assert ("[" in once.split("\n\n")[0], "[" in alone.split("\n\n")[0]) == (True, False)
    assert ("from a single seed" in once, "from a single seed" in alone) == (False, True)
    assert alone.endswith("+26.99                    |\n\nA single seed has no interval.\n")


def test_compares_with_baseline_paired_by_seed(runs, records):
    markdown = table.markdown_table(runs, baselines=["none-32-s2"], columns=["heads"])
    text = markdown[markdown.index("Compared with standard, key dimension 32, updates 2,500") :]
    rows = rows_of(text.split("\n\n", 1)[1])
    assert [(row["heads"], row["key dimension"], row["seeds"], row["test set"]) for row in rows] == [
        (h, d, "3", t) for h, d in (("standard", "128"), ("collaborative", "32")) for t in TESTS
    ]
    pairs = zip(sacrebleu_scores(records, "decoder"), sacrebleu_scores(records, "none-32-"), strict=True)
    sides = [[records[f"{name}-32-s{seed}"] for seed in SEEDS] for name in ("decoder_cross_encoder", "none")]
    limits = expected_interval(sides[0], "test_a", "sacreBLEU", sides[1])
    assert limits.mean == pytest.approx(statistics.mean(a - b for a, b in pairs))
    assert limits.low > 0  # hence the star
    assert rows[2]["difference in sacreBLEU"] == f"{limits.mean:+.2f} [{limits.low:+.2f}, {limits.high:+.2f}] *"
    assert text.endswith("and the sentences (jackknife), paired by seed. A star: the interval excludes 0.\n")
    limits = expected_interval(sides[0], "test_a", "chrF++", sides[1])
    markdown = table.markdown_table(runs, baselines=["none-32-s2"], columns=["chrf++", "ter"])
    last = rows_of(markdown[markdown.index("Compared with") :].split("\n\n", 1)[1])[2]
    assert last["difference in chrF++"].startswith(f"{limits.mean:+.2f} [{limits.low:+.2f}, {limits.high:+.2f}]")
    assert last["difference in TER"].startswith("-")
    equal = table.markdown_table(runs, baselines=["none-None-s1"])
    equal = rows_of(equal[equal.index("Compared with") :].split("\n\n", 1)[1])[2]["difference in sacreBLEU"]
    assert not equal.endswith("*")


def test_reports_missing_values(runs):
    runs = [run for run in runs if "decoder" in run["name"] or run["name"] == "none-32-s1"]
    for run in runs:
        for test in TESTS:
            run["scores"][test]["sentence_statistics"] = None
    del runs[0]["scores"]["test_b"]
    runs[0]["training"]["words_per_second"] = None
    markdown = table.markdown_table(runs, baselines=["none-32-s1"])
    assert "chrF++" not in markdown
    assert "for chrF, compound-split BLEU, sacreBLEU, tokenised BLEU over the seeds only" in markdown
    row = rows_of(markdown)[1]
    assert row["words/s"] == "2,500 ± 707 (of 2)"
    assert row["sacreBLEU test_b"].endswith("(of 2)")
    for run in runs:
        run["training"]["peak_memory_bytes"] = None
    assert "peak memory" not in table.markdown_table(runs)
    chosen = table.markdown_table(runs, columns=["peak_memory", "key_dim"])
    assert rows_of(chosen)[0] == {"peak memory (GiB)": "–", "key dimension": "32"}


def test_rejects_runs_with_same_seed_or_different_settings(runs):
    with pytest.raises(UserError, match=r"none-32-s1, none-32-s1, .* have the same seed 1"):
        frame([*runs, next(run for run in runs if run["name"] == "none-32-s1")], table.GROUP_BY)
    with pytest.raises(UserError, match=r"differ in config\.model\.key_dim: group by it as well"):
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


def test_heads_in_words():
    for sites, words in {
        None: "standard (fairseq's transformer)",
        "none": "standard",
        "cross_decoder_encoder": "collaborative",
        "decoder_cross": "collaborative in cross, decoder",
    }.items():
        run = record("x", sites, 32, 1, {})
        assert heads(run) == words
    published = {**run, "published": "A paper, Table 3"}
    assert heads(published) == f"{words}, as published"
    model = {"collaborative_heads": "encoder_cross_decoder", "mixing_init": "blocks", "value_heads": 2}
    run["config"]["model"] = {**model, "mixing_lr_multiplier": 8}
    assert heads(run) == "collaborative, blocks, 8× learning rate on the mixing matrix, 2 value heads"


def test_learning_rate_has_a_header_and_no_brackets(runs):
    row = rows_of(table.markdown_table(runs, columns=["config.optimization.lr"], group_by=GROUP_BY_RATE))[0]
    assert row == {"learning rate": "0.005"}


def test_converted_heads_have_settings_of_the_whole_model(tmp_path):
    shape = {"collaborative": True, "key_dim": 8, "content_bias": True, "scale": 0.5}
    run = record("x", "none", None, 1, {})
    model = run["config"]["model"] = {"collaborative_heads": "none", "key_dim": None, "encoder_embed_dim": 64}
    model.update(decoder_embed_dim=64, decoder_attention_heads=4, mixing_init="xavier")
    model["attention_shapes"] = {f"{site}.0": dict(shape) for site in ("encoder", "decoder", "cross")}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(in_envelope(run)))
    loaded = load_run(path)
    assert keys(loaded) == {"heads": "collaborative, converted", "key_dim": 8, "updates": 2500, "averaged": None}
    assert cache(loaded) == 8 + 64 + 4
    model["attention_shapes"]["cross.0"]["key_dim"] = 16
    path.write_text(json.dumps(in_envelope(run)))
    mixed = load_run(path)
    model.update(attention_shapes={"encoder.0": {"scale": 0.5}, "cross.0": {"scale": 0.5}})
    assert heads({"config": {"model": model}}) == "standard, attention scale 0.5"
    model.update(attention_shapes={}, key_dim=32, encoder_key_dim=16, attention_init="authors")
    of_sites = {"config": {"model": model}, "training": {"updates": 1}}
    assert keys(of_sites)["key_dim"] == "encoder 16, cross 32, decoder 32"
    assert heads(of_sites) == "standard, authors' initialisation"
    assert (heads(mixed), keys(mixed)["key_dim"], cache(mixed)) == ("collaborative, converted", "mixed", None)


@pytest.mark.parametrize("heads", [2, 4])
def test_cached_numbers_equal_cache_of_layers(heads):
    sizes = {"decoder_attention_heads": heads, "decoder_embed_dim": 64}
    for key_dim, sites, shared, expected in [
        (None, "none", {}, 64 + 64), (16, "none", {}, 16 + 64), (16, "decoder", {}, 16 + 64),
        (16, "encoder_cross", {"kv_heads": 2}, (16 + 64) * 2 // heads),
        (32, "encoder_cross_decoder", {"value_heads": 1}, 32 + 64 // heads),
        (None, "none", {"kv_heads": 1}, 128 // heads), (None, "none", {"kv_latent_dim": 24}, 24),
        (32, "decoder", {"attention_content_bias": True, "mixing_init": "converted"}, 32 + 64 + heads),
    ]:  # fmt: skip
        model = {**sizes, "collaborative_heads": sites, "key_dim": key_dim, **shared}
        assert cache({"config": {"model": model}}) == expected
    small = {**sizes, "collaborative_heads": "decoder", "key_dim": 32, "decoder_key_dim": 8}
    assert cache({"config": {"model": small}}) == 8 + 64
    assert cache({"config": {"model": {**model, "attention_shapes": {"decoder.0": {}}}}}) is None
    assert cache({"config": {"model": {}}}) is None  # not a transformer


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

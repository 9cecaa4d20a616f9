"""Tables and comparisons from records, against numbers worked out beside them."""

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


def of_test_a(*runs):
    """What `compare` takes, of the first test set."""
    return *(run["scores"]["test_a"] for run in runs), [run["name"] for run in runs]


def test_only_like_is_compared(records):
    one, other = records["none-32-s1"], copy.deepcopy(records["none-None-s1"])
    found = other["scores"]["test_a"]["sentence_statistics"]
    digest, rows = found["references_sha256"], found["rows"]["sacreBLEU"].split("; ")
    assert digest == hashlib.sha256("".join(f"{line}\n" for line in sentences()).encode()).hexdigest()
    assert compare(*of_test_a(one, other)) is not None
    found["references_sha256"] = "0" * 64
    sides = [[run["scores"]["test_a"]] * 2 for run in (one, other)]
    for compared in (
        lambda: compare(*of_test_a(one, other)),
        lambda: over_seeds(*sides, metric="sacreBLEU", names=["none-32-s1"] * 2 + ["none-None-s1"] * 2),
    ):
        with pytest.raises(UserError, match="none-32-s1 and none-None-s1 have different references"):
            compared()
    found.update(references_sha256=digest, rows={"sacreBLEU": "; ".join([*rows[:-1], "4 4 4 3 2 1"])})
    with pytest.raises(UserError, match=r"none-None-s1: .* its sentence statistics add up to"):
        compare(*of_test_a(one, other))
    del other["scores"]["test_a"]["sentence_statistics"]
    assert compare(*of_test_a(one, other)) is None


def expected_interval(systems, test, metric, base=()):
    """From the records, by the functions that other tests hold."""
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
    kinds = [("standard", "128"), ("standard", "32"), ("collaborative", "32")]
    assert [(row["heads"], row["key dim"]) for row in rows] == kinds
    scores = sacrebleu_scores(records, "none-32-")
    runs = [records[f"none-32-s{seed}"] for seed in SEEDS]
    found = expected_interval(runs, "test_a", "sacreBLEU")
    assert found.mean == pytest.approx(statistics.mean(scores))
    expected = {
        "sacreBLEU test_a": f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]", "updates": "2,500", "seeds": "3",
        "validation loss": "5.200 ± 0.100", "words/s": "2,000 ± 1,000", "training (h)": "0.20 ± 0.02",
        "peak memory (GiB)": "1.00", "parameters": "1,785,056",
    }  # fmt: skip
    assert {header: rows[1][header] for header in expected} == expected
    assert rows[1]["sacreBLEU test_b"] != rows[1]["sacreBLEU test_a"]
    assert "\nRecords: [`*.json`](runs).\n" in markdown
    assert "(Student's t) and the sentences (jackknife); of chrF, compound-split BLEU, tokenised BLEU over" in markdown
    assert markdown.count("`nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|") == 1
    assert "A CPU, 2 threads." in markdown
    assert "flatters German" in markdown


def test_every_validation_set_has_its_loss(records):
    runs = [{**copy.deepcopy(records[f"none-32-s{seed}"]), "path": f"{seed}.json"} for seed in SEEDS]
    for run in runs[:2]:
        run["curves"]["valid1"] = [{"updates": n, "loss": n + run["seed"]} for n in (7, 9)]
    (row,) = rows_of(table.markdown_table(runs, columns=["valid_loss"]))
    assert row == {"validation loss": "5.200 ± 0.100", "validation loss valid1": "10.500 ± 0.707 (of 2)"}
    for run in runs[1:]:
        run["losses"] = {"test_b": {"loss": 9, "nll_loss": 4 + run["seed"] / 10, "tokens": 3}}
    markdown = table.markdown_table(runs, columns=["nll"])
    half = 12.7062 * 0.05  # Student's t with one degree of freedom
    assert rows_of(markdown) == [{"nll test_b": f"4.250 [{4.25 - half:.3f}, {4.25 + half:.3f}] (of 2)"}]
    assert "nll: negative log-likelihood of the averaged checkpoint in float32, bits a token." in markdown
    assert "of nll over the seeds alone" in markdown
    assert "nll" not in table.markdown_table(runs)
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
    assert rows_of(markdown)[0]["nll all tests"].startswith(f"{both:.3f} [")
    assert "of nll over the seeds alone" in markdown  # of one of the sets there are no sentences
    (row,) = rows_of(table.markdown_table(runs[1:], columns=["nll all tests"]))
    assert row == {"nll all tests": rows_of(markdown)[0]["nll all tests"]}
    for column, message in [("nll test_x", "has nll of test_x, expected one of test_b, "), ("seeds test_b", "unknown")]:
        with pytest.raises(UserError, match=message):
            table.markdown_table(runs[1:], columns=[column])
    for run in runs[1:]:
        del run["losses"]["test_c"], run["losses"]["valid"]
    markdown = table.markdown_table(runs, columns=["nll"])
    assert "alone" not in markdown
    (low, high) = map(float, rows_of(markdown)[0]["nll test_b"].split("[")[1].split("]")[0].split(","))
    seeds = 12.7062 * 40 / (2 * tokens)  # the second seed has one bit more a sentence
    assert (high - low) / 2 == pytest.approx(seeds, abs=1e-3)  # the sentences are alike, or nearly


def test_the_same_records_give_the_same_bytes(runs):
    once = table.markdown_table(runs, baselines=["none-32-s1"])
    random.Random(1).shuffle(runs)
    assert table.markdown_table(runs, baselines=["none-32-s1"]) == once
    alone = table.markdown_table([run for run in runs if run["seed"] == 1], baselines=["none-32-s1"])
    assert ("±" in once, "±" in alone) == (True, False)
    assert ("[" in once.split("\n\n")[0], "[" in alone.split("\n\n")[0]) == (True, False)
    assert "Scores without an interval are of one seed" in alone
    assert alone.endswith("+26.99                    |\n\nOf one seed there is no interval.\n")
    assert "Scores without an interval are of one seed" not in once


def test_a_baseline_is_compared_seed_by_seed(runs, records):
    markdown = table.markdown_table(runs, baselines=["none-32-s2"], columns=["heads"])
    text = markdown[markdown.index("Compared with heads standard, key dim 32, updates 2,500") :]
    rows = rows_of(text.split("\n\n", 1)[1])
    assert [(row["heads"], row["key dim"], row["seeds"], row["test set"]) for row in rows] == [
        (h, d, "3", t) for h, d in (("standard", "128"), ("collaborative", "32")) for t in TESTS
    ]
    pairs = zip(sacrebleu_scores(records, "decoder"), sacrebleu_scores(records, "none-32-"), strict=True)
    sides = [[records[f"{name}-32-s{seed}"] for seed in SEEDS] for name in ("decoder_cross_encoder", "none")]
    found = expected_interval(sides[0], "test_a", "sacreBLEU", sides[1])
    assert found.mean == pytest.approx(statistics.mean(a - b for a, b in pairs))
    assert found.low > 0  # hence the star
    assert rows[2]["difference in sacreBLEU"] == f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}] *"
    assert text.endswith("(Student's t) and the sentences (jackknife), seed by seed. A star: 0 is outside.\n")
    found = expected_interval(sides[0], "test_a", "chrF++", sides[1])
    markdown = table.markdown_table(runs, baselines=["none-32-s2"], columns=["chrf++", "ter"])
    last = rows_of(markdown[markdown.index("Compared with") :].split("\n\n", 1)[1])[2]
    assert last["difference in chrF++"].startswith(f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]")
    assert last["difference in TER"].startswith("-")
    equal = table.markdown_table(runs, baselines=["none-None-s1"])
    equal = rows_of(equal[equal.index("Compared with") :].split("\n\n", 1)[1])[2]["difference in sacreBLEU"]
    assert not equal.endswith("*")


def test_what_is_missing_is_said(runs):
    runs = [run for run in runs if "decoder" in run["name"] or run["name"] == "none-32-s1"]
    for run in runs:
        for test in TESTS:
            run["scores"][test]["sentence_statistics"] = None
    del runs[0]["scores"]["test_b"]
    runs[0]["training"]["words_per_second"] = None
    markdown = table.markdown_table(runs, baselines=["none-32-s1"])
    assert "chrF++" not in markdown
    assert "of chrF, compound-split BLEU, sacreBLEU, tokenised BLEU over the seeds alone" in markdown
    row = rows_of(markdown)[1]
    assert row["words/s"] == "2,500 ± 707 (of 2)"
    assert row["sacreBLEU test_b"].endswith("(of 2)")
    for run in runs:
        run["training"]["peak_memory_bytes"] = None
    assert "peak memory" not in table.markdown_table(runs)
    chosen = table.markdown_table(runs, columns=["peak_memory", "key_dim"])
    assert rows_of(chosen)[0] == {"peak memory (GiB)": "–", "key dim": "32"}


def test_runs_that_make_no_row_are_refused(runs):
    with pytest.raises(UserError, match=r"none-32-s1, none-32-s1, .* have the same seed 1"):
        frame([*runs, next(run for run in runs if run["name"] == "none-32-s1")], table.GROUP_BY)
    with pytest.raises(UserError, match=r"differ in config\.model\.key_dim; group by that too"):
        frame(runs, ["heads"])
    changed = next(run for run in runs if run["name"] == "none-32-s2")
    changed["config"]["model"]["dropout"] = 0.1
    with pytest.raises(UserError, match=r"none-32-s1, none-32-s2, .* differ in config\.model\.dropout"):
        frame(runs, table.GROUP_BY)
    assert frame(runs, [*table.GROUP_BY, "config.model.dropout"])["row"].nunique() == 4
    del changed["config"]["model"]["dropout"]
    changed["seed"] = 3
    with pytest.raises(UserError, match="have the same seed 3"):
        frame(runs, table.GROUP_BY)


def test_speed_is_not_averaged_over_machines(runs):
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
        None: "standard (fairseq's transformer)", "none": "standard", "cross_decoder_encoder": "collaborative",
        "decoder_cross": "collaborative in cross, decoder",
    }.items():  # fmt: skip
        run = record("x", sites, 32, 1, {})
        assert heads(run) == words
    published = {**run, "published": "A paper, Table 3"}
    assert heads(published) == f"{words}, as published"
    run["config"]["model"] = {"collaborative_heads": "encoder_cross_decoder", "mixing_init": "blocks", "value_heads": 2}
    assert heads(run) == "collaborative, blocks, 2 value heads"


def test_converted_heads_stand_in_tables_like_others(tmp_path):
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
    assert heads({"config": {"model": model}}) == "standard, scores × 0.5"
    model.update(attention_shapes={}, key_dim=32, encoder_key_dim=16, attention_init="authors")
    of_sites = {"config": {"model": model}, "training": {"updates": 1}}
    assert keys(of_sites)["key_dim"] == "encoder 16, cross 32, decoder 32"
    assert heads(of_sites) == "standard, authors' initialisation"
    assert (heads(mixed), keys(mixed)["key_dim"], cache(mixed)) == ("collaborative, converted", "mixed", None)


@pytest.mark.parametrize("heads", [2, 4])
def test_cached_numbers_are_those_of_the_layers(heads):
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
    narrow = {**sizes, "collaborative_heads": "decoder", "key_dim": 32, "decoder_key_dim": 8}
    assert cache({"config": {"model": narrow}}) == 8 + 64
    assert cache({"config": {"model": {**model, "attention_shapes": {"decoder.0": {}}}}}) is None
    assert cache({"config": {"model": {}}}) is None  # of a model of another kind


def test_precisions_in_one_row_are_told(runs):
    row = [run for run in runs if run["name"].startswith("none-32-")]
    for run, flag in zip(row, (None, "amp", "amp"), strict=True):
        run["config"]["common"] = {name: name == flag for name in ("fp16", "amp")}
    markdown = table.markdown_table(runs, columns=["seeds"])
    assert "different precisions: standard, 32, 2,500: --amp on a CPU (seed 2, 3); fp32 (seed 1)." in markdown
    row[0]["config"]["common"]["amp"] = True
    assert "different precisions" not in table.markdown_table(runs, columns=["seeds"])
    del row[0]["config"]["common"]
    assert "--amp on a CPU (seed 2, 3); not recorded (seed 1)." in table.markdown_table(runs, columns=["seeds"])

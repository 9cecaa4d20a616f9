"""Key-dimension study: attention scales, masked mixing, and primary test and figure on synthetic losses."""

import json
import re
from argparse import Namespace

import numpy
import pytest
from scipy import stats

from collab_fairseq import checkpoints
from collab_fairseq.attention import initial_mixing
from collab_fairseq.models.arguments import inherit_attention
from collab_fairseq.records import key_dim_study
from collab_fairseq.records.rows import load_run
from tests.common import ROOT, run
from tests.fairseq.commands import train_command
from tests.fairseq.conftest import tiny_data  # noqa: F401  (a fixture)
from tests.fairseq.models import SMALL, same_model

RECIPE = ROOT / "recipes" / "curve"
RECORD = ROOT / "results" / "runs" / "multi30k-none-dk128-s1-u4000.json"


@pytest.mark.parametrize(("key_dim", "factor", "scale"), [(128, [], 0.25), (256, ["--factor", 0.5], 0.5 * 32**-0.5)])
def test_score_scale_sets_scale_of_all_layers(key_dim, factor, scale, tmp_path):
    run("python", RECIPE / "score_scale.py", key_dim, tmp_path / "made" / "scaled.pt", *factor)
    args = Namespace(attention_from=str(tmp_path / "made" / "scaled.pt"))
    inherit_attention(args)
    layer_ids = [f"{site}.{layer}" for site in ("encoder", "cross", "decoder") for layer in range(2)]
    assert args.attention_shapes == {layer_id: {"scale": scale} for layer_id in layer_ids}
    assert (args.collaborative_heads, args.key_dim) == ("none", key_dim)
    done = run("python", RECIPE / "score_scale.py", key_dim, tmp_path / "made" / "scaled.pt", check=False)
    assert "scaled.pt already exists" in done.stderr


def test_score_scale_rejects_factor_zero(tmp_path):
    done = run("python", RECIPE / "score_scale.py", 256, tmp_path / "zero.pt", "--factor", 0, check=False)
    assert (done.returncode, "--factor: must be positive" in done.stderr) == (2, True)
    assert not (tmp_path / "zero.pt").exists()


def test_masked_mixing_keeps_blocks_and_learns_gains(tiny_data, tmp_path):  # noqa: F811
    """Also in a resumed run; the control without mask leaves the blocks."""
    settings = {**SMALL, "key_dim": 6, "mixing_init": "blocks", "mixing_lr_multiplier": 8, "optimizer": "fused_adam"}
    masked = {"user_dir": RECIPE / "masked_mixing", **settings}
    run(*train_command(tiny_data, tmp_path / "control", max_update=8, **settings))
    run(*train_command(tiny_data, tmp_path / "once", max_update=8, **masked))
    for updates in (4, 8):
        run(*train_command(tiny_data, tmp_path / "resumed", max_update=updates, **masked))
    models = {
        name: checkpoints.load(tmp_path / name / "checkpoint_last.pt")["model"]
        for name in ("control", "once", "resumed")
    }
    mixing = {name: [m for key, m in model.items() if key.endswith(".mixing")] for name, model in models.items()}
    assert len(mixing["once"]) == 6
    blocks = initial_mixing("blocks", 2, 6).bool()
    for once, control in zip(mixing["once"], mixing["control"], strict=True):
        assert bool((once[~blocks] == 0).all())
        assert bool((once[blocks] != 0.125).all())  # 1 / 8 at the start
        assert bool((control[~blocks] != 0).all())
    assert same_model(models["once"], models["resumed"])
    for name in ("once", "control"):
        (tmp_path / name / "checkpoint_last.pt").rename(tmp_path / name / "averaged.pt")
    check = run("python", RECIPE / "blocks.py", tmp_path / "once", tmp_path / "control", check=False)
    assert re.fullmatch(r"once: 0 outside the blocks of 6 mixing matrices, SHA-256 \w{64}\n", check.stdout)
    assert re.search(r"control/averaged.pt: \S+\.mixing must be 0 outside the blocks; got ", check.stderr)
    assert check.returncode == 1
    for wrong, message in [
        ({"mixing_init": "xavier"}, "must have a mixing matrix of blocks"),
        ({"weight_decay": 0.1}, "--weight-decay must be 0; got 0.1"),
    ]:
        command = train_command(tiny_data, tmp_path / "wrong", max_update=1, **{**masked, **wrong})
        done = run(*command, check=False)
        assert (done.returncode, message in done.stderr) == (1, True)


#: rows: heads and key dimension
FULL, STANDARD, COLLABORATIVE = ("none", 256), ("none", 64), ("encoder_cross_decoder", 64)


def losses(nll, valid=9):
    """Losses with this mean over all tokens of both test sets."""
    return {
        "valid": {"loss": 9, "nll_loss": valid, "tokens": 9},
        "test_2016_flickr": {"loss": 9, "nll_loss": nll - 0.3, "tokens": 100},
        "test_2017_flickr": {"loss": 9, "nll_loss": nll + 0.1, "tokens": 300},
    }


def write_records(folder, lost):
    """Write a record per row and seed; row → difference of each seed from 3 + 0.01 · seed."""
    paths = []
    for (heads, key_dim), differences in lost.items():
        for seed, difference in enumerate(differences, start=1):
            record = json.loads(RECORD.read_text())
            record["settings"]["seed"] = seed
            model = record["settings"]["config"]["model"]
            model.update(collaborative_heads=heads, key_dim=key_dim, encoder_embed_dim=256)
            record["parts"]["losses"] = losses(3 + 0.01 * seed + difference)
            paths.append(folder / f"{heads}-{key_dim}-{seed}.json")
            paths[-1].write_text(json.dumps(record))
    return paths


@pytest.mark.parametrize(
    ("standard", "collaborative", "outcome"),
    [
        ([0.08, 0.08, 0.09], [0.002, 0.0, -0.002], "flat"),
        ([0.08, 0.08, 0.09], [0.079, 0.08, 0.081], "falls"),
        ([0.08, 0.08, 0.09], [0.04, 0.041, 0.042], "in between"),
        ([0.08, 0.08, 0.09], [0.0, 0.05, 0.01], "cannot tell: the intervals are too wide"),
        ([0.01, -0.01, 0.0], [0.0, 0.01, -0.01], "cannot tell: standard heads do not measurably lose"),
    ],
)
def test_outcome_follows_from_intervals(standard, collaborative, outcome, tmp_path):
    records = write_records(tmp_path, {FULL: [0] * 3, STANDARD: standard, COLLABORATIVE: collaborative})
    done = run("python", "-m", "recipes.curve.claim", 64, RECORD, *records, cwd=ROOT).stdout
    assert done.splitlines()[-1].startswith(f"Outcome of 3 seeds: **{outcome}")
    values = [c - s / 4 for s, c in zip(standard, collaborative, strict=True)]
    mean = sum(values) / 3
    half = 2.91999 * (sum((v - mean) ** 2 for v in values) / 2 / 3) ** 0.5  # Student's t, 2 degrees of freedom, .95
    (test,) = re.findall(r"^\| C − ¾F − ¼S \| (.*) \| (.*) \| (.*) \|$", done, re.MULTILINE)
    assert test[:2] == (f"{mean:+.4f}", f"[{mean - half:+.4f}, {mean + half:+.4f}]")
    assert (float(test[2]) < 0.05) == (mean + half < 0)
    assert f"| 2 | 3.0200 | {3.02 + standard[1]:.4f} | {3.02 + collaborative[1]:.4f} |" in done


def test_rejects_rows_with_different_seeds(tmp_path):
    records = write_records(tmp_path, {FULL: [0, 0], STANDARD: [0.1, 0.1], COLLABORATIVE: [0.0]})
    error = run("python", "-m", "recipes.curve.claim", 64, *records, check=False, cwd=ROOT).stderr
    assert "all three rows must have the same seeds, at least two; got F 256: [1, 2]; S 64: [1, 2]; C 64: [1]" in error


def test_equivalent_key_dim_is_interpolated():
    standard = {256: 0.0, 64: 0.08, 32: 0.2, 16: 0.5}
    by_loss = {0.08: "64", 0.04: "128", 0.14: "45", 0.5: "16", 0.51: "< 16", 0.0: "256", -0.001: "> 256"}
    assert {value: key_dim_study.equivalent_key_dim(standard, value) for value in by_loss} == by_loss
    not_monotone = {16: 0.2, 32: 0.25, 64: 0.1, 256: 0.0}
    assert key_dim_study.equivalent_key_dim(not_monotone, 0.15) == "51"


def test_costs_and_figure(tmp_path):
    lost = {FULL: [0] * 6, STANDARD: [0.08, 0.09, 0.07, 0.1, 0.06, 0.08], COLLABORATIVE: [0.0, 0.01, -0.01, 0.02]}
    lost.update({("none", 32): [0.15, 0.2, 0.16], ("none", 16): [0.3, 0.32, 0.29], (COLLABORATIVE[0], 32): [0.05]})
    paths = write_records(tmp_path, lost)
    costs = key_dim_study.costs([load_run(path) for path in paths])
    expected = stats.ttest_1samp(lost[STANDARD], 0).confidence_interval(0.95)
    assert costs["standard", 64] == pytest.approx((numpy.mean(lost[STANDARD]), *expected))
    assert costs["standard", 256] == pytest.approx((0, 0, 0))
    assert costs["collaborative", 32] == pytest.approx((0.05, numpy.nan, numpy.nan), nan_ok=True)  # a single seed
    figure = tmp_path / "x.svg"

    def draw(*records, check=True):
        return run("collab", "table", *records, "--figure", figure, "--x", "key_dim", check=check)

    draw(*paths)
    assert "95 % interval over seeds; 6 seeds" in figure.read_text()
    chance = numpy.random.default_rng(1)
    for path in paths:  # intervals get wider with sentence losses
        record = json.loads(path.read_text())
        for name in ("test_2016_flickr", "test_2017_flickr"):
            of_test = record["parts"]["losses"][name]
            bits = chance.normal(size=50)
            bits += of_test["nll_loss"] - bits.mean()  # whose mean is the loss
            tokens = of_test["tokens"] / 50
            of_test["sentences"] = "; ".join(f"{sentence * tokens} {tokens}" for sentence in bits)
        path.write_text(json.dumps(record))
    wider = key_dim_study.costs([load_run(path) for path in paths])
    assert [wider[row].mean for row in costs] == pytest.approx([cost.mean for cost in costs.values()])
    del costs["collaborative", 32]
    assert all(wider[row].low <= cost.low + 1e-9 for row, cost in costs.items())
    assert wider["standard", 64].low < costs["standard", 64].low - 1e-3

    draw(*paths, *sorted((ROOT / "results" / "published").glob("*.json")))
    text = figure.read_text()
    assert "95 % interval over seeds and sentences; 6 seeds: standard 256, standard 64; 4 seeds" in text
    assert "; 1 seed: collaborative 32." in text
    assert len(text) < 100_000
    assert ">Multi30k En–De (ours)<" in text
    assert ">WMT14 En–De (Cordonnier et al.)<" in text
    assert [text.count(f">{label}<") for label in ("standard heads", "(1/16)", "not reported")] == [1, 2, 2]
    assert text.count(">not run<") == 4  # both at 1/2, collaborative heads at 1/16 and at 1
    assert set(re.findall(r"fill: (#\w+)", text)) >= {"#ffffff", "#0072b2", "#d55e00"}
    draw(*paths)
    assert "Cordonnier" not in figure.read_text()

    def changed(path, group="model", **settings):
        record = json.loads(path.read_text())
        record["settings"]["config"][group].update(settings)
        result = tmp_path / f"{'-'.join(settings)}.json"
        result.write_text(json.dumps(record))
        return result

    published = ROOT / "results" / "published" / "wmt14_en_de-encoder_cross_decoder-dk64.json"
    fewer = json.loads(paths[-1].read_text())
    del fewer["parts"]["losses"]["test_2017_flickr"]
    (tmp_path / "fewer.json").write_text(json.dumps(fewer))
    fewer["parts"]["losses"] = {}
    (tmp_path / "none.json").write_text(json.dumps(fewer))
    longer = changed(paths[-1], "optimization", max_update=8000)
    for records, message in [
        ([paths[-1]], "runs of standard heads at the full key dimension, 256, are needed"),
        ([published], "runs of standard heads at the full key dimension, 512, are needed"),
        ([*paths[:-1], tmp_path / "none.json"], "(all tests) has no NLL"),
        ([*paths, RECORD], "must have the same config.model.encoder_embed_dim; got 128, 256"),
        ([*paths[:-1], longer], "must have the same config.optimization.max_update; got 4000, 8000"),
        ([*paths, paths[0]], "have the same seed 1"),
        ([*paths[1:], changed(paths[0], dropout=0.5)], "differ in config.model.dropout"),
        ([*paths[:-1], changed(paths[-1], decoder_key_dim=16)], "must have the same key dimension in all layers"),
        ([*paths, changed(paths[-1], mixing_init="blocks")], "must have the same settings; got collaborative ("),
        ([*paths[:-1], tmp_path / "fewer.json"], "must have the same references"),
        ([*paths[1:6], paths[-1]], "32 must have a seed of the full key dimension (2, 3, 4, 5, 6); got 1"),
    ]:
        error = draw(*records, check=False).stderr
        assert (message in error, error.count("\n")) == (True, 1)

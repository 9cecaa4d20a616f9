"""Key-dimension study: attention scales, masked mixing, and primary test and figure on synthetic losses."""

import copy
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
    for wrong, message in [
        ({"mixing_init": "xavier"}, "must have a mixing matrix of blocks"),
        ({"weight_decay": 0.1}, "--weight-decay must be 0; got 0.1"),
    ]:
        command = train_command(tiny_data, tmp_path / "wrong", max_update=1, **{**masked, **wrong})
        done = run(*command, check=False)
        assert (done.returncode, message in done.stderr) == (1, True)


COLLABORATIVE = "encoder_cross_decoder"


def records(folder, lost_by_standard, lost_by_collaborative, left_out=(), **more):
    """Write records of the three rows.

    Args:
        lost_by_standard, lost_by_collaborative: difference of each seed from the full key dimension.
        left_out: (heads, seed) without a record.
        more: differences of further rows, such as none_32.
    """
    made, original = [], json.loads(RECORD.read_text())
    rows = {("none", 256): [0] * len(lost_by_standard), ("none", 64): lost_by_standard}
    rows[COLLABORATIVE, 64] = lost_by_collaborative
    rows.update({(row.rpartition("_")[0], int(row.rpartition("_")[2])): lost for row, lost in more.items()})
    for (heads, key_dim), lost in rows.items():
        for seed in range(1, len(lost) + 1):
            record = copy.deepcopy(original)
            record["settings"]["seed"] = seed
            model = record["settings"]["config"]["model"]
            model.update(collaborative_heads=heads, key_dim=key_dim, encoder_embed_dim=256)
            mean = 3 + 0.01 * seed + lost[seed - 1]
            record["parts"]["losses"] = {
                "valid": {"loss": 9, "nll_loss": 9, "tokens": 9},  # ignored
                "test_2016_flickr": {"loss": 9, "nll_loss": mean - 0.3, "tokens": 100},
                "test_2017_flickr": {"loss": 9, "nll_loss": mean + 0.1, "tokens": 300},
            }
            made.append(folder / f"{heads}-{key_dim}-{seed}.json")
            if (heads, seed) not in left_out:
                made[-1].write_text(json.dumps(record))
    return [path for path in made if path.exists()]


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
    done = run("python", RECIPE / "claim.py", 64, RECORD, *records(tmp_path, standard, collaborative)).stdout
    assert done.splitlines()[-1].startswith(f"Outcome of 3 seeds: **{outcome}")
    values = [c - s / 4 for s, c in zip(standard, collaborative, strict=True)]
    mean = sum(values) / 3
    half = 2.91999 * (sum((v - mean) ** 2 for v in values) / 2 / 3) ** 0.5  # Student's t, 2 degrees of freedom, .95
    (test,) = re.findall(r"^\| C − ¾F − ¼S \| (.*) \| (.*) \| (.*) \|$", done, re.MULTILINE)
    assert test[:2] == (f"{mean:+.4f}", f"[{mean - half:+.4f}, {mean + half:+.4f}]")
    assert (float(test[2]) < 0.05) == (mean + half < 0)
    assert f"| 2 | 3.0200 | {3.02 + standard[1]:.4f} | {3.02 + collaborative[1]:.4f} |" in done


def test_rejects_rows_with_different_seeds(tmp_path):
    made = records(tmp_path, [0.1, 0.1], [0.0, 0.0], left_out=[(COLLABORATIVE, 2)])
    done = run("python", RECIPE / "claim.py", 64, *made, check=False)
    assert "all three rows must have the same seeds" in done.stderr
    assert "F 256: [1, 2]; S 64: [1, 2]; C 64: [1]" in done.stderr
    done = run("python", RECIPE / "claim.py", 64, *made, made[0], check=False)
    assert "is the second of seed 1" in done.stderr


def test_equivalent_key_dim_is_interpolated(tmp_path):
    standard = {256: 0.0, 64: 0.08, 32: 0.2, 16: 0.5}
    losses = {0.08: "64", 0.04: "128", 0.14: "45", 0.5: "16", 0.51: "< 16", 0.0: "256", -0.001: "> 256"}
    assert {value: key_dim_study.equivalent_key_dim(standard, value) for value in losses} == losses
    not_monotone = {16: 0.2, 32: 0.25, 64: 0.1, 256: 0.0}
    assert key_dim_study.equivalent_key_dim(not_monotone, 0.15) == "51"
    made = records(tmp_path, [0.08] * 3, [0.03, 0.04, 0.05], none_16=[0.5], encoder_cross_decoder_32=[0.6])
    done = run("python", RECIPE / "claim.py", 64, *made).stdout
    assert "the same loss: < 16 (collaborative heads at 32), 128 (collaborative heads at 64).\n" in done
    page = tmp_path / "page.md"
    page.write_text("<!-- claim -->\n<!-- /claim -->\n")
    written = [RECIPE / "claim.py", 64, *made, "--output", page, "--marker", "claim"]
    assert run("python", *written, "--check", check=False).returncode == 1
    run("python", *written)
    assert page.read_text() == f"<!-- claim -->\n{done}<!-- /claim -->\n"


def test_costs_and_figure(tmp_path):
    lost = [0.08, 0.09, 0.07, 0.1, 0.06, 0.08], [0.0, 0.01, -0.01, 0.02, 0.0, 0.01]
    more = {"none_32": [0.15, 0.2, 0.16], "none_16": [0.3, 0.32, 0.29], "encoder_cross_decoder_32": [0.05]}
    made = records(tmp_path, *lost, **more)
    costs = key_dim_study.costs([load_run(path) for path in made])
    expected = stats.ttest_1samp(lost[0], 0).confidence_interval(0.95)
    assert costs["standard", 64] == pytest.approx((numpy.mean(lost[0]), *expected))
    assert costs["standard", 256] == pytest.approx((0, 0, 0))
    single_seed = (0.05, numpy.nan, numpy.nan)
    assert costs["collaborative", 32] == pytest.approx(single_seed, nan_ok=True)
    chance = numpy.random.default_rng(1)
    for path in made:  # intervals get wider with sentence losses
        record = json.loads(path.read_text())
        for name, losses in record["parts"]["losses"].items():
            if name != "valid":
                bits = chance.normal(losses["nll_loss"], 1, size=50)
                bits += losses["nll_loss"] - bits.mean()  # whose mean is the loss
                tokens = losses["tokens"] / 50
                losses["sentences"] = "; ".join(f"{sentence * tokens} {tokens}" for sentence in bits)
        path.write_text(json.dumps(record))
    wider = key_dim_study.costs([load_run(path) for path in made])
    assert [wider[row].mean for row in costs] == pytest.approx([cost.mean for cost in costs.values()])
    del costs["collaborative", 32]
    assert all(wider[row].low <= cost.low + 1e-9 for row, cost in costs.items())

    published = sorted((ROOT / "results" / "published").glob("*.json"))
    run("collab", "table", *made, *published, "--figure", tmp_path / "x.svg", "--x", "width")
    text = (tmp_path / "x.svg").read_text()
    assert len(text) < 100_000
    assert ">Multi30k En–De (ours)<" in text
    assert ">WMT14 En–De (Cordonnier et al.)<" in text
    assert [text.count(f">{label}<") for label in ("standard heads", "(1/16)", "not reported")] == [1, 2, 2]
    assert text.count(">not run<") == 4  # both at 1/2, collaborative heads at 1/16 and at 1
    assert set(re.findall(r"fill: (#\w+)", text)) >= {"#ffffff", "#0072b2", "#d55e00"}
    run("collab", "table", *made, "--figure", tmp_path / "alone.svg", "--x", "width")
    assert "Cordonnier" not in (tmp_path / "alone.svg").read_text()
    for files, message in [
        ([made[-1]], "runs of standard heads at the full key dimension, 256, are needed"),
        ([*made, RECORD], "(all tests) has no NLL"),
        ([*made, made[0]], "is the second of seed 1"),
    ]:
        done = run("collab", "table", *files, "--figure", tmp_path / "y.svg", "--x", "width", check=False)
        assert (message in done.stderr, done.stderr.count("\n")) == (True, 1)

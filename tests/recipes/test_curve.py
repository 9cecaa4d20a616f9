"""The curve: its standard heads with a scale of their own, and its primary test on planted losses."""

import copy
import json
from argparse import Namespace

import pytest

from collab_fairseq.models.config import inherit_attention
from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "curve"
RECORD = ROOT / "results" / "runs" / "multi30k-none-dk128-s1-u4000.json"


def test_scaled_heads_divide_by_the_root_of_their_own_dims(tmp_path):
    run("python", RECIPE / "score_scale.py", 128, tmp_path / "made" / "scaled.pt")
    args = Namespace(attention_from=str(tmp_path / "made" / "scaled.pt"))
    inherit_attention(args)
    places = [f"{site}.{layer}" for site in ("encoder", "cross", "decoder") for layer in range(2)]
    assert args.attention_shapes == {place: {"scale": 0.25} for place in places}  # 16 dims a head
    assert (args.collaborative_heads, args.key_dim) == ("none", 128)


def records(folder, lost_by_standard, lost_by_collaborative, left_out=()):
    """Records of the three rows: how much each seed loses beside full width; losses of the two test sets differ."""
    made, original = [], json.loads(RECORD.read_text())
    lost_at_64 = {("none", 64): lost_by_standard, ("encoder_cross_decoder", 64): lost_by_collaborative}
    rows = {("none", 256): (0,) * 9, **lost_at_64}
    for (heads, key_dim), lost in rows.items():
        for seed in range(1, len(lost_by_standard) + 1):
            record = copy.deepcopy(original)
            record["settings"]["seed"] = seed
            record["settings"]["config"]["model"].update(collaborative_heads=heads, key_dim=key_dim)
            mean = 3 + 0.01 * seed + lost[seed - 1]
            record["parts"]["losses"] = {
                "valid": {"loss": 9, "nll_loss": 9, "tokens": 9},  # counts for nothing
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
def test_the_outcome_is_what_the_intervals_mean(standard, collaborative, outcome, tmp_path):
    done = run("python", RECIPE / "claim.py", 64, RECORD, *records(tmp_path, standard, collaborative)).stdout
    assert done.splitlines()[-1].startswith(outcome)
    values = [c - s / 4 for s, c in zip(standard, collaborative, strict=True)]
    mean = sum(values) / 3
    half = 2.91999 * (sum((v - mean) ** 2 for v in values) / 2 / 3) ** 0.5  # Student's t, 2 degrees of freedom, .95
    assert f"C - 3/4 F - 1/4 S: {mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]" in done
    p = float(done.split("C - 3/4")[1].split("p (below 0) ")[1].split()[0])
    assert (p < 0.05) == (mean + half < 0)
    assert f"seed 2: F 3.0200  S {3.02 + standard[1]:.4f}  C {3.02 + collaborative[1]:.4f}" in done


def test_rows_with_other_seeds_are_refused(tmp_path):
    made = records(tmp_path, [0.1, 0.1], [0.0, 0.0], left_out=[("encoder_cross_decoder", 2)])
    done = run("python", RECIPE / "claim.py", 64, *made, check=False)
    assert "expected the same seeds, two or more, in all three rows" in done.stderr
    assert "F 256: [1, 2]; S 64: [1, 2]; C 64: [1]" in done.stderr
    done = run("python", RECIPE / "claim.py", 64, *made, made[0], check=False)
    assert "is the second of seed 1" in done.stderr

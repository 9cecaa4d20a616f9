"""Convergence study: selection, tests and outcomes on synthetic losses and on records of the earlier study."""

import contextlib
import copy
import itertools
import json
import math
import re

import numpy
import pytest
from scipy import stats

from collab_fairseq.records.rows import load_run
from fairseq_modern.errors import UserError
from recipes.curve import convergence as study_pages
from recipes.curve import convergence_rows as rows
from recipes.curve import convergence_shares as shares
from recipes.curve import logits
from tests.common import ROOT, run
from tests.recipes.test_curve import losses

RUNS = ROOT / "results" / "runs"

ORIGINAL = json.loads((RUNS / "curve-none-dk256-lr2-s1-u2000.json").read_text())
FULL = numpy.array([0.0, 0.01, -0.01, 0.0, 0.005])


def record(folder, row, seed, test, valid=3.0, lr=0.004, factor=None, updates=2000):
    """Write a record of a row with these NLLs; during training, the test NLL's offset from 3 shrinks as 1/updates."""
    content = copy.deepcopy(ORIGINAL)
    settings = content["settings"]
    settings["seed"] = seed
    settings["config"]["optimization"].update(lr=[lr], max_update=updates)
    settings["config"]["model"].update(
        collaborative_heads="none" if row in "FS" else "encoder_cross_decoder",
        key_dim=256 if row == "F" else 32,
        attention_shapes={"encoder.0": {"scale": factor * 32**-0.5}} if factor else {},
    )
    if row == "B":
        settings["files"] = {"recipe.training_module": {"file": "__init__.py", "sha256": "0"}}
    content["name"] = f"{row}-{lr}-{factor}-{updates}-{seed}"
    content["parts"]["losses"] = losses(test, valid)
    curve = content["parts"]["curves"]["valid"]
    for point in curve:
        point["nll_loss"] += (test - 3) * curve[-1]["updates"] / point["updates"]
    path = folder / f"{content['name']}.json"
    path.write_text(json.dumps(content))
    return path


def study(folder, c, s, factor=None, updates=2000):
    """Write records of five seeds; test NLLs are offsets from 3, and the factor on the logits is that of F."""
    offsets = {"F": FULL, "S": s, "C": c}
    return [
        record(folder, row, seed, 3 + offset, factor=factor if row == "F" else None, updates=updates)
        for row, values in offsets.items()
        for seed, offset in enumerate(values, start=1)
    ]


def rest_of_selection(folder, factor=None):
    """Write the other runs that the protocol asks for, with a higher validation NLL than those of `study`."""
    runs = [(row, seed, 0.002, None) for row in "FSC" for seed in (1, 2)]
    runs += [("F", seed, 0.004, None if factor else 0.62) for seed in (1, 2)]
    runs += [("F", 1, 0.001, None), ("F", 1, 0.008, None), ("S", 1, 0.008, None), ("C", 1, 0.008, None)]
    return [record(folder, row, seed, 3.5, 3.5, lr, of_run, updates=5500) for row, seed, lr, of_run in runs]


def convergence(part, *words, check=True):
    return run("python", "-m", "recipes.curve.convergence", part, *words, check=check, cwd=ROOT)


def test_tests_reproduce_the_earlier_study():
    """The numbers are those of its page, computed by claim.py; 2,000 updates give no verdict on the longer study."""
    rows_of_study = ("none-dk256-lr2", "none-dk32-lr4", "encoder_cross_decoder-dk32-blocks8_lr4")
    files = [path for row in rows_of_study for path in sorted(RUNS.glob(f"curve-{row}-s?-u2000.json"))]
    text = convergence("tests", *files).stdout
    assert "Primary test, C − ¾F − ¼S: -0.0600 [" in text
    assert "one-sided p = 2.3e-05, n = 6; seeds 3, 4, 5, 6 alone" in text
    assert "| 4 | 2.8240 | 2.8986 | 2.7983 |" in text
    assert "| S − F | +0.0686 [" in text
    assert "Outcome: **undecided: the protocol needs runs of 5,500 updates from one unmodified commit**." in text
    assert "The claim" not in text


NOISE = numpy.array([0.0, 0.002, -0.002, 0.001, -0.001])


@pytest.mark.parametrize(
    ("c", "s", "factor", "words"),
    [
        (-0.05, 0.1, None, "The claim holds.*are better than standard heads at the tuned full key dimension"),
        (0.0, 0.1, None, r"The claim holds.*nothing measurable \(C − F: "),
        (0.0, 0.0, None, "this corpus cannot tell"),
        (0.06, 0.1, None, r"The claim fails.*recover 0\.4\d \[0\.\d\d, 0\.\d\d\] of what"),
        (0.1, 0.1, None, "The claim fails.*“the gain of collaborative heads was speed of learning; .*”; “the earlier"),
        # C − F above 0, but less than a quarter of S − F; F with a factor on its logits
        (0.03, 0.3, 0.62, "The claim holds.*smaller scale of the initial logits .*”; “.* at most a quarter"),
    ],
)
def test_outcomes_of_the_protocol(c, s, factor, words, tmp_path):
    made = study(tmp_path, c + NOISE, s + NOISE[::-1], factor=factor, updates=5500)
    rest = rest_of_selection(tmp_path, factor)
    text = convergence("tests", *made, *rest).stdout
    assert re.search(words, text, re.DOTALL), text
    assert "Correction" not in text  # C is not ahead of F at 0.004 and behind it at 0.002
    share = float(re.search(r"^\| \(S − C\)/\(S − F\) \| (\S+) \[", text, re.MULTILINE)[1])
    cost, gain = s + NOISE[::-1] - FULL, s + NOISE[::-1] - c - NOISE
    assert share == pytest.approx(gain.mean() / cost.mean(), abs=0.006)


def test_tests_are_undecided_until_all_runs_are_finished(tmp_path):
    made, rest = study(tmp_path, NOISE, 0.1 + NOISE, updates=5500), rest_of_selection(tmp_path)
    first_seeds = [path for path in made if path.stem[-1] in "12"]
    text = convergence("tests", *first_seeds, *rest).stdout
    assert "n = 2; seeds none alone: not run." in text
    assert "Outcome: **undecided: the protocol needs seeds 1, 2, 3, 4, 5; finished: 1, 2**." in text
    assert "The claim" not in text
    assert (
        "The claim holds. Outcome, in the words of the protocol: **“after 40"
        in convergence("tests", *made, *rest).stdout
    )
    content = json.loads(made[0].read_text())
    content["commit"]["modified"] = True
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(content))
    text = convergence("tests", changed, *made[1:], *rest).stdout
    assert "undecided: the protocol needs runs of 5,500 updates from one unmodified commit" in text
    text = convergence("tests", *made, *rest[:-1]).stdout
    assert "Outcome: **undecided: runs of the selection are missing: C, lr 0.008 with seed 1**." in text


LONGER = sorted(RUNS.glob("curve-*-u5500.json"))
BLIND = ROOT / "results" / "blind_scores.json"
NAMES = {"F": "none-dk256-scaled062_lr2", "S": "none-dk32-lr2", "C": "encoder_cross_decoder-dk32-blocks8_lr2"}


def parts(row, seed):
    """The measured parts of a run of 5,500 updates, straight from its record."""
    return json.loads((RUNS / f"curve-{NAMES.get(row, row)}-s{seed}-u5500.json").read_text())["parts"]


def test_sentences_on_learning_speed_are_corrected_by_the_records():
    settings = rows.by_setting([load_run(path) for path in LONGER])
    selected = rows.select(settings)
    lead, speed = rows.corrections(settings, selected)

    def nll(row, seed):
        sets = [loss for name, loss in parts(row, seed)["losses"].items() if name != "valid"]
        return sum(x["nll_loss"] * x["tokens"] for x in sets) / sum(x["tokens"] for x in sets)

    def curve(row, seed):
        return {point["updates"]: point["nll_loss"] for point in parts(row, seed)["curves"]["valid"]}

    late = [nll("encoder_cross_decoder-dk32-blocks8_lr4", seed) - nll("none-dk256-lr4", seed) for seed in (1, 2)]
    assert f"C − F in test NLL is {late[0]:+.3f}, {late[1]:+.3f} after 40 epochs" in lead
    c, f = ([curve(row, seed) for seed in range(1, 6)] for row in "CF")
    behind = [sum(x[update] - y[update] for x, y in zip(c, f, strict=True)) > 0 for update in f[0]]
    assert f"lower at all {len(behind)} validations (mean of 5 seeds)" in lead
    assert all(behind)
    for row, rate in itertools.product("CS", (4, 2)):
        of_row = NAMES[row].replace("lr2", f"lr{rate}")
        early = [curve(of_row, seed)[660] - curve(f"none-dk256-lr{rate}", seed)[660] for seed in (1, 2)]
        assert f"{row} − F {early[0]:+.3f}, {early[1]:+.3f} at 0.00{rate}" in speed
    # control: without the lead at 0.004, and with a single validation at which C is ahead, there is no correction
    full = settings[rows.Setting("F", 0.004, 1.0)]
    full[1] = {**full[1], "losses": settings[selected["F"]][1]["losses"]}
    assert rows.corrections(settings, selected) == [speed]
    settings = rows.by_setting([load_run(path) for path in LONGER])
    for run_ in settings[selected["F"]].values():
        run_["curves"]["valid"][50]["nll_loss"] += 1
    assert rows.corrections(settings, selected) == [speed]


def test_blind_scores_have_intervals_over_seeds():
    scores = json.loads(BLIND.read_text())
    text = convergence("blind", *LONGER, "--blind", BLIND).stdout
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    header = lines[0]
    for test, name in (("blind_2017_mscoco", "2017 mscoco"), ("blind_2018_flickr", "2018 flickr"), ("both", "both")):
        for metric in ("sacreBLEU", "chrF++"):
            values = {
                row: numpy.array([scores[f"curve-{of_row}-s{seed}-u5500"][test][metric] for seed in range(1, 6)])
                for row, of_row in NAMES.items()
            }
            line = dict(zip(header, next(line for line in lines if line[:2] == [name, metric]), strict=True))
            for one, other in ("CF", "CS", "SF"):
                x = values[one] - values[other]
                low, high = stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x))
                assert line[f"{one} − {other}"] == f"{x.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
            assert float(line["F"]) == pytest.approx(values["F"].mean(), abs=0.006)
    assert "| both | sacreBLEU | -1.73, -1.52 | -0.62, -0.68 |" in text  # seeds 1 and 2 against F without its factor


def test_shares_by_measure():
    text = convergence("shares", *LONGER, "--blind", BLIND).stdout
    scores = json.loads(BLIND.read_text())

    def training(row, seed):
        return numpy.mean([p["nll_loss"] for p in parts(row, seed)["curves"]["train"] if p["updates"] > 4500])

    measures = {
        "NLL of the training set": training,
        "NLL of the validation set": lambda row, seed: parts(row, seed)["losses"]["valid"]["nll_loss"],
        "sacreBLEU of both blind": lambda row, seed: scores[f"curve-{NAMES[row]}-s{seed}-u5500"]["both"]["sacreBLEU"],
    }
    for name, measure in measures.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
        values = {row: numpy.array([measure(row, seed) for seed in range(1, 6)]) for row in "FSC"}
        share, low, high = map(float, re.search(r"(\S+) \[(\S+), (\S+)\] \|$", line).groups())
        gain, cost = values["S"] - values["C"], values["S"] - values["F"]
        assert share == pytest.approx(gain.mean() / cost.mean(), abs=0.006)
        for limit in (low, high):  # just rejected by a t-test, up to rounding
            around = [stats.ttest_1samp(gain - (limit + step) * cost, 0).pvalue for step in (-0.006, 0.006)]
            assert min(around) < 0.05 < max(around)


def test_blind_scores_must_cover_all_runs():
    scores = json.loads(BLIND.read_text())
    del scores[f"curve-{NAMES['S']}-s4-u5500"]["both"]["chrF++"]
    settings = rows.by_setting([load_run(path) for path in LONGER])
    with pytest.raises(UserError, match=rf"must have chrF\+\+ of both for curve-{NAMES['S']}-s4-u5500; it has none"):
        shares.blind_page(settings, scores)
    for words in (("blind", *LONGER), ("tests", *LONGER, "--blind", BLIND)):
        done = convergence(*words, check=False)
        assert (done.returncode, "--blind is required for the parts blind and shares" in done.stderr) == (2, True)


def test_pairs_compare_all_rows_at_all_learning_rates(tmp_path):
    made = study(tmp_path, 0.05 + NOISE, 0.1 + NOISE)
    made += [record(tmp_path, "S", seed, 3.3, lr=0.002) for seed in (1, 2)]
    made += [record(tmp_path, "F", 1, 2.0, lr=0.008)]  # control: one seed is not compared
    lines = convergence("pairs", *made).stdout.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    means = {(one, other): float(text.split()[0]) for one, other, text in cells}
    at_4 = {row: f"{row}, lr 0.004" for row in "FSC"}
    # test NLL on seeds 1 and 2: F 3.005, S 3.101 and 3.3, C 3.051
    assert means == {
        (at_4["C"], at_4["F"]): 0.046,
        (at_4["C"], at_4["S"]): -0.05,
        (at_4["C"], "S, lr 0.002"): -0.249,
        (at_4["S"], at_4["F"]): 0.096,
        ("S, lr 0.002", at_4["F"]): 0.295,
    }


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"mixing_lr_multiplier": 8}, "must have the same heads; got C-0.004-None-5500-1, C-"),
        ("model", {"dropout": 0.5}, r"differ in config\.model\.dropout"),
        ("data", {"data-bin/train.bin": "0" * 64}, "all runs must have the same data"),
    ],
)
def test_runs_of_a_setting_have_the_same_model_and_data(section, change, message, tmp_path):
    made = study(tmp_path, NOISE, 0.1 + NOISE, updates=5500)
    assert len(rows.by_setting([load_run(path) for path in made])) == 3
    content = json.loads(made[-1].read_text())
    settings = content["settings"]
    (settings["data"] if section == "data" else settings["config"]["model"]).update(change)
    made[-1].write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        rows.by_setting([load_run(path) for path in made])


def test_selection_needs_both_selection_seeds(tmp_path):
    made = study(tmp_path, NOISE, NOISE)
    better = [record(tmp_path, "F", seed, 3.5, valid=2.9, lr=0.002) for seed in (1, 2)]
    alone = record(tmp_path, "F", 1, 2.0, valid=2.9, lr=0.001)
    text = convergence("selection", *made, *better, alone).stdout
    assert "| F, lr 0.002 | 2.9000 | 2.9000 | 2.9000 | yes |" in text
    assert "| F, lr 0.001 | 2.9000 | – | – |  |" in text
    lower = record(tmp_path, "F", 1, 2.0, valid=2.8, lr=0.001)
    done = convergence("selection", *made, *better, lower, check=False)
    assert (done.returncode, "runs that are missing: F, lr 0.001 with seed 2\n" in done.stderr) == (1, True)
    lower_mean = [record(tmp_path, "F", seed, 2.0, valid=valid, lr=0.008) for seed, valid in ((1, 2.95), (2, 1.0))]
    repeated = record(tmp_path, "F", 2, 2.0, valid=2.9, lr=0.001)
    text = convergence("selection", *made, *better, lower, repeated, *lower_mean).stdout
    assert "| F, lr 0.001 | 2.8000 | 2.9000 | 2.8500 | yes |" in text
    assert "| F, lr 0.008 | 2.9500 | 1.0000 | 1.9750 |  |" in text  # not lower on seed 1: does not take part
    # lower than all of stage 1 is enough, also if another bracketing run is lower still
    second = record(tmp_path, "F", 1, 2.0, valid=2.85, lr=0.008)
    done = convergence("selection", *made, *better, lower, repeated, second, check=False)
    assert (done.returncode, "runs that are missing: F, lr 0.008 with seed 2\n" in done.stderr) == (1, True)
    done = convergence("selection", *made, better[0], check=False)
    assert (done.returncode, "runs that are missing: F, lr 0.002 with seed 2\n" in done.stderr) == (1, True)
    done = convergence("selection", *made, made[0], check=False)
    assert (done.returncode, "is the second run of F, lr 0.004 with seed 1" in done.stderr) == (1, True)


def test_masked_page_has_gain_with_interval(tmp_path):
    noise = numpy.append(NOISE, 0.0015)
    offsets = {"S": 0.1 + noise, "B": 0.05 + noise[::-1], "C": noise * 0}
    made = [record(tmp_path, row, seed, 3 + x) for row, v in offsets.items() for seed, x in enumerate(v, start=1)]
    text = convergence("masked", *made).stdout
    gain = rows.fieller(offsets["S"] - offsets["B"], offsets["S"] - offsets["C"])
    assert f"g = (S − B)/(S − C) = {gain.mean:.2f} [{gain.low:.2f}, {gain.high:.2f}]: **both contribute" in text
    text = convergence("masked", *(path for path in made if not path.stem.endswith("-6"))).stdout
    assert "**undecided: the protocol needs seeds 1, 2, 3, 4, 5, 6; finished: 1, 2, 3, 4, 5**." in text
    assert "both contribute" not in text


def test_t_test_just_rejects_at_fiellers_limits():
    chance = numpy.random.default_rng(3)
    a, b = chance.normal(0.05, 0.01, 6), chance.normal(0.1, 0.01, 6)
    ratio = rows.fieller(a, b)
    assert 0 < ratio.low < ratio.mean < ratio.high < 1
    for limit in (ratio.low, ratio.high):
        assert stats.ttest_1samp(a - limit * b, 0).pvalue == pytest.approx(0.05, abs=1e-9)
    assert rows.fieller(a, chance.normal(0, 1, 6)).high == math.inf


def test_figure_has_both_schedules(tmp_path):
    figure = tmp_path / "x.svg"
    records = [path for updates in (2000, 5500) for path in study(tmp_path, NOISE, NOISE, updates=updates)]
    convergence("figure", *records, "--figure", figure)
    text = figure.read_text()
    for pair in ("C − F", "S − F", "C − S"):
        assert f"{pair}, 2,000 updates" in text
        assert f"{pair}, 5,500 updates" in text
    assert "The first quarter of each schedule is omitted." in text
    records += study(tmp_path, NOISE, NOISE, updates=600)
    done = convergence("figure", *records, "--figure", tmp_path / "three.svg", check=False)
    assert (done.returncode, "at most two lengths; got [5500, 2000, 600] updates" in done.stderr) == (1, True)
    assert not (tmp_path / "three.svg").exists()


def test_figure_shows_results_with_their_bands(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    monkeypatch.setattr(study_pages, "drawing", lambda *_: contextlib.nullcontext(figure))
    files = study(tmp_path, -0.3 + 10 * NOISE, 0.4 + 10 * NOISE[::-1])
    study_pages.draw(rows.by_setting([load_run(path) for path in files]), {}, tmp_path / "x.svg")
    axis = figure.axes[0]
    low, high = axis.get_ylim()
    lines = [line for line in axis.lines if not line.get_label().startswith("_")]
    ends = [line.get_xydata()[-1] for line in lines]
    assert [end[1] for end in ends] == pytest.approx([-0.301, -0.7, 0.399], abs=1e-3)
    for (update, mean), band in zip(ends, axis.collections, strict=True):
        at_end = [y for x, y in band.get_paths()[0].vertices if x == update]
        assert low < min(at_end) < mean < max(at_end) < high
    # the differences of the first quarter, more than four times as large, do not set the limits
    assert min(line.get_xdata()[0] for line in lines) >= 500
    assert low > -3.5


def test_logits_equal_attention_of_layer():
    import torch

    torch.manual_seed(1)
    for heads, key_dim in (("standard", 256), ("collaborative", 32)):
        layer = logits.build(heads, key_dim).double()
        state = torch.get_rng_state()
        scores = logits.logits(layer, 7)
        torch.set_rng_state(state)
        queries, keys = (torch.randn(7, 256, dtype=torch.float64) for _ in range(2))
        _, weights = layer(queries[None], keys[None], keys[None], average_attn_weights=False)
        assert torch.allclose(scores.softmax(dim=-1), weights[0], atol=1e-12)
    shown = logits.markdown(["--layers", "3", "--positions", "30"])
    assert "| standard | 256 | 0.5" in shown or "| standard | 256 | 0.4" in shown

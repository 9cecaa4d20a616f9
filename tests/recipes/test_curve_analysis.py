"""Statistics of the key-dimension studies, compared with independent computations from their records."""

import json
import math
import re

import numpy
import pytest
import torch
from scipy import stats

from collab_fairseq.records import drawing
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.significance import Interval
from fairseq_modern.errors import UserError
from recipes.curve import analysis, figures, seeds
from tests.common import ROOT
from tests.drawn import figures_of, illegible

RUNS = ROOT / "results" / "runs"
LONGER = sorted(map(str, RUNS.glob("curve-*-u5500.json")))
OLDER = [str(path) for row in ("none-dk32", "*-dk32-blocks8") for path in RUNS.glob(f"multi30k-{row}-s?-u4000.json")]
BLIND = ROOT / "results" / "blind_scores.json"


def parts(row, seed, updates=5500, study="curve"):
    """The measured parts of a run, straight from its record."""
    return json.loads((RUNS / f"{study}-{row}-s{seed}-u{updates}.json").read_text())["parts"]


def nll(row, seed, updates=5500, study="curve"):
    sets = [loss for name, loss in parts(row, seed, updates, study)["losses"].items() if name != "valid"]
    return sum(x["nll_loss"] * x["tokens"] for x in sets) / sum(x["tokens"] for x in sets)


def of_seeds(measure, seeds=range(1, 6)):
    """Row → values of the selected settings."""
    return {row: numpy.array([measure(name, seed) for seed in seeds]) for row, name in analysis.SELECTED.items()}


def lines(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]


def t_interval(x, level=0.95):
    return stats.t.interval(level, len(x) - 1, loc=x.mean(), scale=stats.sem(x))


def test_tests_table():
    values = of_seeds(nll)
    text = analysis.markdown(["tests", *LONGER])
    cells = {line[0]: line[1:] for line in lines(text)}
    for one, other in ("CF", "CS", "SF"):
        every = values[one] - values[other]
        for x, cell in zip((every, every[2:]), cells[f"{one} − {other}"], strict=True):
            low, high = t_interval(x)
            assert cell == f"{x.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
    primary = values["C"] - 0.75 * values["F"] - 0.25 * values["S"]
    p = stats.ttest_1samp(primary, 0, alternative="less").pvalue
    assert f"Primary test, C − ¾F − ¼S: {primary.mean():+.4f} [" in text
    assert f"one-sided p = {p:.2g}, n = 5; seeds 3, 4, 5 alone: mean {primary[2:].mean():+.4f}." in text


def test_without_fresh_seeds_there_is_a_dash():
    """Seeds 1 and 2, which selected the settings, are not fresh."""
    text = analysis.markdown(["tests", *(path for path in LONGER if re.search("-s[12]-", path))])
    values = of_seeds(nll, (1, 2))
    table = [line for line in lines(text) if line[0] == "difference" or "−" in line[0]]
    assert table[0] == ["difference", "seeds 1, 2", "seeds –"]
    assert [line[2] for line in table[1:]] == ["–"] * 4
    assert table[1][1].startswith(f"{(values['C'] - values['F']).mean():+.4f} [")
    assert "n = 2.\n" in text


def test_claim_table():
    names = {"F": "none-dk256-lr2", "S": "none-dk32-lr4", "C": "encoder_cross_decoder-dk32-blocks8_lr4"}
    files = sorted(map(str, RUNS.glob("curve-*-u2000.json")))
    text = analysis.markdown(["claim", *files, "--rows", *(f"{row}={name}" for row, name in names.items())])
    f, s, c = (numpy.array([nll(name, seed, 2000) for seed in range(1, 7)]) for name in names.values())
    cells = {line[0]: line[1:] for line in lines(text)}
    quarter, three_quarters = c - 0.75 * f - 0.25 * s, c - 0.25 * f - 0.75 * s
    for name, x in (("S − F", s - f), ("C − ¾F − ¼S", quarter), ("C − ¼F − ¾S", three_quarters)):
        low, high = t_interval(x, 0.9)
        p = stats.ttest_1samp(x, 0, alternative="less").pvalue
        assert cells[name] == [f"{x.mean():+.4f}", f"[{low:+.4f}, {high:+.4f}]", f"{p:.2g}"]
    assert cells["4"] == [f"{values[3]:.4f}" for values in (f, s, c)]


def test_selection_has_the_lowest_mean_of_both_seeds():
    table = lines(analysis.markdown(["selection", *LONGER]))[2:]
    for row in "FSC":
        of_row = [line for line in table if line[0].startswith(row)]
        complete = [line for line in of_row if line[3] != "–"]
        assert [line[4] for line in of_row].count("yes") == 1
        assert min(complete, key=lambda line: float(line[3]))[4] == "yes"


def test_speed_table():
    def early(row, seed):
        return next(p["nll_loss"] for p in parts(row, seed)["curves"]["valid"] if p["updates"] == 660)

    cells = {tuple(line[:2]): line[2:] for line in lines(analysis.markdown(["speed", *LONGER]))}
    for row, name in (("C", "encoder_cross_decoder-dk32-blocks8_"), ("S", "none-dk32-")):
        for rate in (4, 2):
            for measure, cell in zip((early, nll), cells[f"{row} − F", f"0.00{rate}"], strict=True):
                values = [measure(f"{name}lr{rate}", seed) - measure(f"none-dk256-lr{rate}", seed) for seed in (1, 2)]
                assert cell == f"{values[0]:+.3f}, {values[1]:+.3f}"


def test_power_equals_simulation():
    """Contrasts of new seeds with the observed scatter; the control is a share of exactly ¾."""
    values = of_seeds(nll)
    scatter = (values["C"] - 0.75 * values["F"] - 0.25 * values["S"]).std(ddof=1)
    chance = numpy.random.default_rng(1)
    for share in (0.75, 0.78, 0.81):
        mean = (0.75 - share) * (values["S"] - values["F"]).mean()
        drawn = chance.normal(mean, scatter, (100_000, 5))
        rejected = (stats.ttest_1samp(drawn, 0, axis=1, alternative="less").pvalue < 0.05).mean()
        assert analysis.power(values, share) == pytest.approx(rejected, abs=0.006)
    assert analysis.power(values, 0.75) == pytest.approx(0.05)


def test_t_test_just_rejects_at_fiellers_limits():
    chance = numpy.random.default_rng(3)
    a, b = chance.normal(0.05, 0.01, 6), chance.normal(0.1, 0.01, 6)
    ratio = analysis.fieller(a, b)
    assert 0 < ratio.low < ratio.mean < ratio.high < 1
    for limit in (ratio.low, ratio.high):
        assert stats.ttest_1samp(a - limit * b, 0).pvalue == pytest.approx(0.05, abs=1e-9)
    assert analysis.fieller(a, chance.normal(0, 1, 6)).high == math.inf


def test_blind_scores_and_shares():
    scores = json.loads(BLIND.read_text())

    def both(row, seed):
        return scores[f"curve-{row}-s{seed}-u5500"]["both"]["sacreBLEU"]

    def training(row, seed):
        return numpy.mean([p["nll_loss"] for p in parts(row, seed)["curves"]["train"] if p["updates"] > 4500])

    table = lines(analysis.markdown(["blind", *LONGER]))
    line = dict(zip(table[0], next(line for line in table if line[:2] == ["both", "sacreBLEU"]), strict=True))
    values = of_seeds(both)
    low, high = t_interval(values["C"] - values["F"])
    assert line["C − F"] == f"{(values['C'] - values['F']).mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    rows = ["--rows", *(f"{row}={analysis.SELECTED[row]}" for row in "CF")]
    table = lines(analysis.markdown(["differences", *LONGER, *rows]))
    assert dict(zip(*table[::2], strict=True))["sacreBLEU, blind"] == line["C − F"]
    text = analysis.markdown(["shares", *LONGER])
    for name, measure in (("NLL of the training set", training), ("sacreBLEU of both blind", both)):
        line = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
        share, low, high = map(float, re.search(r"(\S+) \[(\S+), (\S+)\] \|$", line).groups())
        values = of_seeds(measure)
        gain, cost = values["S"] - values["C"], values["S"] - values["F"]
        assert share == pytest.approx(gain.mean() / cost.mean(), abs=0.006)
        for limit in (low, high):  # just rejected by a t-test, up to rounding
            around = [stats.ttest_1samp(gain - (limit + step) * cost, 0).pvalue for step in (-0.006, 0.006)]
            assert min(around) < 0.05 < max(around)


def test_differences_in_measures_that_records_have():
    """Older records have neither NLL nor statistics of chrF++; unpublished runs have no blind scores."""
    rows = ["--rows", "C=encoder_cross_decoder-dk32-blocks8", "S=none-dk32"]
    table = lines(analysis.markdown(["differences", *OLDER, *rows]))
    assert table[0] == ["difference", "seeds", "sacreBLEU, pooled", "sacreBLEU, blind", "chrF++, blind"]


def test_pooled_bleu():
    """BLEU of both test sets as one text, by its formula; sacreBLEU's statistics are those of `load`."""
    run = load_run(LONGER[0])
    rows = [scored["sentence_statistics"]["rows"]["sacreBLEU"] for scored in run["scores"].values()]
    sentences = [[int(number) for number in row.split()] for text in rows for row in text.split("; ")]
    lengths = numpy.array([row[0] for row in sentences])
    hypothesis, reference, *matched = numpy.array(sentences).sum(axis=0)
    precisions = [m / numpy.maximum(0, lengths - n).sum() for n, m in enumerate(matched)]
    brevity = min(0.0, 1 - reference / hypothesis)
    bleu = 100 * math.exp(brevity + numpy.log(precisions).mean())
    assert analysis.pooled("sacreBLEU")(run) == pytest.approx(bleu, abs=1e-9)
    singles = [analysis.score_of(test, "sacreBLEU")(run) for test in run["scores"]]
    assert min(singles) < bleu < max(singles)


def quarter(files, **rows):
    names = {row: analysis.SELECTED[name] for row, name in rows.items()}
    return analysis.markdown(["quarter", *files, "--rows", *(f"{row}={name}" for row, name in names.items())])


def test_quarter_table():
    values = of_seeds(nll)
    text = quarter(LONGER, Q="C", F="F", X="S")
    assert lines(text)[4] == ["3", *(f"{values[row][2]:.4f}" for row in "CFS")]
    cost, worth = values["C"] - values["F"], values["S"] - values["C"]
    (low, high), limits = t_interval(cost, 0.9), t_interval(cost)
    assert f"Q − F over seeds 1, 2, 3, 4, 5: {cost.mean():+.4f} [{low:+.4f}, {high:+.4f}], 90 % interval over" in text
    assert f"Outcome: 1/4 is not free: {cost.mean():+.4f} [{low:+.4f}, {high:+.4f}].\n" in text
    wider = [float(limit) for limit in re.search(r"\[(\S+), (\S+)\], 95 % interval over seeds and sen", text).groups()]
    assert wider[0] < limits[0] < limits[1] < wider[1]
    low, high = t_interval(worth)
    assert f"X − Q = {worth.mean():+.4f} [{low:+.4f}, {high:+.4f}], 95 % intervals over 5 seeds. They become" in text
    assert "The paper's stay the default." in quarter(LONGER, Q="C", F="C", X="F")
    files = [path for path in LONGER if "-dk32-blocks8" not in path or "-s1-" in path]
    with pytest.raises(UserError, match="Q and F must have at least 2 seeds in common; got 1"):
        quarter(files, Q="C", F="F")


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.001, 0.0199, "At 1/4 of the key dimension, collaborative heads cost at most 0.02 bits."),
        (0.001, 0.0199, "At 1/4 of the key dimension, collaborative heads cost at most 0.02 bits, and more than 0."),
        (-0.02, -0.001, "At 1/4 of the key dimension, collaborative heads cost at most 0.02 bits (-0.0105 [-0.0200, "),
        (0.0202, 0.03, "1/4 is not free: +0.0251 [+0.0202, +0.0300]."),
        (-0.01, 0.02, "Undecided: +0.0050 [-0.0100, +0.0200]."),
    ],
)
def test_outcomes_of_one_quarter_are_those_of_the_protocol(low, high, words):
    assert analysis.cost_of_a_quarter(Interval((low + high) / 2, low, high)).startswith(words)


def test_runs_of_a_configuration_have_one_model_and_data(tmp_path):
    content = json.loads((RUNS / "curve-none-dk32-lr2-s1-u5500.json").read_text())

    def record(seed, section="model", **changes):
        content["settings"]["seed"] = seed
        before = json.dumps(content)
        sections = {"data": content["settings"]["data"], "losses": content["parts"]["losses"]}
        sections.get(section, content["settings"]["config"]["model"]).update(changes)
        path = tmp_path / f"{seed}{''.join(changes)}.json"
        path.write_text(json.dumps(content))
        content.update(json.loads(before))
        return str(path)

    first, second = record(1), record(2)
    assert list(analysis.configurations([first, second])["none-dk32-lr2"]) == [1, 2]
    short = sorted(map(str, RUNS.glob("curve-none-dk32-lr2-*-u600.json")))
    for files, message in (
        ([first, first], "have the same seed 1"),
        ([first, *short], r"differ in .*config\.optimization\.max_update"),
        ([first, record(2, dropout=0.5)], r"differ in config\.model\.dropout"),
        ([first, record(2, section="data", changed="0" * 64)], "must have the same data"),
        ([first, record(2, section="losses", another={})], "must have losses on the same sets"),
    ):
        with pytest.raises(UserError, match=message):
            analysis.configurations(files)


@pytest.mark.parametrize("table", ["differences", "tests", "selection", "pairs"])
def test_runs_of_a_table_have_one_length(table):
    """Of all rows that it has: those of --rows, if it chooses."""
    long = [path for path in LONGER if re.search("-none-dk32-lr2-|-dk32-blocks8_lr2-", path)]
    short = sorted(map(str, RUNS.glob("curve-none-dk256-lr2-s*-u2000.json")))
    names = {"C": analysis.SELECTED["C"], "F": "none-dk256-lr2", "S": analysis.SELECTED["S"]}
    rows = ["--rows", *(f"{row}={name}" for row, name in names.items())]
    with pytest.raises(UserError, match="must have the same number of updates; got 1,980 and 5,500"):
        analysis.markdown([table, *long, *short, *rows])
    assert analysis.markdown(["differences", *long, *short, *rows[:2], rows[3]])


def test_a_diverged_run_has_no_loss(tmp_path):
    """Records have no losses that are not finite: the table has NaN, also if only the last loss is one."""
    files = [path for path in LONGER if "-dk32-" in path and "lr2" in path and re.search("-s[12]-", path)]
    rows = ["--rows", *(f"{row}={analysis.SELECTED[row]}" for row in "CS")]
    content = json.loads((RUNS / files[0]).read_text())
    for curve in content["parts"]["curves"].values():
        del curve[-1]["nll_loss"]
    (tmp_path / "diverged.json").write_text(json.dumps(content))
    before = lines(analysis.markdown(["during", *files, *rows]))[2]
    after = lines(analysis.markdown(["during", str(tmp_path / "diverged.json"), *files[1:], *rows]))[2]
    assert after[:2] == before[:2]
    assert (before[2] == after[2], after[2]) == (False, "+nan [+nan, +nan]")
    assert math.isnan(analysis.training_nll(load_run(tmp_path / "diverged.json")))
    assert not math.isnan(analysis.training_nll(load_run(files[0])))


def test_logits_equal_attention_of_layer():
    torch.manual_seed(1)
    for heads, key_dim in (("standard", 256), ("collaborative", 32)):
        layer = analysis.build(heads, key_dim).double()
        state = torch.get_rng_state()
        logits = analysis.logits(layer, 7)
        torch.set_rng_state(state)
        queries, keys = (torch.randn(7, 256, dtype=torch.float64) for _ in range(2))
        _, weights = layer(queries[None], keys[None], keys[None], average_attn_weights=False)
        assert torch.allclose(logits.softmax(dim=-1), weights[0], atol=1e-12)


def test_costs_are_paired_by_seed():
    files = [*RUNS.glob("curve_check-*-u2000.json"), *RUNS.glob("curve-none-dk16-lr4-*-u2000.json")]
    costs = figures.costs([load_run(path) for path in files])
    assert costs["standard", 256][0] == pytest.approx((0, 0, 0))
    small, full = (
        numpy.array([nll(row, seed, 2000, study) for seed in (1, 2, 3)])
        for study, row in (("curve", "none-dk16-lr4"), ("curve_check", "none-dk256-lr4"))
    )
    cost, number = costs["standard", 16]
    assert (number, cost.mean) == (3, pytest.approx((small - full).mean()))
    low, high = t_interval(small - full)
    assert cost.low <= low + 1e-9  # also over the sentences
    assert cost.high >= high - 1e-9
    longer = [*RUNS.glob("curve-none-dk32-lr4-s[12]-u5500.json"), *RUNS.glob("curve-none-dk256-lr4-*-u5500.json")]
    for more, message in (
        ([files[0]], "none-dk256-lr4-.* have the same seed"),
        ([RUNS / "curve-none-dk256-lr2-s1-u2000.json"], r"differ in .*config\.optimization\.lr"),
        (longer[:2], "must have the same number of updates; got 1,980 and 5,500"),
    ):
        with pytest.raises(UserError, match=message):
            figures.costs([load_run(path) for path in [*files, *more]])
    assert figures.costs(list(map(load_run, longer)))["standard", 32][1] == 2  # control: of one length


def test_figures_are_legible_in_one_column(tmp_path, monkeypatch):
    """At 3.3 inches, no text is cut off or overlaps; with the panels side by side, some are."""
    pytest.importorskip("matplotlib")
    parts = ("curve_check-*-u2000.json", "curve-none-dk16-lr4-*-u2000.json", "curve-*-dk32-blocks8_lr4-*-u2000.json")
    runs = [str(path) for part in parts for path in sorted(RUNS.glob(part))]
    published = sorted(map(str, (ROOT / "results" / "published").glob("wmt14_en_de-*.json")))
    with figures_of(monkeypatch) as drawn:
        for narrow in (drawing.NARROW, 0):
            monkeypatch.setattr(drawing, "NARROW", narrow)
            figures.draw_costs([*runs, *published], drawing.FigureFile(tmp_path / "cost.pdf", 3.3))
    assert illegible(drawn[0]) == []
    assert "16\n(1/16) 32\n(1/8)" in illegible(drawn[1])


def test_figure_of_training_has_names_instead_of_codes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    files = [*LONGER, *map(str, RUNS.glob("curve_check-*-u2000.json"))]
    files += [str(path) for row in figures.SHORT.values() for path in RUNS.glob(f"curve-{row}-s?-u2000.json")]
    with figures_of(monkeypatch) as drawn:
        figures.draw_training(files, drawing.FigureFile(tmp_path / "training.pdf", 3.3))
    (figure,) = drawn
    assert illegible(figure) == []
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown[:3] == [
        "collaborative 32 − standard 256",
        "collaborative 32 − standard 32",
        "standard 32 − standard 256",
    ]
    rows = [analysis.SELECTED[name] for name in ("C", "F")]
    common = [seed for seed in range(1, 20) if all((RUNS / f"curve-{row}-s{seed}-u5500.json").exists() for row in rows)]
    ends = [[parts(row, seed)["curves"]["valid"][-1]["nll_loss"] for seed in common] for row in rows]
    expected = numpy.mean(ends[0]) - numpy.mean(ends[1])
    assert figure.axes[0].get_lines()[0].get_ydata()[-1] == pytest.approx(expected, abs=1e-9)


def test_seeds_of_one_setting_can_differ():
    files = sorted(map(str, RUNS.glob("curve-none-dk256-scaled062_lr2-*-u5500.json")))
    values = seeds.p_values(files)
    assert [len(of_test) for of_test in values] == [10, 10]
    assert max(sum(p < 0.05 for p in of_test) for of_test in values) == 5

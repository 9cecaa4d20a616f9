"""Print a table of the key-dimension studies: python -m recipes curve analysis TABLE RECORD ...

The pages of this folder have the protocols, and the command of each table above it. TABLE is one of

    claim        losses of each seed; contrasts of C with F and S, with 90 % intervals
    selection    validation NLL of all settings with seeds 1 and 2; the lowest mean of each row is selected
    tests        losses, primary test and differences of the selected settings, for all seeds and for seeds 3 to 5
    pairs        C − F, C − S and S − F for every pair of settings, seeds 1 and 2
    blind        scores of the blind test sets
    shares       (S − C)/(S − F) by several measures
    speed        differences from F in validation NLL at update 660 and in test NLL at the end
    during       differences of all pairs of rows in validation NLL at update 660 and at the last update
    power        power of the primary test if C recovers another share
    masked       design B: losses, and the share of the gain that needs no sharing
    logits       standard deviation of the initial attention logits (no records)
    differences  of all pairs of rows, in test NLL, and in BLEU and chrF++ of both (blind) test sets as one
    quarter      losses of each seed; outcome of Q − F, and of X − Q if there is an X, in the words of quarter.md

A row is a configuration, trained with several seeds: --rows NAME=CONFIGURATION ..., where CONFIGURATION is the name of
its runs without corpus, seed and updates, such as none-dk32-lr2. F: standard heads at the full key dimension; S:
standard heads at 32; C: collaborative heads at 32; B: as C, with a masked mixing matrix. NLL is that of the averaged
checkpoint in bits per token; test NLL covers all test sets. Rows are compared by the seeds that both have.
"""

import argparse
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy
import torch
from numpy import ndarray
from scipy import stats

from collab_fairseq.attention import AttentionLayer, CollaborativeAttention, StandardAttention
from collab_fairseq.records import pages
from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.rows import TrainingRecord, frame, load_run, logits_factor
from collab_fairseq.records.scores import ALL, list_test_sets, over_runs, score
from collab_fairseq.scoring.significance import Interval, interval
from collab_fairseq.scoring.sufficient_statistics import SCORES, load
from fairseq_modern.errors import UserError

Name = TypeVar("Name")
#: seed → run
Runs = Dict[int, TrainingRecord]
#: row → seed → run
Rows = Dict[str, Runs]
#: row → its value for each seed
Values = Mapping[str, ndarray]
Measure = Callable[[TrainingRecord], float]

#: the rows that the convergence study selected
SELECTED = {"F": "none-dk256-scaled062_lr2", "S": "none-dk32-lr2", "C": "encoder_cross_decoder-dk32-blocks8_lr2"}
#: heads and key dimension → row
LETTERS = {"none-dk256": "F", "none-dk32": "S", "encoder_cross_decoder-dk32": "C"}
PAIRS = (("C", "F"), ("C", "S"), ("S", "F"))
SELECTION_SEEDS = (1, 2)
EARLY = 660  # the update at which the study of 2,000 updates compared learning curves
LAST_UPDATES = 1000
#: largest cost in bits per token of "one quarter is free", quarter.md
MARGIN = 0.02
BLIND_SCORES = Path(__file__).resolve().parents[2] / "results/blind_scores.json"
BLIND = {"blind_2017_mscoco": "2017 mscoco", "blind_2018_flickr": "2018 flickr", "both": "both"}
BLEU, CHRF = METRICS["sacrebleu"], METRICS["chrf++"]


# Rows and measures


def configurations(paths: Sequence[str]) -> Rows:
    """Configuration → seed → run.

    Raises:
        UserError: runs with different data or test sets; of one configuration, with the same seed or other settings.
    """
    runs = list(map(load_run, paths))
    if any(run["data"] != runs[0]["data"] for run in runs):
        raise UserError("all runs must have the same data; got different checksums")
    found = by_seed(runs, lambda run: re.sub(r"^[^-]*-|-s\d+-u\d+$", "", run["name"]))
    if len({frozenset(run["losses"]) for run in runs if run.get("losses")}) > 1:
        raise UserError("all runs must have losses on the same sets; got different sets")
    return found


def by_seed(runs: Sequence[TrainingRecord], name: Callable[[TrainingRecord], Name]) -> Dict[Name, Runs]:
    """Name → seed → run.

    Raises:
        UserError: runs of one name have the same seed or different settings.
    """
    found: Dict[Name, List[TrainingRecord]] = {}
    for run in runs:
        found.setdefault(name(run), []).append(run)
    for of_name in found.values():
        frame(of_name, ())  # raises unless they differ in the seed only
    return {row: dict(sorted((run["seed"], run) for run in of_name)) for row, of_name in found.items()}


def choose(found: Rows, names: Mapping[str, str]) -> Rows:
    """Row → its runs, which have one length, from row → configuration."""
    rows = {row: found[name] for row, name in names.items()}
    check_length(run for runs in rows.values() for run in runs.values())
    return rows


def check_length(runs: Iterable[TrainingRecord]) -> None:
    """Raise UserError unless all runs have the same number of updates."""
    lengths = sorted({run["training"]["updates"] for run in runs})
    if len(lengths) > 1:
        got = " and ".join(f"{length:,}" for length in lengths)
        raise UserError(f"runs that are compared must have the same number of updates; got {got}")


def seeds_of(rows: Rows) -> List[int]:
    """The seeds that all rows have."""
    return sorted(set.intersection(*map(set, rows.values())))


def measured(rows: Rows, measure: Measure, seeds: Optional[Sequence[int]] = None) -> Values:
    """A measure of each row and seed (default: all common seeds)."""
    seeds = seeds_of(rows) if seeds is None else seeds
    return {row: numpy.array([measure(runs[seed]) for seed in seeds]) for row, runs in rows.items()}


def test_nll(run: TrainingRecord) -> float:
    return float(score(run, ALL, METRICS["nll"]))  # type: ignore[arg-type]


def valid_nll(run: TrainingRecord) -> float:
    return float(run["losses"]["valid"]["nll_loss"])


def training_nll(run: TrainingRecord) -> float:
    """Mean of the last updates during training, with dropout and changing weights."""
    curve = during(run, "train")
    return float(numpy.mean([nll for updates, nll in curve.items() if updates > max(curve) - LAST_UPDATES]))


def score_of(test: str, metric: str) -> Measure:
    """The score of a test set."""

    def measure(run: TrainingRecord) -> float:
        value = score(run, test, metric)
        return math.nan if value is None else value

    return measure


def pooled(metric: str) -> Measure:
    """The score of all test sets as one, from the statistics of their sentences; NaN without them."""

    def measure(run: TrainingRecord) -> float:
        rows = [scored["sentence_statistics"]["rows"].get(metric) for scored in run["scores"].values()]
        if None in rows:
            return math.nan
        sums = sum(load(text, metric).sum(axis=0, keepdims=True) for text in rows)
        return float(SCORES[metric](numpy.asarray(sums))[0])

    return measure


def blind_score(file: str, test: str, metric: str) -> Measure:
    """A score of a blind test set, from a JSON file: name of a record's file → test set → metric → score, or NaN."""
    with open(file, encoding="utf-8") as stream:
        scores = json.load(stream)
    return lambda run: float(scores.get(Path(run["path"]).stem, {}).get(test, {}).get(metric, math.nan))


def during(run: TrainingRecord, curve: str = "valid") -> Dict[int, float]:
    """Update → NLL during training; NaN if it was not finite, which records omit."""
    return {point["updates"]: point.get("nll_loss", math.nan) for point in run["curves"][curve]}


# Statistics


def difference(values: Values, one: str, other: str) -> ndarray:
    """One row minus another, for each seed."""
    return numpy.asarray(values[one] - values[other])


def contrast(values: Values, margin: float = 0.25) -> ndarray:
    """C − (1 − margin) F − margin S for each seed: below 0 if C loses less than this share of what S loses."""
    return numpy.asarray(values["C"] - (1 - margin) * values["F"] - margin * values["S"])


def fieller(numerators: ndarray, denominators: ndarray) -> Interval:
    """Ratio of two means over the same seeds, with Fieller's 95 % interval.

    E. C. Fieller (1954), "Some problems in interval estimation", JRSS B 16(2). For means a and b with covariance matrix
    V, the limits r solve (a − r b)² = t² (V_aa − 2 r V_ab + r² V_bb). They are infinite if b is not distinguishable
    from 0.
    """
    n, a, b = len(numerators), numerators.mean(), denominators.mean()
    (v_aa, v_ab), (_, v_bb) = numpy.cov(numerators, denominators) / n
    t2 = stats.t.ppf(0.975, n - 1) ** 2
    squared, linear, constant = b * b - t2 * v_bb, a * b - t2 * v_ab, a * a - t2 * v_aa
    if squared <= 0:
        return Interval(a / b, -math.inf, math.inf)
    root = math.sqrt(max(0.0, linear * linear - squared * constant))
    return Interval(a / b, (linear - root) / squared, (linear + root) / squared)


def power(values: Values, share: float) -> float:
    """Power of the one-sided t-test of the contrast at the 5 % level, if C recovers this share of S − F.

    S − F and the scatter of the contrast are those observed.
    """
    observed, n = contrast(values), len(values["C"])
    effect = (share - 0.75) * difference(values, "S", "F").mean() / stats.sem(observed)
    return float(stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, effect))


# Cells and tables


def shown(values: ndarray, decimals: int = 4, level: float = 0.95) -> str:
    """Mean and t-interval over the seeds; a dash for a single seed."""
    if len(values) < 2:
        return "–"
    return interval(values.tolist(), level=level).text(decimals, "+")


def recovered(values: Values) -> str:
    """(S − C)/(S − F), the share of the cost that collaborative heads recover; a dash for a single seed."""
    if len(values["S"]) < 2:
        return "–"
    return fieller(difference(values, "S", "C"), difference(values, "S", "F")).text(2)


def each(values: ndarray, decimals: int = 3) -> str:
    """The values of single seeds."""
    return ", ".join(f"{value:+.{decimals}f}" for value in values)


def listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def setting(name: str, runs: Mapping[int, TrainingRecord]) -> Tuple[str, float, float]:
    """Row, learning rate and factor on the logits of a configuration."""
    run = next(iter(runs.values()))
    row = LETTERS.get(name.rpartition("-")[0], name)
    return row, run["config"]["optimization"]["lr"][0], logits_factor(run["config"]["model"])


def label(name: str, runs: Mapping[int, TrainingRecord]) -> str:
    """A configuration in words."""
    row, lr, factor = setting(name, runs)
    return f"{row}, lr {lr:g}" + ("" if factor == 1 else f", logits × {factor:g}")


def losses_table(rows: Rows) -> str:
    """Test NLL of each seed that a row has."""
    table = [["seed", *rows]]
    for seed in sorted(set.union(*map(set, rows.values()))):
        table.append([str(seed), *(f"{test_nll(runs[seed]):.4f}" if seed in runs else "–" for runs in rows.values())])
    return pages.table(table, numbers=True)


def claim(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    values = measured(rows, test_nll)
    table = [["contrast", "mean", "90 % interval", "p (below 0)"]]
    contrasts = {
        "S − F": difference(values, "S", "F"),
        "C − ¾F − ¼S": contrast(values),
        "C − ¼F − ¾S": contrast(values, margin=0.75),
    }
    for name, of_seeds in contrasts.items():
        mean, limits = shown(of_seeds, level=0.9).split(" ", 1)
        p = stats.ttest_1samp(of_seeds, 0.0, alternative="less").pvalue
        table.append([name, mean, limits, f"{p:.2g}"])
    return f"{losses_table(rows)}\n\n{pages.table(table, numbers=True)}"


def selection(found: Rows, args: argparse.Namespace) -> str:
    table = [["setting", *(f"seed {seed}" for seed in SELECTION_SEEDS), "mean", "selected"]]
    means: Dict[str, Dict[str, float]] = {}
    for name, runs in choose(found, {name: name for name in found}).items():
        if all(seed in runs for seed in SELECTION_SEEDS):
            nll = measured({name: runs}, valid_nll, SELECTION_SEEDS)[name]
            means.setdefault(setting(name, runs)[0], {})[name] = float(nll.mean())
    selected = {min(of_row, key=of_row.__getitem__) for of_row in means.values()}
    for name, runs in sorted(found.items(), key=lambda item: setting(*item)):
        cells = [f"{valid_nll(runs[seed]):.4f}" if seed in runs else "–" for seed in SELECTION_SEEDS]
        mean = means.get(setting(name, runs)[0], {}).get(name)
        cells.append("–" if mean is None else f"{mean:.4f}")
        table.append([label(name, runs), *cells, "yes" if name in selected else ""])
    return pages.table(table, numbers=True)


def tests(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    seeds = seeds_of(rows)
    fresh = [seed for seed in seeds if seed not in SELECTION_SEEDS]
    values, later = measured(rows, test_nll), measured(rows, test_nll, fresh)
    table = [["difference", f"seeds {listed(seeds)}", f"seeds {listed(fresh) or '–'}"]]
    table += [[f"{a} − {b}", *(shown(difference(some, a, b)) for some in (values, later))] for a, b in PAIRS]
    table.append(["(S − C)/(S − F)", recovered(values), recovered(later)])
    p = stats.ttest_1samp(contrast(values), 0.0, alternative="less").pvalue
    alone = f"; seeds {listed(fresh)} alone: mean {contrast(later).mean():+.4f}" if fresh else ""
    paragraphs = [
        _selected(rows, args),
        losses_table(rows),
        f"Primary test, C − ¾F − ¼S: {shown(contrast(values))}, one-sided p = {p:.2g}, n = {len(seeds)}{alone}.",
        pages.table(table, numbers=True),
    ]
    return "\n\n".join(paragraphs)


def _selected(rows: Rows, args: argparse.Namespace) -> str:
    return f"Selected: {'; '.join(label(args.rows[row], runs) for row, runs in rows.items())}."


def pairs(found: Rows, args: argparse.Namespace) -> str:
    complete = choose(found, {n: n for n, runs in found.items() if all(seed in runs for seed in SELECTION_SEEDS)})
    values = measured(complete, test_nll, SELECTION_SEEDS)
    table = [["setting", "compared with", f"difference in test NLL, seeds {' and '.join(map(str, SELECTION_SEEDS))}"]]
    ordered = sorted(complete, key=lambda name: setting(name, complete[name]))
    for one, other in itertools.product(ordered, ordered):
        if (setting(one, complete[one])[0], setting(other, complete[other])[0]) in PAIRS:
            names = [label(name, complete[name]) for name in (one, other)]
            table.append([*names, shown(difference(values, one, other))])
    return pages.table(table, numbers=True)


def blind(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    with_default = choose(found, {**args.rows, "F1": "none-dk256-lr2"})  # F without the factor on its logits
    table = [["blind test set", "score", *rows, *(f"{a} − {b}" for a, b in PAIRS)]]
    without = [["blind test set", "score", f"C − F1, seeds {listed(SELECTION_SEEDS)}", "F − F1"]]
    for metric, (test, name) in itertools.product((BLEU, CHRF), BLIND.items()):
        measure = blind_score(args.blind, test, metric)
        values = measured(rows, measure)
        means = [f"{of_row.mean():.2f}" for of_row in values.values()]
        table.append([name, metric, *means, *(shown(difference(values, a, b), decimals=2) for a, b in PAIRS)])
        values = measured(with_default, measure, SELECTION_SEEDS)
        without.append([name, metric, *(each(difference(values, row, "F1"), decimals=2) for row in "CF")])
    paragraphs = [
        f"{_selected(rows, args)} Seeds {listed(seeds_of(rows))}.",
        pages.table(table, numbers=True),
        f"F1, F without the factor on its logits: {label('none-dk256-lr2', with_default['F1'])}.",
        pages.table(without, numbers=True),
    ]
    return "\n\n".join(paragraphs)


def shares(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    runs = [run for of_row in rows.values() for run in of_row.values()]
    measures = {
        f"NLL of the training set, last {LAST_UPDATES:,} updates, with dropout": training_nll,
        "NLL of the validation set": valid_nll,
        "NLL of both test sets": test_nll,
        **{f"{BLEU} of {test}": score_of(test, BLEU) for test in list_test_sets(runs)},
        f"{BLEU} of both blind test sets": blind_score(args.blind, "both", BLEU),
    }
    table = [["measure", *rows, "(S − C)/(S − F)"]]
    for name, measure in measures.items():
        values = measured(rows, measure)
        means = [f"{of_row.mean():.{2 if BLEU in name else 3}f}" for of_row in values.values()]
        table.append([name, *means, recovered(values)])
    return pages.table(table, numbers=True)


def speed(found: Rows, args: argparse.Namespace) -> str:
    table = [["difference", "learning rate", f"validation NLL at update {EARLY}", "test NLL at the end"]]
    for rate in (4, 2):
        names = {
            "F, logits × 0.62": f"none-dk256-scaled062_lr{rate}",
            "S": f"none-dk32-lr{rate}",
            "C": f"encoder_cross_decoder-dk32-blocks8_lr{rate}",
        }
        rows = choose(found, {"F": f"none-dk256-lr{rate}", **names})
        early = measured(rows, lambda run: during(run)[EARLY], SELECTION_SEEDS)
        late = measured(rows, test_nll, SELECTION_SEEDS)
        for row in names:
            cells = [each(difference(values, row, "F")) for values in (early, late)]
            table.append([f"{row} − F", f"{rate / 1000:g}", *cells])
    rows = choose(found, args.rows)
    differences = differences_during(rows, "C", "F")
    ahead = sum(float(of_update.mean()) > 0 for of_update in differences.values())
    about = (
        f"Seeds {listed(SELECTION_SEEDS)}, F without the factor. Mean of {len(seeds_of(rows))} seeds of the selected "
        f"settings: the validation NLL of C is above that of F at {ahead} of {len(differences)} validations."
    )
    return f"{pages.table(table, numbers=True)}\n\n{about}"


def differences_during(rows: Rows, one: str, other: str) -> Dict[int, ndarray]:
    """Update → difference of two rows in validation NLL during training, for each seed that all rows have."""
    curves = {row: [during(rows[row][seed]) for seed in seeds_of(rows)] for row in (one, other)}
    updates = sorted(set.intersection(*(set(curve) for of_row in curves.values() for curve in of_row)))
    return {
        update: numpy.array([a[update] - b[update] for a, b in zip(*curves.values(), strict=True)])
        for update in updates
    }


def during_training(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    table = [["difference in validation NLL", f"update {EARLY}", "last update"]]
    for one, other in itertools.combinations(rows, 2):
        by_update = differences_during({row: rows[row] for row in (one, other)}, one, other)
        table.append([f"{one} − {other}", shown(by_update[EARLY]), shown(by_update[max(by_update)])])
    return pages.table(table, numbers=True)


def power_table(found: Rows, args: argparse.Namespace) -> str:
    values = measured(choose(found, args.rows), test_nll)
    table = [["share that C recovers", "power"]]
    table += [[f"{share:.2f}", f"{power(values, share):.2f}"] for share in (0.75, 0.78, 0.81, 0.84)]
    return pages.table(table, numbers=True)


def masked(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    values = measured(rows, test_nll)
    no_sharing, gain = difference(values, "S", "B"), difference(values, "S", "C")
    g = fieller(no_sharing, gain)
    lines = [
        f"S − B: {shown(no_sharing)}; B − C: {shown(difference(values, 'B', 'C'))}.",
        f"g = (S − B)/(S − C) = {g.text(2)}.",
    ]
    return "\n\n".join([losses_table(rows), *lines])


def differences(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)
    measures = {"test NLL": score_of(ALL, METRICS["nll"])}
    for metric in (BLEU, CHRF):
        measures[f"{metric}, pooled"] = pooled(metric)
        measures[f"{metric}, blind"] = blind_score(args.blind, "both", metric)
    pairs_of_rows = list(itertools.combinations(rows, 2))
    seeds = [seeds_of({row: rows[row] for row in pair}) for pair in pairs_of_rows]
    columns = [["difference", *(f"{one} − {other}" for one, other in pairs_of_rows)], ["seeds", *map(listed, seeds)]]
    for name, measure in measures.items():
        values = {row: {seed: measure(run) for seed, run in of_row.items()} for row, of_row in rows.items()}
        if all(math.isnan(value) for of_row in values.values() for value in of_row.values()):
            continue
        decimals = 4 if name == "test NLL" else 2
        column = [name]
        for (one, other), common in zip(pairs_of_rows, seeds, strict=True):
            column.append(shown(numpy.array([values[one][seed] - values[other][seed] for seed in common]), decimals))
        columns.append(column)
    return pages.table([list(line) for line in zip(*columns, strict=True)], numbers=True)


def cost_of_a_quarter(q_minus_f: Interval) -> str:
    """The outcome in the words of the protocol, for the 90 % interval over the seeds."""
    limits = q_minus_f.text(4, "+")
    if q_minus_f.low > MARGIN:
        return f"1/4 is not free: {limits}."
    if q_minus_f.high >= MARGIN:
        return f"Undecided: {limits}."
    cost = f"At 1/4 of the key dimension, collaborative heads cost at most {MARGIN:g} bits"
    if q_minus_f.low > 0:
        return f"{cost}, and more than 0."
    return f"{cost} ({limits})." if q_minus_f.high < 0 else f"{cost}."


def quarter(found: Rows, args: argparse.Namespace) -> str:
    rows = choose(found, args.rows)

    def test_nlls(one: str, other: str) -> ndarray:
        return difference(measured(choose(rows, {one: one, other: other}), test_nll), one, other)

    cost, seeds = test_nlls("Q", "F"), [seed for seed in rows["Q"] if seed in rows["F"]]
    if len(seeds) < 2:
        raise UserError(f"Q and F must have at least 2 seeds in common; got {listed(seeds) or 'none'}")
    sides = ([rows[row][seed] for seed in seeds] for row in "QF")
    with_sentences, _ = over_runs(*sides, test=ALL, metric=METRICS["nll"])
    paragraphs = [
        losses_table(rows),
        f"Q − F over seeds {listed(seeds)}: {shown(cost, level=0.9)}, 90 % interval over the seeds; "
        f"{with_sentences.text(4, '+')}, 95 % interval over seeds and sentences.",
        f"Outcome: {cost_of_a_quarter(interval(cost.tolist(), level=0.9))}",
    ]
    if "X" in rows and len(worth := test_nlls("X", "Q")) > 1:
        default = "They become the default." if interval(worth.tolist()).low > 0 else "The paper's stay the default."
        paragraphs.append(
            f"As in the paper, X − F = {shown(test_nlls('X', 'F'))}; our initialisation, mixing and multiplier "
            f"together are worth X − Q = {shown(worth)}, 95 % intervals over {len(worth)} seeds. {default}"
        )
    return "\n\n".join(paragraphs)


# Initial attention logits

EMBED_DIM, HEADS, LAYERS, POSITIONS = 256, 8, 50, 100


def build(heads: str, key_dim: int) -> AttentionLayer:
    """An initialised layer as in the studies."""
    if heads == "standard":
        return StandardAttention(EMBED_DIM, HEADS, key_dim)
    return CollaborativeAttention(EMBED_DIM, HEADS, key_dim, mixing="blocks", mixing_lr_multiplier=8)


def logits(layer: AttentionLayer, positions: int) -> torch.Tensor:
    """Logits (H, T, T) of H heads for T independent Gaussian queries and keys, in float64."""
    maps = layer.head_maps()
    ones = torch.ones(positions, 1, dtype=torch.float64)
    # the last input is 1, for the biases
    queries, keys = (torch.cat([torch.randn(positions, EMBED_DIM, dtype=torch.float64), ones], dim=1) for _ in range(2))
    return layer.scale * torch.einsum("te,hwe,hwf,sf->hts", queries, maps.query, maps.key, keys)


@torch.no_grad()
def logits_table(found: Rows, args: argparse.Namespace) -> str:
    torch.manual_seed(1)
    table = [["heads", "key dimension", "standard deviation of the logits"]]
    for heads, key_dims in {"standard": (256, 64, 32, 16), "collaborative": (64, 32)}.items():
        for key_dim in key_dims:
            values = torch.stack([logits(build(heads, key_dim), POSITIONS) for _ in range(LAYERS)])
            table.append([heads, str(key_dim), f"{float(values.std()):.2f}"])
    return pages.table(table, numbers=True)


TABLES: Dict[str, Any] = {
    **{table.__name__: table for table in (claim, selection, tests, pairs, blind, shares, speed, masked)},
    **{table.__name__: table for table in (differences, quarter)},
    "during": during_training,
    "power": power_table,
    "logits": logits_table,
}


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The table that these arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES, metavar="TABLE")
    parser.add_argument("records", nargs="*", metavar="RECORD")
    text = "rows (default: F, S and C as selected by the convergence study)"
    pair = "NAME=CONFIGURATION"
    parser.add_argument("--rows", nargs="+", type=lambda word: word.split("=", 1), metavar=pair, help=text)
    text = "scores of the blind test sets (default: results/blind_scores.json)"
    parser.add_argument("--blind", default=BLIND_SCORES, metavar="FILE", help=text)
    args = parser.parse_args(arguments)
    args.rows = dict(args.rows) if args.rows else SELECTED
    return str(TABLES[args.table](configurations(args.records), args)) + "\n"

"""Rows, settings, selection and statistics of the convergence study, for convergence.py."""

import itertools
import math
from statistics import fmean
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from scipy import stats

from collab_fairseq.records import key_dim_study
from collab_fairseq.records.rows import TrainingRecord, frame, is_collaborative, key_dim, logits_factor
from collab_fairseq.scoring.significance import Interval, interval
from fairseq_modern.errors import UserError

FULL, SMALL = 256, 32
ROWS = {
    ("standard", FULL): "F",
    ("standard", SMALL): "S",
    ("collaborative", SMALL): "C",
    ("masked", SMALL): "B",
}
SELECTION_SEEDS = (1, 2)
TEST_SEEDS = (1, 2, 3, 4, 5)
MASKED_SEEDS = (1, 2, 3, 4, 5, 6)
#: pairs of rows whose difference the protocol asks for
PAIRS = (("C", "F"), ("C", "S"), ("S", "F"))
UPDATES, MASKED_UPDATES = 5500, 2000
MARGIN = 0.25  # the claim: at most this share of the cost of the reduced key dimension for standard heads
ALPHA = 0.05
AFTER = "after 40 epochs"
EARLY = 660  # the update at which the study of 2,000 updates compared learning curves


class Setting(NamedTuple):
    """A row with its learning rate and the factor on the default scale of the attention logits."""

    row: str
    lr: float
    factor: float

    def __str__(self) -> str:
        scaled = "" if self.factor == 1 else f", logits × {self.factor:g}"
        return f"{self.row}, lr {self.lr:g}{scaled}"


Settings = Dict[Setting, Dict[int, TrainingRecord]]

#: the other settings are bracketing runs
STAGE_1 = (*(Setting(row, lr, 1.0) for row in "FSC" for lr in (0.002, 0.004)), Setting("F", 0.004, 0.62))


def setting_of(run: TrainingRecord) -> Setting:
    """The setting of a run; raises UserError if the run is not part of the study."""
    model = run["config"]["model"]
    heads = "collaborative" if is_collaborative(run) else "standard"
    if "recipe.training_module" in run.get("files", {}):
        heads = "masked"
    row = ROWS.get((heads, key_dim(model, "encoder")))
    if row is None:
        rows = ", ".join(f"{' '.join(map(str, row))}" for row in ROWS)
        raise UserError(f"the heads and key dimension of {run['name']} must be one of {rows}")
    return Setting(row, run["config"]["optimization"]["lr"][0], logits_factor(model))


def by_setting(runs: Sequence[TrainingRecord]) -> Settings:
    """Setting → seed → run.

    Raises:
        UserError: two runs of one setting have the same seed or different models, or runs differ in length or data.
    """
    settings: Settings = {}
    for run in runs:
        seeds = settings.setdefault(setting_of(run), {})
        if run["seed"] in seeds:
            raise UserError(f"{run['name']} is the second run of {setting_of(run)} with seed {run['seed']}")
        seeds[run["seed"]] = run
    lengths = sorted({length_of(run) for run in runs})
    if len(lengths) != 1:
        raise UserError(f"all runs must have the same length; got {lengths} updates")
    if any(run["data"] != runs[0]["data"] for run in runs):
        raise UserError("all runs must have the same data; got different checksums")
    for setting, by_seed in settings.items():
        if frame(list(by_seed.values()), ("heads", "key_dim"))["row"].nunique() > 1:  # raises for different settings
            names = ", ".join(run["name"] for run in by_seed.values())
            raise UserError(f"runs of {setting} must have the same heads; got {names}")
    return {setting: dict(sorted(settings[setting].items())) for setting in sorted(settings)}


def length_of(run: TrainingRecord) -> int:
    """Number of updates of the learning-rate schedule."""
    return int(run["config"]["optimization"]["max_update"])


def valid_nll(run: TrainingRecord) -> float:
    return float(run["losses"]["valid"]["nll_loss"])


def select(settings: Settings) -> Dict[str, Setting]:
    """Row → setting with the lowest mean validation NLL over the selection seeds, among those that take part.

    Raises:
        UserError: a setting that takes part lacks a selection seed, or a row has no such setting.
    """
    candidates = {setting: runs for setting, runs in settings.items() if takes_part(setting, settings)}
    missing = _missing(itertools.product(candidates, SELECTION_SEEDS), settings)
    if missing:
        raise UserError(f"the selection needs runs that are missing: {'; '.join(missing)}")
    means: Dict[str, List[Tuple[float, Setting]]] = {"F": [], "S": [], "C": []}
    for setting, runs in candidates.items():
        mean = sum(valid_nll(runs[seed]) for seed in SELECTION_SEEDS) / len(SELECTION_SEEDS)
        means[setting.row].append((mean, setting))
    empty = [row for row, of_row in means.items() if not of_row]
    if empty:
        raise UserError(f"row {empty[0]} has no setting with seeds {listed(SELECTION_SEEDS)}")
    return {row: min(of_row)[1] for row, of_row in means.items()}


def takes_part(setting: Setting, settings: Settings) -> bool:
    """Whether a setting takes part in the selection.

    Settings of stage 1 do. A bracketing run does if its validation NLL with the first seed is lower than that of all
    settings of stage 1 in its row.
    """
    if setting in STAGE_1:
        return True
    first = SELECTION_SEEDS[0]
    if setting.row == "B" or first not in settings[setting]:
        return False
    nll = valid_nll(settings[setting][first])
    rivals = [other for other in STAGE_1 if other.row == setting.row and first in settings.get(other, {})]
    return all(nll < valid_nll(settings[other][first]) for other in rivals)


def missing_runs(settings: Settings) -> List[str]:
    """The runs of stage 1 and of bracketing that the protocol asks for and that are not in `settings`, as text."""
    first = SELECTION_SEEDS[0]
    needed = [(setting, seed) for setting in STAGE_1 for seed in SELECTION_SEEDS]
    needed += [(Setting("F", lr, 1.0), first) for lr in (0.001, 0.008)]
    for row in "FSC":
        rates = [settings.get(Setting(row, lr, 1.0), {}) for lr in (0.002, 0.004)]
        if all(first in runs for runs in rates):
            low, high = (valid_nll(runs[first]) for runs in rates)
            if row != "F":
                needed.append((Setting(row, 0.001 if low < high else 0.008, 1.0), first))
            elif low < high:
                needed.append((Setting("F", 0.002, 0.62), first))
    return _missing(needed, settings)


def _missing(needed: Iterable[Tuple[Setting, int]], settings: Settings) -> List[str]:
    return [f"{setting} with seed {seed}" for setting, seed in needed if seed not in settings.get(setting, {})]


def listed(seeds: Sequence[int]) -> str:
    """Seeds as text."""
    return ", ".join(map(str, seeds)) or "none"


def fieller(numerators: Sequence[float], denominators: Sequence[float], level: float = 0.95) -> Interval:
    """Ratio of two means over the same seeds, with Fieller's interval.

    E. C. Fieller (1954), "Some problems in interval estimation", JRSS B 16(2). For means a and b with variances v_aa
    and v_bb and covariance v_ab, the limits r solve (a − r b)² = t² (v_aa − 2 r v_ab + r² v_bb). They are infinite if b
    is not distinguishable from 0.
    """
    n = len(numerators)
    a, b = sum(numerators) / n, sum(denominators) / n
    pairs = [(x - a, y - b) for x, y in zip(numerators, denominators, strict=True)]
    v_aa = sum(x * x for x, _ in pairs) / (n - 1) / n
    v_ab = sum(x * y for x, y in pairs) / (n - 1) / n
    v_bb = sum(y * y for _, y in pairs) / (n - 1) / n
    t2 = float(stats.t.ppf((1 + level) / 2, n - 1)) ** 2
    squared, linear, constant = b * b - t2 * v_bb, a * b - t2 * v_ab, a * a - t2 * v_aa
    if squared <= 0:
        return Interval(a / b, -math.inf, math.inf)
    root = math.sqrt(max(0.0, linear * linear - squared * constant))
    return Interval(a / b, (linear - root) / squared, (linear + root) / squared)


def shown(values: Sequence[float], decimals: int = 4) -> str:
    """Mean and 95 % t-interval over seeds as text."""
    mean, low, high = (f"{number:+.{decimals}f}" for number in interval(values))
    return f"{mean} [{low}, {high}]"


def numbers(values: Sequence[float], decimals: int = 3) -> str:
    """Differences of single seeds as text."""
    return ", ".join(f"{value:+.{decimals}f}" for value in values)


def losses(runs: Dict[str, Dict[int, TrainingRecord]], seeds: Sequence[int]) -> Dict[str, List[float]]:
    """Row → test NLL of each seed."""
    return {row: [key_dim_study.loss(by_seed[seed]) for seed in seeds] for row, by_seed in runs.items()}


def differences(nll: Dict[str, List[float]], one: str, other: str) -> List[float]:
    """NLL of one row minus that of another, per seed."""
    return [x - y for x, y in zip(nll[one], nll[other], strict=True)]


def contrast(nll: Dict[str, List[float]]) -> List[float]:
    """C − ¾F − ¼S per seed."""
    return [c - (1 - MARGIN) * f - MARGIN * s for f, s, c in zip(nll["F"], nll["S"], nll["C"], strict=True)]


def common_seeds(rows: Dict[str, Dict[int, TrainingRecord]]) -> List[int]:
    """The seeds that all rows have; raises UserError if there are fewer than two."""
    seeds = sorted(set.intersection(*map(set, rows.values())))
    if len(seeds) < 2:
        raise UserError(f"rows {', '.join(rows)} must have two common seeds; got {seeds}")
    return seeds


def recovered(nll: Dict[str, List[float]]) -> str:
    """(S − C)/(S − F) with its 95 % interval, the share of the cost that collaborative heads recover."""
    share = fieller(differences(nll, "S", "C"), differences(nll, "S", "F"))
    return f"{share.mean:.2f} [{share.low:.2f}, {share.high:.2f}]"


def outcome(nll: Dict[str, List[float]], selected: Setting, claim: bool) -> List[str]:
    """The applicable sentences of the table of outcomes in the protocol."""
    c_f, c_s, s_f = (interval(differences(nll, *pair)) for pair in PAIRS)
    if s_f.low <= 0:
        return [
            f"{AFTER}, this corpus cannot tell: a reduced key dimension does not measurably hurt standard heads either"
        ]
    sentences = []
    if selected.factor != 1:
        sentences.append(
            "a smaller scale of the initial logits explains at least part of why models with a reduced key dimension "
            "learned faster"
        )
    if claim and c_f.high < 0:
        sentences.append(
            f"{AFTER}, collaborative heads at 1/8 of the key dimension are better than standard heads at the tuned "
            "full key dimension"
        )
    elif claim and c_f.low <= 0:
        cost = shown(differences(nll, "C", "F"))
        sentences.append(
            f"{AFTER}, 1/8 of the key dimension costs collaborative heads nothing measurable (C − F: {cost})"
        )
    elif claim:
        sentences.append(
            f"{AFTER}, 1/8 of the key dimension costs collaborative heads at most a quarter of what it costs standard "
            "heads; the earlier lead over the full key dimension was speed of learning"
        )
    elif c_s.high < 0:
        share = recovered(nll)
        sentences.append(
            f"{AFTER}, collaborative heads recover {share} of what the reduced key dimension costs standard heads"
        )
    else:
        sentences.append("the gain of collaborative heads was speed of learning; it is limited to short runs")
    if not claim and c_f.low > 0:
        sentences.append("the earlier lead over the full key dimension was speed of learning")
    return sentences


def corrections(settings: Settings, selected: Dict[str, Setting]) -> List[str]:
    """What the records say about two sentences of the protocol on learning speed, if they contradict them.

    The sentences stay as registered. They do not separate short training from the learning rate 0.004, at which the
    study of 2,000 updates compared the rows.
    """
    first = {(row, lr): Setting(row, lr, 1.0) for lr in (0.004, 0.002) for row in "FSC"}
    if any(seed not in settings.get(setting, {}) for setting in first.values() for seed in SELECTION_SEEDS):
        return []
    sentences = []
    late = differences(losses({row: settings[first[row, 0.004]] for row in "CF"}, SELECTION_SEEDS), "C", "F")
    seeds = common_seeds({row: settings[selected[row]] for row in "CF"})
    during = curve_differences(settings, selected["C"], selected["F"], seeds)
    if {selected[row].lr for row in "CF"} == {0.002} and max(late) < 0 < min(map(fmean, during.values())):
        sentences.append(
            "the lead over the full key dimension belongs to the learning rate 0.004, not to short training. At 0.004, "
            f"C − F in test NLL is {numbers(late)} {AFTER} (seeds {listed(SELECTION_SEEDS)}, F without the factor). At "
            f"0.002, the validation NLL of F is lower at all {len(during)} validations (mean of {len(seeds)} seeds)"
        )
    early = {
        (row, lr): curve_differences(settings, first[row, lr], first["F", lr], SELECTION_SEEDS).get(EARLY, [])
        for row, lr in first
        if row != "F"
    }
    if all(values and (max(values) < 0 if lr == 0.004 else min(values) > 0) for (_, lr), values in early.items()):
        cells = "; ".join(f"{row} − F {numbers(values)} at {lr:g}" for (row, lr), values in early.items())
        sentences.append(
            "in these runs, models with a reduced key dimension learned faster at 0.004 only. Differences in "
            f"validation NLL at update {EARLY} (seeds {listed(SELECTION_SEEDS)}, F without the factor): {cells}"
        )
    return sentences


def curve_differences(settings: Settings, one: Setting, other: Setting, seeds: Sequence[int]) -> Dict[int, List[float]]:
    """Update → differences of two settings in validation NLL during training, for each seed."""
    curves = [
        [{p["updates"]: p["nll_loss"] for p in settings[setting][seed]["curves"]["valid"]} for seed in seeds]
        for setting in (one, other)
    ]
    common = sorted(set.intersection(*(set(curve) for of_setting in curves for curve in of_setting)))
    return {update: [x[update] - y[update] for x, y in zip(*curves, strict=True)] for update in common}

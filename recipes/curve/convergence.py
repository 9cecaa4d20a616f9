#!/usr/bin/env python3
"""Print the tables, or draw the figure, of the convergence study: convergence.py PART RECORD ...

The protocol is in convergence.md.

PART is one of

    selection   validation NLL of all settings with seeds 1 and 2, and the selected setting of each row
    tests       primary and secondary tests of the selected settings; with all seeds of the protocol, also the outcome
    pairs       C − F, C − S and S − F for every pair of settings, seeds 1 and 2
    blind       scores of the blind test sets, from --blind with intervals over the seeds
    shares      (S − C)/(S − F) by several measures; needs --blind
    masked      design B: the share of the gain that needs no sharing; with all seeds, also the verdict
    figure      C − F, C − S and S − F during training (--figure FILE), of one or two lengths of training

F: standard heads at the full key dimension; S: standard heads at 32; C: collaborative heads at 32; B: as C, with a
masked mixing matrix. NLL is that of the averaged checkpoint in bits per token; test NLL covers all test sets.
"""

import argparse
import itertools
import sys
from typing import Dict, List, Sequence, Tuple

from scipy import stats

from collab_fairseq.cli.main import guarded
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, drawing
from collab_fairseq.records.rows import TrainingRecord, load_run
from collab_fairseq.scoring.significance import Interval, interval
from fairseq_modern.errors import UserError
from recipes.curve.convergence_rows import (
    ALPHA,
    MASKED_SEEDS,
    MASKED_UPDATES,
    PAIRS,
    SELECTION_SEEDS,
    TEST_SEEDS,
    UPDATES,
    Setting,
    Settings,
    by_setting,
    common_seeds,
    contrast,
    corrections,
    curve_differences,
    differences,
    fieller,
    length_of,
    listed,
    losses,
    missing_runs,
    outcome,
    recovered,
    select,
    shown,
    valid_nll,
)
from recipes.curve.convergence_shares import blind_page, load_scores, shares_page

#: difference → colour
MEANINGS = {"C − F": COLOURS["collaborative"], "C − S": COLOURS["all"], "S − F": COLOURS["standard"]}


def selection_page(settings: Settings) -> str:
    """Validation NLL of all settings; the selected ones are marked."""
    selected = set(select(settings).values())
    table = [["setting", *(f"seed {seed}" for seed in SELECTION_SEEDS), "mean", "selected"]]
    for setting, runs in settings.items():
        values = [valid_nll(runs[seed]) if seed in runs else None for seed in SELECTION_SEEDS]
        cells = ["–" if value is None else f"{value:.4f}" for value in values]
        complete = [value for value in values if value is not None]
        mean = f"{sum(complete) / len(complete):.4f}" if len(complete) == len(values) else "–"
        table.append([str(setting), *cells, mean, "yes" if setting in selected else ""])
    return pages.table(table, numbers=True)


def tests_page(settings: Settings) -> str:
    """Primary and secondary tests, for all seeds and for seeds that were not used for the selection.

    The page has a verdict only if the rows have exactly the seeds of the protocol.
    """
    selected = select(settings)
    runs = {row: settings[setting] for row, setting in selected.items()}
    seeds = common_seeds(runs)
    fresh = [seed for seed in seeds if seed not in SELECTION_SEEDS]
    nll = losses(runs, seeds)
    primary = stats.ttest_1samp(contrast(nll), 0.0, alternative="less")
    later = contrast(losses(runs, fresh))
    of_later = f"mean {sum(later) / len(later):+.4f}" if later else "not run"
    table = [["difference", f"seeds {listed(seeds)}", f"seeds {listed(fresh)}"]]
    for one, other in PAIRS:
        cells = [difference(runs, some, one, other) for some in (seeds, fresh)]
        table.append([f"{one} − {other}", *cells])
    table.append(["(S − C)/(S − F)", recovered(nll), recovered(losses(runs, fresh)) if len(fresh) > 1 else "–"])
    every = [run for by_seed in settings.values() for run in by_seed.values()]
    missing = missing_runs(settings)
    commits = {(run["commit"]["id"], run["commit"]["modified"]) for run in every}
    if length_of(every[0]) != UPDATES or len(commits) > 1 or commits.pop()[1] is not False:
        verdict = f"Outcome: **undecided: the protocol needs runs of {UPDATES:,} updates from one unmodified commit**."
    elif missing:
        verdict = f"Outcome: **undecided: runs of the selection are missing: {'; '.join(missing)}**."
    elif tuple(seeds) == TEST_SEEDS:
        claim = bool(primary.pvalue < ALPHA and sum(later) / len(later) < 0)
        sentences = "; ".join(f"“{sentence}”" for sentence in outcome(nll, selected["F"], claim))
        verdict = f"The claim {'holds' if claim else 'fails'}. Outcome, in the words of the protocol: **{sentences}**."
        verdict += "".join(f"\n\nCorrection: {sentence}." for sentence in corrections(settings, selected))
    else:
        verdict = f"Outcome: **{undecided(TEST_SEEDS, seeds)}**."
    paragraphs = [
        f"Selected: {'; '.join(map(str, selected.values()))}.",
        losses_table(nll, seeds),
        f"Primary test, C − ¾F − ¼S: {shown(contrast(nll))}, one-sided p = {primary.pvalue:.2g}, "
        f"n = {len(seeds)}; seeds {listed(fresh)} alone: {of_later}.",
        pages.table(table, numbers=True),
        verdict,
    ]
    return "\n\n".join(paragraphs)


def losses_table(nll: Dict[str, List[float]], seeds: Sequence[int]) -> str:
    """Test NLL of each seed and row."""
    table = [["seed", *nll]]
    for number, seed in enumerate(seeds):
        table.append([str(seed), *(f"{values[number]:.4f}" for values in nll.values())])
    return pages.table(table, numbers=True)


def difference(runs: Dict[str, Dict[int, TrainingRecord]], seeds: Sequence[int], one: str, other: str) -> str:
    """Difference of two rows in test NLL with its 95 % interval; a dash for fewer than two seeds."""
    return shown(differences(losses(runs, seeds), one, other)) if len(seeds) > 1 else "–"


def undecided(needed: Sequence[int], seeds: Sequence[int]) -> str:
    """In words, that the rows do not have the seeds of the protocol."""
    return f"undecided: the protocol needs seeds {listed(needed)}; finished: {listed(seeds)}"


def pairs_page(settings: Settings) -> str:
    """C − F, C − S and S − F for every pair of settings that have both selection seeds."""
    complete = {s: runs for s, runs in settings.items() if all(seed in runs for seed in SELECTION_SEEDS)}
    table = [["setting", "compared with", "difference in test NLL, seeds 1 and 2"]]
    for one, other in itertools.product(complete, complete):
        if (one.row, other.row) in PAIRS:
            nll = losses({"one": complete[one], "other": complete[other]}, SELECTION_SEEDS)
            table.append([str(one), str(other), shown(differences(nll, "one", "other"))])
    return pages.table(table, numbers=True)


def masked_page(settings: Settings) -> str:
    """Design B: losses of rows S, B and C, and g, the share of the gain that needs no sharing.

    The page has a verdict only if the rows have exactly the seeds of the protocol.
    """
    runs: Dict[str, Dict[int, TrainingRecord]] = {}
    for setting, of_setting in settings.items():
        if setting.row in runs:
            raise UserError(f"row {setting.row} must have one setting; got a second, {setting}")
        runs[setting.row] = of_setting
    if not {"S", "B", "C"} <= runs.keys():
        raise UserError(f"the records must have rows S, B and C; got {', '.join(runs) or 'none'}")
    runs = {row: runs[row] for row in ("S", "B", "C")}
    conditions = {
        (setting.lr, setting.factor, length_of(run))
        for setting, by_seed in settings.items()
        if setting.row in runs
        for run in by_seed.values()
    }
    if conditions != {(0.004, 1.0, MASKED_UPDATES)}:
        raise UserError(
            f"design B needs runs of {MASKED_UPDATES:,} updates at learning rate 0.004 with the default scale of the "
            f"logits; got (learning rate, factor, updates) {sorted(conditions)}"
        )
    seeds = common_seeds(runs)
    nll = losses(runs, seeds)
    gain = fieller(differences(nll, "S", "B"), differences(nll, "S", "C"))
    if tuple(seeds) != MASKED_SEEDS:
        verdict = undecided(MASKED_SEEDS, seeds)
    elif gain.low > 0.75:
        verdict = "learned gains explain the gain"
    elif gain.high < 0.25:
        verdict = "sharing explains the gain"
    else:
        verdict = "both contribute, or the data cannot tell"
    lines = [f"S − B: {shown(differences(nll, 'S', 'B'))}; B − C: {shown(differences(nll, 'B', 'C'))}."]
    lines += [f"g = (S − B)/(S − C) = {gain.mean:.2f} [{gain.low:.2f}, {gain.high:.2f}]: **{verdict}**."]
    return "\n\n".join([losses_table(nll, seeds), *lines])


def during_training(settings: Settings, rows: Dict[str, Setting]) -> Dict[str, Dict[int, Interval]]:
    """Difference → update → mean and interval over seeds, of the validation NLL of the model in training.

    The first quarter of the updates is omitted: its differences can be several times as large as the later ones.
    """
    seeds = common_seeds({row: settings[setting] for row, setting in rows.items()})
    result: Dict[str, Dict[int, Interval]] = {}
    for one, other in PAIRS:
        values = curve_differences(settings, rows[one], rows[other], seeds)
        result[f"{one} − {other}"] = {
            update: interval(of_update) for update, of_update in values.items() if 4 * update >= max(values)
        }
    return result


def draw(long: Settings, short: Settings, path: str) -> None:
    """Draw the differences during training; those of a second, shorter schedule as dashed lines without intervals."""
    about = ["F: standard heads, full key dimension; S: standard heads at 32; C: collaborative heads at 32."]
    drawn: List[Tuple[str, str, Dict[int, Interval], bool]] = []
    for settings, style in ((long, "-"), (short, "--")):
        if not settings:
            continue
        selected = select(settings)
        seeds = len(common_seeds({row: settings[setting] for row, setting in selected.items()}))
        schedule = f"{length_of(next(iter(next(iter(settings.values())).values()))):,} updates"
        lines = (
            "Solid lines and bands: mean and 95 % interval" if style == "-" else "Dashed lines: mean without interval"
        )
        about.append(f"{lines} over {seeds} seeds, schedule of {schedule}.")
        for name, points in during_training(settings, selected).items():
            drawn.append((f"{name}, {schedule}", style, points, style == "-"))
    about.append("The first quarter of each schedule is omitted. Below 0: the first of the two is better.")
    with drawing(path, 3.6, "Differences in validation NLL during training", " ".join(about)) as figure:
        axis = figure.subplots()
        for label, style, points, band in drawn:
            updates, colour = list(points), MEANINGS[label.partition(",")[0]]
            axis.plot(updates, [points[u].mean for u in updates], style, color=colour, label=label)
            if band:
                limits = [points[u].low for u in updates], [points[u].high for u in updates]
                axis.fill_between(updates, *limits, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(0, color=COLOURS["reference"], linewidth=0.8)
        axis.set(xlabel="updates", ylabel="difference in validation NLL, bits per token")
        columns = 2 if short else 3
        figure.legend(loc="outside upper center", ncols=columns)


PAGES = {"selection": selection_page, "tests": tests_page, "pairs": pairs_page, "masked": masked_page}
BLIND_PAGES = {"blind": blind_page, "shares": shares_page}


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The table of a part; the part figure writes its file and has no text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PAGES, *BLIND_PAGES, "figure"], metavar="PART")
    parser.add_argument("records", nargs="+", metavar="RECORD")
    parser.add_argument("--figure", metavar="FILE", help="for figure: a .png or .svg file")
    parser.add_argument("--blind", metavar="FILE", help="for blind and shares: scores of the blind test sets")
    args = parser.parse_args(arguments)
    if (args.part == "figure") != bool(args.figure):
        parser.error("--figure is required for the part figure, and not allowed for others")
    if (args.part in BLIND_PAGES) != bool(args.blind):
        parser.error("--blind is required for the parts blind and shares, and not allowed for others")
    runs = [load_run(path) for path in args.records]
    if args.figure:
        lengths = sorted({length_of(run) for run in runs}, reverse=True)
        if len(lengths) > 2:
            raise UserError(f"the figure can show at most two lengths; got {lengths} updates")
        of_length = [by_setting([run for run in runs if length_of(run) == length]) for length in lengths]
        draw(of_length[0], of_length[1] if len(of_length) > 1 else {}, args.figure)
        return ""
    if args.blind:
        return BLIND_PAGES[args.part](by_setting(runs), load_scores(args.blind)) + "\n"
    return PAGES[args.part](by_setting(runs)) + "\n"


if __name__ == "__main__":
    sys.exit(guarded("convergence.py", lambda: sys.stdout.write(markdown(sys.argv[1:])) and 0))

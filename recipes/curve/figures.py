"""Draw a figure of the key-dimension studies: python -m recipes curve figures FIGURE RECORD ... --figure FILE.svg

FIGURE is one of

    training   C − F, C − S and S − F in validation NLL during training: the settings selected by the convergence study
               and, dashed, those of 2,000 updates at learning rate 0.004 (rows as in analysis.py)
    cost       differences from standard heads at the full key dimension against the key dimension: measured runs of one
               learning rate in NLL, published runs in BLEU
"""

import argparse
import math
from typing import Any, Dict, List, Sequence, Tuple

from collab_fairseq.files import PathLike
from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.drawing import (
    COLOURS,
    SMALL,
    add_figure_flags,
    drawing,
    figure_file,
    legend_columns,
    legend_height,
    look,
    points,
    rows_of,
)
from collab_fairseq.records.rows import TrainingRecord, is_collaborative, key_dim, load_run, lookup
from collab_fairseq.records.scores import ALL, list_test_sets, over_runs, score
from collab_fairseq.scoring.significance import Interval, interval
from recipes.curve.analysis import (
    PAIRS,
    SELECTED,
    by_seed,
    check_length,
    choose,
    configurations,
    differences_during,
    seeds_of,
)

#: row of the convergence study → its name, with the key dimension
NAMES = {"F": "standard 256", "S": "standard 32", "C": "collaborative 32"}
SHORT = {"F": "none-dk256-lr4", "S": "none-dk32-lr4", "C": "encoder_cross_decoder-dk32-blocks8_lr4"}
#: difference → colour
MEANINGS = {"C − F": COLOURS["collaborative"], "C − S": COLOURS["all"], "S − F": COLOURS["standard"]}

#: attention type and key dimension
Row = Tuple[str, int]
ATTENTION_TYPES = ("standard", "collaborative")
#: key dimension / width → its label
SHARES = {1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 1 / 2: "1/2", 1.0: "1"}
OFFSET = 1.035


def draw_training(paths: Sequence[str], file: PathLike) -> None:
    """Differences during training; the first quarter of the updates is omitted, where they are several times larger."""
    about = ["Numbers in the legend: key dimension (256: full)."]
    lines: List[Tuple[str, bool, Dict[int, Interval]]] = []
    schedules: Dict[str, str] = {}  # label → line style
    for updates, names in ((5500, SELECTED), (2000, SHORT)):
        rows = choose(configurations([path for path in paths if path.endswith(f"-u{updates}.json")]), names)
        solid = names is SELECTED
        meaning = "Solid lines and bands: mean and 95 % interval" if solid else "Dashed lines: mean without interval"
        about.append(f"{meaning} over {len(seeds_of(rows))} seeds, schedule of {updates:,} updates.")
        for one, other in PAIRS:
            values = differences_during(rows, one, other)
            shown = {update: interval(v.tolist()) for update, v in values.items() if 4 * update >= max(values)}
            lines.append((f"{one} − {other}", solid, shown))
        schedules[f"schedule of {updates:,} updates"] = "-" if solid else "--"
    about.append("The first quarter of each schedule is omitted. Below 0: the first of the two is better.")
    entries = len(PAIRS) + len(schedules)
    columns = legend_columns(file, 2, narrow=1)
    height = 3.0 + legend_height(entries, columns)
    with drawing(file, height, "Differences in validation NLL during training", " ".join(about)) as figure:
        axis = figure.subplots()
        for difference, solid, by_update in lines:
            at, colour = list(by_update), MEANINGS[difference]
            label = " − ".join(NAMES[name] for name in difference.split(" − ")) if solid else None
            axis.plot(at, [i.mean for i in by_update.values()], "-" if solid else "--", color=colour, label=label)
            if solid:
                limits = [i.low for i in by_update.values()], [i.high for i in by_update.values()]
                axis.fill_between(at, *limits, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(0, color=COLOURS["reference"], linewidth=0.8)
        for label, style in schedules.items():
            axis.plot([], [], style, color=COLOURS["reference"], label=label)
        axis.set(xlabel="updates", ylabel="difference in validation NLL,\nbits per token")
        figure.legend(loc="outside upper center", ncols=columns)


def costs(runs: Sequence[TrainingRecord]) -> Dict[Row, Tuple[Interval, int]]:
    """Row → its NLL on all tests minus that at the full key dimension, paired by seed, and the number of seeds."""
    check_length(runs)
    by_row = by_seed(runs, _row)
    full = by_row["standard", _width(runs)]
    result = {}
    for row, of_row in by_row.items():
        sides = [[side[seed] for seed in of_row if seed in full] for side in (of_row, full)]
        result[row] = over_runs(*sides, test=ALL, metric=METRICS["nll"])[0], len(sides[0])
    return result


def _row(run: TrainingRecord) -> Row:
    return ATTENTION_TYPES[is_collaborative(run)], key_dim(run["config"]["model"], "encoder")


def _width(runs: Sequence[TrainingRecord]) -> int:
    return int(runs[0]["config"]["model"]["encoder_embed_dim"])


def draw_costs(paths: Sequence[str], file: PathLike) -> None:
    """Differences from standard heads at the full key dimension, a line per attention type."""
    runs = [load_run(path) for path in paths]
    published = [run for run in runs if "published" in run]
    measured = [run for run in runs if "published" not in run]
    by_row, metric = costs(measured), METRICS["compound_split"]
    (test,) = list_test_sets(published, metric)
    scores = {_row(run): score(run, test, metric) for run in published}
    bleu = {row: value for row, value in scores.items() if value is not None}
    full = bleu["standard", _width(published)]
    reported = {row: Interval(value - full, math.nan, math.nan) for row, value in bleu.items()}
    rates = " or ".join(sorted({lookup(run, "config.optimization.lr") for run in measured}))
    about = [
        "Differences from standard heads at the full key dimension (zero by definition). Up is better. Multi30k En–De, "
        f"learning rate {rates}: mean and 95 % interval over seeds and sentences; {_seeds(by_row)}. WMT14 En–De: one "
        "run each, as published."
    ]
    panels = (
        ({row: limits for row, (limits, _) in by_row.items()}, _width(measured), "Multi30k En–De (ours)",
         "difference in NLL, bits per token\n(inverted axis: up is better)", "not run"),
        (reported, _width(published), "WMT14 En–De (Cordonnier et al.)",
         "difference in compound-split BLEU\n(up is better)", "not reported"),
    )  # fmt: skip
    rows = rows_of(file, len(panels))
    with drawing(file, 0.2 + 2.9 * rows, "Cost of a smaller key dimension", " ".join(about)) as figure:
        axes = figure.subplots(rows, len(panels) // rows, squeeze=False, gridspec_kw={"wspace": 0.06}).flatten()
        for axis, (intervals, width, title, ylabel, missing) in zip(axes, panels, strict=True):
            _draw_lines(axis, intervals, width, missing)
            axis.set(xlabel=f"key dimension (share of width {width})", ylabel=ylabel, title=title)
        axes[0].invert_yaxis()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _draw_lines(axis: Any, intervals: Dict[Row, Interval], width: int, missing: str) -> None:
    for attention_type in ATTENTION_TYPES:
        by_share = {dim / width: cost for (of, dim), cost in intervals.items() if of == attention_type}
        # side by side, so that error bars do not overlap
        offset = 1 / OFFSET if attention_type == "standard" else OFFSET
        shares = sorted(by_share)
        style = {"label": f"{attention_type} heads", **look(attention_type)}
        points(axis, [share * offset for share in shares], [by_share[share] for share in shares], **style)
        text = {"rotation": 90, "ha": "right" if offset < 1 else "left", "va": "bottom"}
        for share in SHARES:
            if share not in by_share:
                where = {"xycoords": ("data", "axes fraction"), "fontsize": SMALL, "color": style["color"]}
                axis.annotate(missing, (share * offset**2, 0.02), **where, **text)
    axis.axhline(0, color=COLOURS["reference"], linewidth=0.8, zorder=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(SHARES), [f"{width * share:g}\n({name})" for share, name in SHARES.items()])
    axis.set_xticks([], minor=True)
    axis.set_xlim(min(SHARES) / 1.35, max(SHARES) * 1.35)


def _seeds(by_row: Dict[Row, Tuple[Interval, int]]) -> str:
    """The number of seeds by which each row is compared, in words."""
    numbers: Dict[int, List[str]] = {}
    for (attention_type, dim), (_, seeds) in sorted(by_row.items(), reverse=True):
        numbers.setdefault(seeds, []).append(f"{attention_type} {dim}")
    ordered = sorted(numbers.items(), reverse=True)
    return "; ".join(f"{n} seed{'s' * (n > 1)}: {', '.join(named)}" for n, named in ordered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    figures = {"training": draw_training, "cost": draw_costs}
    parser.add_argument("name", choices=figures, metavar="FIGURE", help="training or cost")
    parser.add_argument("records", nargs="+", metavar="RECORD")
    add_figure_flags(parser, "the file")
    args = parser.parse_args()
    file = figure_file(args)
    if file is None:
        parser.error("--figure is needed")
    figures[args.name](args.records, file)

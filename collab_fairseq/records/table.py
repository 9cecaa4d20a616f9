"""Markdown tables from records; the same records give the same bytes.

One row per configuration, with means over its seeds. Scores have intervals, see `scoring.significance`; other
numbers have their sample standard deviation. Below the table: signatures, machines, record files, and comparisons with
baselines.
"""

import os
import posixpath
from typing import Any, Dict, List, Optional, Sequence, Set

from collab_fairseq.records import pages
from collab_fairseq.records.columns import (
    COLUMNS,
    DASH,
    GROUP_BY,
    MACHINE_DEPENDENT,
    METRICS,
    NUMBERS,
    ON_REQUEST,
    described,
    header,
)
from collab_fairseq.records.rows import TrainingRecord, frame, losses
from collab_fairseq.records.scores import interval_cell, list_test_sets
from fairseq_modern.errors import UserError

#: metrics that rows are compared in if the table shows them; sacreBLEU if it shows none of them
_COMPARED = ("nll", "sacrebleu", "chrf++", "ter", "comet")


def markdown_table(
    runs: Sequence[TrainingRecord],
    *,
    columns: Optional[Sequence[str]] = None,
    group_by: Sequence[str] = GROUP_BY,
    baselines: Sequence[str] = (),
    folder: str = ".",
) -> str:
    """The table, with notes and comparisons below it.

    Args:
        runs: at least one, in any order.
        columns: in this order, of `COLUMNS`, `ON_REQUEST` and `group_by`; default: those of `COLUMNS` and `group_by`
            that have a value. A score is shown for every test set, or for the one after its name: ``nll all tests``.
        group_by: fields that distinguish the rows.
        baselines: names of runs; every other row is compared with the row of each, by the seeds that both have.
        folder: of the page, for relative links to the records.

    Raises:
        UserError: an unknown column or baseline, runs that cannot be grouped (see `frame`), or runs of one row or of
            compared rows that were scored in different ways.
    """
    data = frame(runs, group_by)
    known = (*group_by, *(name for name in COLUMNS if name not in group_by))
    unknown = [name for name in columns or () if name not in known and name.partition(" ")[0] not in METRICS]
    if unknown:
        raise UserError(f"columns must be some of {', '.join((*known, *ON_REQUEST))}; got {unknown[0]}")
    names: List[str] = []
    shown: Dict[str, List[str]] = {}
    seeds_only: Set[str] = set()
    for name in columns or known:
        cells_of = _column(name, data, group_by, seeds_only)
        if not columns:
            cells_of = {title: cells for title, cells in cells_of.items() if set(cells) != {DASH}}
        if cells_of:
            names.append(name.partition(" ")[0])
        shown.update(cells_of)
    table = pages.table([list(shown), *zip(*shown.values(), strict=True)], padded=True)
    notes = [*_notes(data, names, seeds_only, table), _records(runs, folder)]
    parts = [table, "  \n".join(notes)]  # two blanks break the line within a paragraph
    parts += [_comparison(data, name, group_by, names) for name in baselines]
    return "\n\n".join(part for part in parts if part) + "\n"


def _column(name: str, data: Any, group_by: Sequence[str], seeds_only: Set[str]) -> Dict[str, List[str]]:
    """Header → cells, one per row; a name may stand for several columns."""
    rows = data.groupby("row", sort=False)
    if name in group_by:
        position = list(group_by).index(name)
        return {header(name): [key[position] for key in data["row"].unique()]}
    if name == "seeds":
        return {"seeds": [str(size) for size in rows.size()]}
    name, _, test = name.partition(" ")
    if name in METRICS:
        return _score_columns(name, test, data, seeds_only)
    title, decimals = NUMBERS[name]
    cells = [mean_and_deviation(group, decimals) for _, group in rows[name]]
    if name in MACHINE_DEPENDENT:
        machines = rows["machine"].nunique()
        cells = [cell if count == 1 else "different machines" for cell, count in zip(cells, machines, strict=True)]
    columns = {title: cells}
    if name == "valid_loss":
        others = {other for run in data["run"] for other in losses(run)} - {"valid"}
        for other in sorted(others):
            values = data["run"].map(lambda run, other=other: losses(run).get(other)).astype(float)
            groups = values.groupby(data["row"], sort=False)
            columns[f"{title} {other}"] = [mean_and_deviation(group, decimals) for _, group in groups]
    return columns


def _score_columns(name: str, test: str, data: Any, seeds_only: Set[str]) -> Dict[str, List[str]]:
    metric = METRICS[name]
    tests = list_test_sets(data["run"], metric)
    if test and test not in tests:
        raise UserError(f"no record has {metric} of {test}; expected one of {', '.join(tests) or 'none'}")
    groups = [list(group) for _, group in data.groupby("row", sort=False)["run"]]
    if not tests:
        return {metric: [DASH] * len(groups)}
    return {
        f"{metric} {shown}": [interval_cell(group, shown, name, seeds_only) for group in groups]
        for shown in ([test] if test else tests)
    }


def mean_and_deviation(values: Any, decimals: int) -> str:
    """`mean ± deviation` of a Series, without the deviation if all are equal; their number if some are missing."""
    present = values.dropna()
    if present.empty:
        return DASH
    shown = f"{present.mean():,.{decimals}f}"
    if present.nunique() > 1:
        shown += f" ± {present.std():,.{decimals}f}"
    return shown if len(present) == len(values) else f"{shown} (of {len(present)})"


def _records(runs: Sequence[TrainingRecord], folder: str) -> str:
    """Patterns that match the record files, one per recipe, as links to their folder."""
    recipes: Dict[str, List[str]] = {}
    for run in runs:
        path = os.path.relpath(run["path"], folder).replace(os.sep, "/")
        recipe = posixpath.basename(path).partition("-")[0]
        recipes.setdefault(recipe, []).append(path)
    patterns = [_pattern(paths) for _, paths in sorted(recipes.items())]
    return f"Records: {', '.join(patterns)}."


def _pattern(paths: Sequence[str]) -> str:
    start = os.path.commonprefix(paths)  # noqa: RUF071  (of the characters, not of the folders)
    reversed_rest = [path[len(start) :][::-1] for path in paths]
    end = os.path.commonprefix(reversed_rest)[::-1]  # noqa: RUF071
    parent, name = posixpath.split(start)
    pattern = f"{name}*{end}" if len(paths) > 1 else f"{name}{end}"
    return f"[`{pattern}`]({parent or '.'})"


def _notes(data: Any, shown: Sequence[str], seeds_only: Set[str], table: str) -> List[str]:
    """Notes on the numbers of the table, one line each."""
    notes, seeds = [], data.groupby("row").size()
    metrics = [METRICS[name] for name in shown if name in METRICS]
    if metrics and seeds.max() > 1:
        notes.append(f"In brackets: {_intervals(metrics, seeds_only)}.")
    if metrics and seeds.min() < 2:
        notes.append("Scores without an interval are from a single seed.")
    if "±" in table:
        notes.append("After ±: the sample standard deviation over the seeds.")
    for key, row in data.groupby("row", sort=False):
        if row["precision"].nunique() > 1:
            seeds = row.groupby("precision")["seed"].agg(lambda numbers: ", ".join(map(str, numbers)))
            listed = "; ".join(f"{name} (seed {numbers})" for name, numbers in seeds.items())
            notes.append(f"Trained in different precisions: {', '.join(key)}: {listed}.")
    entries = [entry for run in data["run"] for scores in run["scores"].values() for entry in scores["scores"]]
    for metric in (METRICS[name] for name in ("sacrebleu", "chrf", "chrf++", "ter", "comet") if name in shown):
        signatures = {entry.get("signature") for entry in entries if entry["metric"] == metric}
        notes += [f"{metric}: `{signature}`." for signature in sorted(filter(None, signatures))]
    if "nll" in shown:
        notes.append("NLL: negative log-likelihood of the averaged checkpoint in float32, bits per token.")
    if "cache" in shown:
        notes.append("KV cache per token: numbers that decoding stores per token and self-attention layer.")
    if "compound_split" in shown and any(entry["metric"] == METRICS["compound_split"] for entry in entries):
        notes.append("Compound-split BLEU is comparable only with itself.")
    if set(MACHINE_DEPENDENT) & set(shown):
        notes.append(f"Training speed, time and memory on: {'; '.join(sorted(data['machine'].unique()))}.")
    return notes


def _comparison(data: Any, baseline: str, group_by: Sequence[str], shown: Sequence[str]) -> str:
    """Compare every row with that of the run ``baseline``, on each test set, by the seeds that both have."""
    named = data[data["name"] == baseline]
    if named.empty:
        raise UserError(f"the baseline must be one of {', '.join(data['name'])}; got {baseline}")
    key = named["row"].iloc[0]
    base = data[data["row"] == key]
    metrics = [name for name in _COMPARED if name in shown] or ["sacrebleu"]
    lines: List[Dict[str, str]] = []
    seeds_only: Set[str] = set()
    for other, row in data[data["row"] != key].groupby("row", sort=False):
        pairs = row.dropna(subset="seed").merge(base, on="seed", suffixes=("", " of base"))
        runs, base_runs = pairs["run"].tolist(), pairs["run of base"].tolist()
        compared = [*row["run"], *base["run"]]
        for test in sorted({test for name in metrics for test in list_test_sets(compared, METRICS[name])}):
            line = dict(zip(map(header, group_by), other, strict=True))
            line.update({"seeds": str(len(pairs)), "test set": test})
            for name in metrics:
                cell = interval_cell(runs, test, name, seeds_only, base_runs) if runs else DASH
                line[f"difference in {METRICS[name]}"] = cell
            lines.append(line)
    if not lines:
        return ""
    notes = []
    if any(int(line["seeds"]) > 1 for line in lines):
        intervals = _intervals([METRICS[name] for name in metrics], seeds_only)
        notes.append(f"In brackets: {intervals}, paired by seed. A star: the interval excludes 0.")
    if any(line["seeds"] == "1" for line in lines):
        notes.append("A single seed has no interval.")
    fields = ", ".join(described(field, value) for field, value in zip(group_by, key, strict=True))
    table = pages.table([list(lines[0]), *(list(line.values()) for line in lines)], padded=True)
    return f"Compared with {fields}:\n\n{table}\n\n{' '.join(notes)}"


def _intervals(metrics: Sequence[str], seeds_only: Set[str]) -> str:
    """What the intervals of the metrics are over; ``seeds_only``: those whose intervals leave out the sentences."""
    over_seeds = "95 % intervals over the seeds (Student's t)"
    if seeds_only >= set(metrics):
        return over_seeds
    exceptions = f"; not for {', '.join(sorted(seeds_only))}" if seeds_only else ""
    return f"{over_seeds} and the sentences (jackknife{exceptions})"

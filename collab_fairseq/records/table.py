"""Markdown tables from records: the same records give the same bytes.

One row per configuration, with means over its seeds. Below the table: signatures, machines, the files of the records,
and comparisons with baselines. Scores have intervals, see `scoring.significance`; other numbers have their sample
standard deviation.
"""

import os
import posixpath
from typing import Any, Dict, List, Optional, Sequence, Set

from collab_fairseq.records import pages
from collab_fairseq.records.columns import COLUMNS, DASH, GROUP_BY, KEYS, MACHINES, METRICS, NUMBERS, ON_REQUEST
from collab_fairseq.records.rows import TrainingRecord, frame, losses
from collab_fairseq.records.scores import interval, test_sets
from collab_fairseq.scoring.significance import OVER_SEEDS
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
    """The table, with the notes and comparisons below it.

    Args:
        runs: at least one, in any order.
        columns: in this order, of `COLUMNS`, `ON_REQUEST` and `group_by`; by default those of `COLUMNS` and `group_by`
            that any run has a value for. A score is of every test set, or of the one named after it: ``nll all tests``.
        group_by: fields that distinguish the rows.
        baselines: names of runs; every other row is compared with the row of each, by the seeds that both have.
        folder: of the page that shows the table; the link to the records is relative to it.

    Raises:
        UserError: a column or a baseline is unknown, or the runs cannot be grouped; see `frame`.
        UserError: runs of one row, or rows that are compared, were scored in different ways.
    """
    data = frame(runs, group_by)
    known = (*group_by, *(name for name in COLUMNS if name not in group_by))
    unknown = [name for name in columns or () if name not in known and name.partition(" ")[0] not in METRICS]
    if unknown:
        raise UserError(f"unknown column {unknown[0]}, expected some of {', '.join((*known, *ON_REQUEST))}")
    names = [name.partition(" ")[0] for name in columns or known]
    shown: Dict[str, List[str]] = {}
    alone: Set[str] = set()
    for name in columns or known:
        shown.update(_column(name, data, group_by, alone))
    if not columns:
        shown = {header: cells for header, cells in shown.items() if set(cells) != {DASH}}
    table = pages.table([list(shown), *zip(*shown.values(), strict=True)], padded=True)
    notes = [*_notes(data, names, alone, table), _records(runs, folder)]
    parts = [table, "  \n".join(notes)]  # two blanks end a line, not the paragraph
    parts += [_comparison(data, name, group_by, names) for name in baselines]
    return "\n\n".join(part for part in parts if part) + "\n"


def _column(name: str, data: Any, group_by: Sequence[str], alone: Set[str]) -> Dict[str, List[str]]:
    """Cells by header, one per row."""
    rows = data.groupby("row", sort=False)
    if name in group_by:
        return {_header(name): [key[list(group_by).index(name)] for key in data["row"].unique()]}
    if name == "seeds":
        return {"seeds": [str(size) for size in rows.size()]}
    name, _, only = name.partition(" ")
    if name in METRICS:
        groups, tests = [list(group) for _, group in rows["run"]], test_sets(data["run"], METRICS[name])
        if only and only not in tests:
            raise UserError(f"no record has {METRICS[name]} of {only}, expected one of {', '.join(tests)}")
        tests = [only] if only else tests
        return {f"{METRICS[name]} {test}": [interval(group, test, name, alone) for group in groups] for test in tests}
    header, decimals = NUMBERS[name]
    cells = [spread(group, decimals) for _, group in rows[name]]
    if name in MACHINES:
        machines = rows["machine"].nunique()
        cells = [cell if count == 1 else "different machines" for cell, count in zip(cells, machines, strict=True)]
    shown = {header: cells}
    others = {other for run in data["run"] for other in losses(run)} - {"valid"} if name == "valid_loss" else set()
    for other in sorted(others):
        values = data["run"].map(lambda run, other=other: losses(run).get(other)).astype(float)
        shown[f"{header} {other}"] = [spread(group, decimals) for _, group in values.groupby(data["row"], sort=False)]
    return shown


def spread(values: Any, decimals: int) -> str:
    """`mean ± deviation` of a Series, without the deviation if all are equal; their number if some are missing."""
    present = values.dropna()
    if present.empty:
        return DASH
    shown = f"{present.mean():,.{decimals}f}"
    if present.nunique() > 1:
        shown += f" ± {present.std():,.{decimals}f}"
    return shown if len(present) == len(values) else f"{shown} (of {len(present)})"


def _header(field: str) -> str:
    return KEYS.get(field) or field.removeprefix("config.")


def _records(runs: Sequence[TrainingRecord], folder: str) -> str:
    """A pattern that matches the files of the records, linked to their folder."""
    paths = [os.path.relpath(run["path"], folder).replace(os.sep, "/") for run in runs]
    start = os.path.commonprefix(paths)  # noqa: RUF071  (of the characters, not of the folders)
    end = os.path.commonprefix([path[len(start) :][::-1] for path in paths])[::-1]  # noqa: RUF071
    where, name = posixpath.split(start)
    return f"Records: [`{name}{'*' * (len(paths) > 1)}{end}`]({where or '.'})."


def _notes(data: Any, shown: Sequence[str], alone: Set[str], table: str) -> List[str]:
    """Notes on the numbers of the table, one line each."""
    notes, seeds = [], data.groupby("row").size()
    if set(METRICS) & set(shown) and seeds.max() > 1:
        notes.append(f"In brackets: {OVER_SEEDS}{_over_seeds_alone(alone)}.")
    if set(METRICS) & set(shown) and seeds.min() < 2:
        notes.append("Scores without an interval are of one seed: there is none over seeds.")
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
        notes.append("nll: negative log-likelihood of the averaged checkpoint in float32, bits a token.")
    if "cache" in shown:
        notes.append("Cached numbers: keys and values that decoding keeps for each token and layer of self-attention.")
    if "compound_split" in shown and any(entry["metric"] == METRICS["compound_split"] for entry in entries):
        notes.append("Compound-split BLEU flatters German: compare it with its like only.")
    if set(MACHINES) & set(shown):
        notes.append(f"Speed, time and memory of the training on: {'; '.join(sorted(data['machine'].unique()))}.")
    return notes


def _comparison(data: Any, baseline: str, group_by: Sequence[str], shown: Sequence[str]) -> str:
    """Every row compared with that of the run ``baseline``, on each test set, by the seeds that both have."""
    named = data[data["name"] == baseline]
    if named.empty:
        names = ", ".join(data["name"])
        raise UserError(f"no record is named {baseline}, the baseline; expected one of {names}")
    key = named["row"].iloc[0]
    base = data[data["row"] == key]
    metrics = [name for name in _COMPARED if name in shown] or ["sacrebleu"]
    lines: List[Dict[str, str]] = []
    alone: Set[str] = set()
    for other, row in data[data["row"] != key].groupby("row", sort=False):
        pairs = row.dropna(subset="seed").merge(base, on="seed", suffixes=("", " of base"))
        runs = pairs["run"].tolist(), pairs["run of base"].tolist()
        for test in sorted({test for name in metrics for test in test_sets(row["run"], METRICS[name])}):
            differences = {
                f"difference in {METRICS[name]}": interval(runs[0], test, name, alone, runs[1]) if runs[0] else DASH
                for name in metrics
            }
            compared = dict(zip(map(_header, group_by), other, strict=True))
            lines.append({**compared, "seeds": str(len(pairs)), "test set": test, **differences})
    if not lines:
        return ""
    about = ", ".join(f"{_header(field)} {value}" for field, value in zip(group_by, key, strict=True))
    several, single = (any((line["seeds"] == "1") is one for line in lines) for one in (False, True))
    notes = [f"In brackets: {OVER_SEEDS}, seed by seed{_over_seeds_alone(alone)}. A star: 0 is outside."] * several
    notes += ["Of one seed there is no interval."] * single
    table = pages.table([list(lines[0]), *(list(line.values()) for line in lines)], padded=True)
    return f"Compared with {about}:\n\n{table}\n\n{' '.join(notes)}"


def _over_seeds_alone(alone: Set[str]) -> str:
    return f"; of {', '.join(sorted(alone))} over the seeds alone" if alone else ""

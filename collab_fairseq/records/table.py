"""Markdown tables from records: the same records give the same bytes.

One row per configuration, mean ± sample standard deviation over its seeds, and beneath it what the numbers need to be
read: sacreBLEU signatures, machines, comparisons with baselines.
"""

import os
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

from collab_fairseq.records import bootstrap, pages
from collab_fairseq.records.rows import (
    KEYS,
    METRICS,
    NUMBERS,
    OF_HARDWARE,
    Row,
    Run,
    hardware,
    make_rows,
    mean_and_deviation,
    score,
    test_sets,
)
from collab_fairseq.records.schema import RecordError

GROUP_BY = ("heads", "key_dim", "updates")
#: all columns besides those that the rows are grouped by, which stand before them
COLUMNS = (
    "seeds", "parameters", "valid_loss", "tokenised", "compound_split", "sacrebleu", "words_per_second", "wall_time",
    "peak_memory", "records",
)  # fmt: skip
MISSING = "–"

# header and cell
_Column = Tuple[str, Callable[[Row], str]]


def markdown_table(
    runs: Sequence[Run],
    *,
    columns: Optional[Sequence[str]] = None,
    group_by: Sequence[str] = GROUP_BY,
    baselines: Sequence[str] = (),
    folder: str = ".",
) -> str:
    """The table, with what belongs beneath it.

    Args:
        runs: in any order.
        columns: in this order, of `COLUMNS` and `group_by`; by default all that any run has a value for.
        group_by: fields that tell the rows apart.
        baselines: names of runs; every other row is compared with the row of each, seed by seed.
        folder: where the page is that the table goes into; links to the records start there.

    Raises:
        RecordError: a column or a baseline is unknown, or the runs cannot be put together; see `make_rows`.
    """
    if not runs:
        raise RecordError("expected at least one record")
    rows = make_rows(runs, group_by)
    known = (*group_by, *(name for name in COLUMNS if name not in group_by))
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise RecordError(f"unknown column {unknown[0]}, expected some of {', '.join(known)}")
    shown: List[_Column] = []
    for name in columns or known:
        for header, cell in _columns(name, rows, group_by, folder):
            if columns or any(cell(row) != MISSING for row in rows):
                shown.append((header, cell))
    parts = [pages.table([[header for header, _ in shown], *([cell(row) for _, cell in shown] for row in rows)])]
    parts.append("\n".join(_notes(rows, columns or known)))
    for name in baselines:
        parts.append(_comparison(rows, name, group_by))
    return "\n\n".join(part for part in parts if part) + "\n"


def _columns(name: str, rows: Sequence[Row], group_by: Sequence[str], folder: str) -> List[_Column]:
    if name in group_by:
        place = list(group_by).index(name)
        return [(_header(name), lambda row: _text(row.key[place]))]
    if name == "seeds":
        return [("seeds", lambda row: str(len(row.runs)))]
    if name == "records":
        return [("records", lambda row: " ".join(_link(run, folder) for run in row.runs))]
    if name in METRICS:
        return [_score_column(test, METRICS[name]) for test in test_sets(rows)]
    header, value, decimals = NUMBERS[name]

    def cell(row: Row) -> str:
        if name in OF_HARDWARE and len({hardware(run.record) for run in row.runs}) > 1:
            return "different machines"
        return spread([value(run.record) for run in row.runs], decimals)

    return [(header, cell)]


def _score_column(test: str, metric: str) -> _Column:
    return f"{metric} {test}", lambda row: spread([score(run.record, test, metric) for run in row.runs], 2)


def spread(values: Sequence[Optional[float]], decimals: int) -> str:
    """`mean ± deviation`, without the deviation for one value; how many there are where some are missing."""
    present = [value for value in values if value is not None]
    if not present:
        return MISSING
    mean, deviation = mean_and_deviation(present)
    shown = f"{mean:,.{decimals}f}"
    # the number of parameters is the same for every seed
    if deviation is not None and (decimals or deviation):
        shown += f" ± {deviation:,.{decimals}f}"
    return shown if len(present) == len(values) else f"{shown} (of {len(present)})"


def _text(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _header(field: str) -> str:
    return KEYS[field][0] if field in KEYS else field.removeprefix("config.")


def _link(run: Run, folder: str) -> str:
    path = os.path.relpath(run.path, folder).replace(os.sep, "/")
    seed = run.record["seed"]
    return f"[{'record' if seed is None else f'seed {seed}'}]({path})"


def _notes(rows: Sequence[Row], shown: Sequence[str]) -> List[str]:
    """What the numbers above need to be read, one line each."""
    runs = [run for row in rows for run in row.runs]
    notes = []
    if any(len(row.runs) > 1 for row in rows):
        notes.append("Mean ± sample standard deviation over the seeds.")
    signatures: Set[str] = {
        entry["signature"]
        for run in runs
        for scores in run.record["scores"].values()
        for entry in scores["scores"]
        if entry["metric"] == "sacreBLEU" and entry.get("signature")
    }
    if "sacrebleu" in shown:
        notes += [f"sacreBLEU: `{signature}`." for signature in sorted(signatures)]
    if any(score(run.record, t, METRICS["compound_split"]) is not None for run in runs for t in run.record["scores"]):
        notes += ["Compound-split BLEU flatters German: compare it with its like only."] * ("compound_split" in shown)
    if set(OF_HARDWARE) & set(shown):
        machines = sorted({hardware(run.record) for run in runs})
        notes.append(f"Speed, time and memory of the training on: {'; '.join(machines)}.")
    # two blanks end a line in Markdown without ending the paragraph
    return [f"{note}  " for note in notes[:-1]] + notes[-1:]


def _comparison(rows: Sequence[Row], baseline: str, group_by: Sequence[str]) -> str:
    found = [row for row in rows if any(run.name == baseline for run in row.runs)]
    if not found:
        names = ", ".join(run.name for row in rows for run in row.runs)
        raise RecordError(f"no record is named {baseline}, the baseline; expected one of {names}")
    base = found[0]
    signatures: Set[str] = set()
    lines = []
    for row in rows:
        if row is base:
            continue
        for test in test_sets([row]):
            lines.append([*map(_text, row.key), test, *_compare_rows(row, base, test, signatures)])
    if not lines:
        return ""
    about = ", ".join(f"{_header(field)} {_text(value)}" for field, value in zip(group_by, base.key, strict=True))
    text = f"Compared with {about}:\n\n" + pages.table(
        [[*map(_header, group_by), "test set", "difference in sacreBLEU", "p"], *lines]
    )
    if signatures:
        text += "\n\np: two-sided paired bootstrap of sacrebleu, runs of one seed at a time: " + ", ".join(
            f"`{signature}`" for signature in sorted(signatures)
        )
        text += "."
    return text


def _compare_rows(row: Row, base: Row, test: str, signatures: Set[str]) -> List[str]:
    """Difference over the pairs of runs with one seed, and each pair's p."""
    bases = {run.record["seed"]: run.record for run in base.runs if test in run.record["scores"]}
    pairs = [
        (run.record, bases[run.record["seed"]])
        for run in row.runs
        if run.record["seed"] is not None and run.record["seed"] in bases and test in run.record["scores"]
    ]
    if not pairs:
        return [MISSING, "no runs of the same seed"]
    changes, p_values = [], []
    for system, other in pairs:
        scores = [score(record, test, METRICS["sacrebleu"]) for record in (system, other)]
        if None in scores:
            continue
        changes.append(scores[0] - scores[1])  # type: ignore[operator]
        result = bootstrap.compare(system, other, test)
        if result is None:
            p_values.append(f"seed {system['seed']}: no sentence statistics")
        else:
            signatures.add(result.signature)
            p_values.append(f"seed {system['seed']}: {result.p_value:.3f}")
    if not changes:
        return [MISSING, "no sacreBLEU"]
    mean, deviation = mean_and_deviation(changes)
    shown = f"{mean:+.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")
    return [shown, ", ".join(p_values)]

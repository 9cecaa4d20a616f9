"""Markdown tables from records: the same records give the same bytes.

One row per configuration, mean ± sample standard deviation over its seeds, and beneath it what the numbers need to be
read: sacreBLEU signatures, machines, comparisons with baselines.
"""

import os
from typing import Any, Dict, List, Optional, Sequence

from collab_fairseq.records.record import RecordError
from collab_fairseq.records.rows import KEYS, METRICS, MISSING, NUMBERS, OF_HARDWARE, Run, frame, test_sets

GROUP_BY = ("heads", "key_dim", "updates")
#: all columns besides those that the rows are grouped by, which stand before them
COLUMNS = (
    "seeds", "parameters", "cache", "valid_loss", "tokenised", "compound_split", "sacrebleu", "chrf",
    "words_per_second", "wall_time", "peak_memory", "records",
)  # fmt: skip
#: and those that are shown where they are asked for
ON_REQUEST = ("nll", "chrf++", "ter")


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
        runs: at least one, in any order.
        columns: in this order, of `COLUMNS`, `ON_REQUEST` and `group_by`; by default those of the first and the last
            that any run has a value for.
        group_by: fields that tell the rows apart.
        baselines: names of runs; every other row is compared with the row of each, seed by seed.
        folder: where the page is that the table goes into; links to the records start there.

    Raises:
        RecordError: a column or a baseline is unknown, or the runs cannot be put together; see `frame`.
    """
    data = frame(runs, group_by)
    known = (*group_by, *(name for name in COLUMNS if name not in group_by))
    unknown = [name for name in columns or () if name not in (*known, *ON_REQUEST)]
    if unknown:
        raise RecordError(f"unknown column {unknown[0]}, expected some of {', '.join((*known, *ON_REQUEST))}")
    shown: Dict[str, List[str]] = {}
    for name in columns or known:
        shown.update(_column(name, data, group_by, folder))
    if not columns:
        shown = {header: cells for header, cells in shown.items() if set(cells) != {MISSING}}
    parts = [markdown(shown), "  \n".join(_notes(data, columns or known))]  # two blanks end a line, not the paragraph
    parts += [_comparison(data, name, group_by) for name in baselines]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(columns: Any) -> str:
    """A Markdown table of texts, given as a pandas DataFrame is."""
    import pandas

    return str(pandas.DataFrame(columns).to_markdown(index=False, disable_numparse=True))


def _column(name: str, data: Any, group_by: Sequence[str], folder: str) -> Dict[str, List[str]]:
    """Cells by header, one per row."""
    rows = data.groupby("row", sort=False)
    if name in group_by:
        return {_header(name): [key[list(group_by).index(name)] for key in data["row"].unique()]}
    if name == "seeds":
        return {"seeds": [str(size) for size in rows.size()]}
    if name == "records":
        return {"records": [" ".join(_link(run, folder) for run in group) for _, group in rows["run"]]}
    if name in METRICS:
        headers = [f"{METRICS[name]} {test}" for test in test_sets(data["run"], METRICS[name])]
        return {header: [spread(group, 3 if name == "nll" else 2) for _, group in rows[header]] for header in headers}
    header, decimals = NUMBERS[name]
    cells = [spread(group, decimals) for _, group in rows[name]]
    if name in OF_HARDWARE:
        machines = rows["machine"].nunique()
        cells = [cell if count == 1 else "different machines" for cell, count in zip(cells, machines, strict=True)]
    others = [column for column in data if name == "valid_loss" and column.startswith(f"{header} ")]
    return {header: cells, **{column: [spread(group, decimals) for _, group in rows[column]] for column in others}}


def spread(values: Any, decimals: int, sign: str = "") -> str:
    """`mean ± deviation` of a Series, without the deviation for one value; how many where some are missing."""
    present = values.dropna()
    if present.empty:
        return MISSING
    shown, deviation = f"{present.mean():{sign},.{decimals}f}", present.std()
    # the number of parameters is the same for every seed
    if len(present) > 1 and (decimals or deviation):
        shown += f" ± {deviation:,.{decimals}f}"
    return shown if len(present) == len(values) else f"{shown} (of {len(present)})"


def _header(field: str) -> str:
    return KEYS.get(field) or field.removeprefix("config.")


def _link(run: Run, folder: str) -> str:
    path = os.path.relpath(run["path"], folder).replace(os.sep, "/")
    return f"[{'record' if run['seed'] is None else 'seed ' + str(run['seed'])}]({path})"


def _notes(data: Any, shown: Sequence[str]) -> List[str]:
    """What the numbers above need to be read, one line each."""
    notes = []
    if data["row"].duplicated().any():
        notes.append("Mean ± sample standard deviation over the seeds.")
    for key, row in data.groupby("row", sort=False):
        if row["precision"].nunique() > 1:
            seeds = row.groupby("precision")["seed"].agg(lambda numbers: ", ".join(map(str, numbers)))
            told = "; ".join(f"{name} (seed {numbers})" for name, numbers in seeds.items())
            notes.append(f"Trained in different precisions: {', '.join(key)}: {told}.")
    entries = [entry for run in data["run"] for scores in run["scores"].values() for entry in scores["scores"]]
    for metric in (METRICS[name] for name in ("sacrebleu", "chrf", "chrf++", "ter") if name in shown):
        signatures = {entry.get("signature") for entry in entries if entry["metric"] == metric}
        notes += [f"{metric}: `{signature}`." for signature in sorted(filter(None, signatures))]
    if "nll" in shown:
        notes.append("nll: negative log-likelihood of the averaged checkpoint in float32, bits a token.")
    if "cache" in shown:
        notes.append("Cached numbers: keys and values that decoding keeps for each token and layer of self-attention.")
    if "compound_split" in shown and any(entry["metric"] == METRICS["compound_split"] for entry in entries):
        notes.append("Compound-split BLEU flatters German: compare it with its like only.")
    if set(OF_HARDWARE) & set(shown):
        notes.append(f"Speed, time and memory of the training on: {'; '.join(sorted(data['machine'].unique()))}.")
    return notes


def _comparison(data: Any, baseline: str, group_by: Sequence[str]) -> str:
    """Every row beside that of the run ``baseline``, on each test set."""
    from collab_fairseq.scoring import significance

    named = data[data["name"] == baseline]
    if named.empty:
        names = ", ".join(data["name"])
        raise RecordError(f"no record is named {baseline}, the baseline; expected one of {names}")
    key = named["row"].iloc[0]
    base = data[data["row"] == key]
    lines = []
    for other, row in data[data["row"] != key].groupby("row", sort=False):
        for test in test_sets(row["run"]):
            compared = dict(zip(map(_header, group_by), other, strict=True))
            difference, p = _compare_rows(row, base, test)
            lines.append({**compared, "test set": test, "difference in sacreBLEU": difference, "p": p})
    if not lines:
        return ""
    about = ", ".join(f"{_header(field)} {value}" for field, value in zip(group_by, key, strict=True))
    how = f"{significance.METHOD} ({significance.SAMPLES:,} resamples), runs of one seed at a time"
    return f"Compared with {about}:\n\n{markdown(lines)}\n\np: {how}."


def _compare_rows(row: Any, base: Any, test: str) -> List[str]:
    """Difference over the pairs of runs with one seed, and each pair's p."""
    from collab_fairseq.scoring.significance import compare

    metric = f"{METRICS['sacrebleu']} {test}"
    scored = (runs[[test in run["scores"] for run in runs["run"]]] for runs in (row.dropna(subset="seed"), base))
    pairs = next(scored).merge(next(scored), on="seed", suffixes=("", " of base"))
    if pairs.empty:
        return [MISSING, "no runs of the same seed"]
    pairs["change"] = pairs[metric] - pairs[f"{metric} of base"]
    pairs = pairs.dropna(subset="change")
    p_values = []
    for system, other in zip(pairs["run"], pairs["run of base"], strict=True):
        names = [f"{run['name']} ({test})" for run in (system, other)]
        result = compare(system["scores"][test], other["scores"][test], names)
        p_values.append(f"seed {system['seed']}: " + (f"{result.p_value:.3f}" if result else "no sentence statistics"))
    return [spread(pairs["change"], 2, "+"), ", ".join(p_values) or "no sacreBLEU"]

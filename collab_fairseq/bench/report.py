"""Tables and figures of benchmark records."""

import os
from dataclasses import asdict
from typing import Any, Dict, List, Sequence

from collab_fairseq.reporting import pages
from collab_fairseq.reporting.drawing import COLOURS, MARKS, PlotError, drawing
from collab_fairseq.reporting.files import PathLike

from .goals import GOALS

#: what the contestants are called in tables, in this order
NAMES = {
    "fairseq": "(a) fairseq",
    "fairseq-self": "(a) fairseq's self-attention call",
    "fairseq-sentence": "(a') fairseq per sentence",
    "none": "ours with `none`",
    "standard-sdpa": "(b) standard, SDPA",
    "standard": "(c) standard at the key dim",
    "authors": "(d) authors, einsum",
    "authors-bmm": "(d) authors, bmm",
    "ours": "ours",
}
_MISSING = "–"


def name_of(contestant: str) -> str:
    """A contestant's name in tables; ``ours-head_loop`` is ours with that kernel."""
    return NAMES.get(contestant, contestant.replace("ours-", "ours, "))


def full_table(record: Dict[str, Any]) -> str:
    """All that a record says, as Markdown: the goals, then a table of every kind of row."""
    parts = [goal_table([record])] if record["goals"] else []
    kinds: Dict[str, List[Dict[str, Any]]] = {}
    for row in record["rows"]:
        kinds.setdefault("/".join(row["id"].split("/")[:2]), []).append(row)
    parts += [_rows_table(kind, rows) for kind, rows in kinds.items()]
    parts += [_profile_table(profile) for profile in record["profile"]]
    return "\n\n".join([*parts, about([record])]) + "\n"


def goal_table(records: Sequence[Dict[str, Any]], everything: bool = False) -> str:
    """The goals with what was measured, the headline in bold; with ``everything`` also those that no record has."""
    lines = []
    for goal in (goal for record in records for goal in record["goals"]):
        spread = f" ({goal['q1']:.3f}–{goal['q3']:.3f})" if goal["q1"] != goal["q3"] else ""
        verdict = "met" if goal["met"] else "missed"
        lines.append(_goal_line(goal, name_of(goal["baseline"]), f"{goal['measured']:.3f}{spread}", verdict))
    if everything:
        measured = {(g["row"], tuple(g["to"]), g["device"]) for record in records for g in record["goals"]}
        for goal in map(asdict, GOALS):
            if (goal["row"], goal["to"], goal["device"]) not in measured:
                verdict = "waits for a GPU" if goal["device"] == "cuda" else "not measured"
                lines.append(_goal_line(goal, " or ".join(map(name_of, goal["to"])), _MISSING, verdict))
    return pages.table([["ours", "compared with", "goal", "measured (quartiles)", ""], *lines])


def _goal_line(goal: Dict[str, Any], baseline: str, measured: str, verdict: str) -> List[str]:
    bold = "**" if goal["headline"] else ""
    where = "GPU: " if goal["device"] == "cuda" else ""
    return [f"{bold}{where}{goal['text']}{bold}", baseline, f"≤ {goal['limit']:.2f}", measured, verdict]


def about(records: Sequence[Dict[str, Any]]) -> str:
    """What was measured on what, one line per machine and setting."""
    lines = []
    for record in records:
        hardware = record["hardware"]
        machine = ", ".join(gpu["name"] for gpu in hardware["gpus"]) if hardware["device"] == "gpu" else hardware["cpu"]
        threads = "" if hardware["device"] == "gpu" else f", {hardware['threads']} thread(s)"
        quick = "; a miniature, no measurement" if record["quick"] else ""
        line = (
            f"Ratios of medians of {record['clock']} time, quartiles of the ratios within interleaved rounds; "
            f"{record['dtype']}, {machine}{threads}, torch {record['versions']['torch']}{quick}."
        )
        if line not in lines:
            lines.append(line)
    return "  \n".join(lines)


def page_part(records: Sequence[Dict[str, Any]], paths: Sequence[PathLike], folder: str) -> str:
    """The part of a page that records give: goals, what they were measured on, links to the records."""
    links = [
        f"[{record['name']}]({os.path.relpath(path, folder).replace(os.sep, '/')})"
        for record, path in zip(records, paths, strict=True)
    ]
    return "\n\n".join([goal_table(records, everything=True), about(records), f"Records: {', '.join(links)}."]) + "\n"


def _rows_table(kind: str, rows: Sequence[Dict[str, Any]]) -> str:
    present = {contestant for row in rows for contestant in row["values"]}
    shown = [name for name in NAMES if name in present]
    shown += sorted(present - set(shown))
    lines = []
    for row in rows:
        best = row["limits"].get("ours")
        cells = [_value(row, contestant) for contestant in shown]
        ours = row["values"]["ours"]["median"]
        lines.append([row["title"], *cells, f"{best / ours:.0%}" if best else _MISSING])
    limits = any(row["limits"] for row in rows)
    header = [kind, *map(name_of, shown), "share of the limit reached"]
    if not limits:
        header, lines = header[:-1], [line[:-1] for line in lines]
    return pages.table([header, *lines]) + "\n\nMedian; in brackets the ratio of ours to it."


def _value(row: Dict[str, Any], contestant: str) -> str:
    if contestant not in row["values"]:
        return _MISSING
    median = row["values"][contestant]["median"]
    shown = f"{median / 2**20:.1f} MiB" if row["unit"] == "bytes" else _seconds(median)
    if contestant in row["ratios"]:
        shown += f" ({row['ratios'][contestant]['median']:.3f})"
    limit = row["limits"].get(contestant)
    return shown if limit is None else f"{shown}, limit {_seconds(limit)}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def _profile_table(profile: Dict[str, Any]) -> str:
    lines = [
        [op["name"], f"{op['calls']:,}", _seconds(op["seconds"]), f"{op['share']:.1%}", op["kind"]]
        for op in profile["operators"]
    ]
    header = [f"{profile['row']}, {name_of(profile['contestant'])}", "calls", "own time", "share", ""]
    return pages.table([header, *lines])


def draw(record: Dict[str, Any], path: PathLike) -> None:
    """Ratios of ours to every baseline, one line of points per row, in a .png or .svg file; goals as marks.

    Raises:
        PlotError: matplotlib is not installed, the file has another ending, or there is nothing to draw.
    """
    rows = [row for row in record["rows"] if row["ratios"]]
    if not rows:
        raise PlotError("nothing to draw: the record has no ratios")
    names = [name for name in NAMES if any(name in row["ratios"] for row in rows)]
    with drawing(path, (8.0, 1.4 + 0.24 * len(rows))) as figure:
        axis = figure.subplots()
        for number, name in enumerate(names):
            points = [(row["ratios"][name], place) for place, row in enumerate(rows) if name in row["ratios"]]
            axis.errorbar(
                [ratio["median"] for ratio, _ in points],
                [place for _, place in points],
                xerr=[
                    [max(0.0, ratio["median"] - ratio["q1"]) for ratio, _ in points],
                    [max(0.0, ratio["q3"] - ratio["median"]) for ratio, _ in points],
                ],
                linestyle="none",
                label=name_of(name),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKS[(number + number // len(COLOURS)) % len(MARKS)],
            )
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(rows)), [row["id"].split("/", 1)[1] for row in rows])
        axis.invert_yaxis()
        axis.set_xlabel("ours / baseline: time, or peak memory (below 1: ours is better)")
        figure.legend(loc="outside upper center", ncols=3)

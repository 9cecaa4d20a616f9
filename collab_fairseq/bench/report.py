"""Tables and figures of benchmark records, whose parts :mod:`.runner` describes."""

import os
from typing import Any, Callable, Dict, Sequence

from collab_fairseq.records import pages
from collab_fairseq.records.drawing import PlotError, drawing, look
from collab_fairseq.records.files import PathLike

from .baselines import NAMES
from .cases import choose

Row = Dict[str, Any]


def rows_of(record: Dict[str, Any]) -> Dict[str, Row]:
    """The measured rows of a record by id."""
    own = {row: part for row, part in record["parts"].items() if part and row.startswith(f"{record['name']}/")}
    return {row: part for row, part in own.items() if "missing" not in part}


def full_table(record: Dict[str, Any]) -> str:
    """Medians and ratios of a record as Markdown, a table of every kind of row."""
    kinds: Dict[str, Dict[str, Row]] = {}
    for name, row in rows_of(record).items():
        kinds.setdefault("/".join(name.split("/")[:2]), {})[name] = row
    tables = [_table(kind, rows, "values", _value) for kind, rows in kinds.items()]
    parts = {row: part["missing"] for row, part in record["parts"].items() if part and "missing" in part}
    missing = [f"{row} is missing: {reason}" for row, reason in parts.items()]
    return "\n\n".join([*tables, "Median; in brackets the ratio of ours to it.", about([record]), *missing]) + "\n"


def ratio_table(
    records: Sequence[Dict[str, Any]], paths: Sequence[PathLike], folder: str, patterns: Sequence[str]
) -> str:
    """Ratios of ours to the baselines in rows that match shell patterns (all without), with links from a folder.

    Raises:
        BenchError: a pattern that matches no row.
    """
    rows = {name: row for record in records for name, row in rows_of(record).items()}
    rows = {name: rows[name] for name in choose(list(rows), patterns)}
    links = [
        f"[{record['name']}]({os.path.relpath(path, folder).replace(os.sep, '/')})"
        for record, path in zip(records, paths, strict=True)
    ]
    table = _table("ours, compared with", rows, "ratios", _ratio)
    return "\n\n".join([table, about(records), f"Records: {', '.join(links)}."]) + "\n"


def about(records: Sequence[Dict[str, Any]]) -> str:
    """What was measured on what, one line per machine and setting."""
    lines: Dict[str, None] = {}
    for record in records:
        hardware, settings = record["hardware"], record["settings"]
        machine = ", ".join(gpu["name"] for gpu in hardware["gpus"])
        if hardware["device"] == "cpu":
            machine = f"{hardware['cpu']}, {hardware['threads']} thread(s)"
        quick = "; a miniature, no measurement" if settings["quick"] else ""
        lines[
            f"Ratios of medians of {settings['clock']} time, ± the distance of the quartiles within the rounds, or of "
            f"peak memory; below 1, ours is faster or smaller; {settings['dtype']}, {machine}, "
            f"torch {record['versions']['torch']}{quick}."
        ] = None
    return "  \n".join(lines)


def _name(contestant: str) -> str:
    return NAMES.get(contestant, contestant.replace("ours-", "ours, "))


def _table(title: str, rows: Dict[str, Row], field: str, cell: Callable[[Row, str], str]) -> str:
    present = {contestant for row in rows.values() for contestant in row[field]}
    shown = [name for name in NAMES if name in present]
    if field == "values":  # other ways to compute ours are no baselines
        shown += sorted(present - set(shown))
    lines = [[name, *(cell(row, c) if c in row[field] else "–" for c in shown)] for name, row in rows.items()]
    return pages.table([[title, *map(_name, shown)], *lines])


def _ratio(row: Row, contestant: str) -> str:
    found = row["ratios"][contestant]
    distance = max(found["q3"] - found["median"], found["median"] - found["q1"])
    return f"{found['median']:.3f}" + (f" ± {distance:.3f}" if found["rounds"] > 1 else "")


def _value(row: Row, contestant: str) -> str:
    median = row["values"][contestant]["median"]
    shown = f"{median / 2**20:.1f} MiB" if row["unit"] == "bytes" else f"{1e3 * median:,.3f} ms"
    return f"{shown} ({row['ratios'][contestant]['median']:.3f})" if contestant in row["ratios"] else shown


def draw(record: Dict[str, Any], path: PathLike) -> None:
    """Ratios of ours to every baseline with their quartiles, one line of points per row, in a .png or .svg file.

    Raises:
        PlotError: matplotlib is not installed, the file has another ending, or there is nothing to draw.
    """
    rows = {name: row["ratios"] for name, row in rows_of(record).items() if row["ratios"]}
    if not rows:
        raise PlotError("nothing to draw: the record has no ratios")
    names = [name for name in NAMES if any(name in ratios for ratios in rows.values())]
    with drawing(path, (8.0, 1.4 + 0.24 * len(rows))) as figure:
        axis = figure.subplots()
        for number, name in enumerate(names):
            places = [place for place, ratios in enumerate(rows.values()) if name in ratios]
            found = [ratios[name] for ratios in rows.values() if name in ratios]
            medians = [ratio["median"] for ratio in found]
            below = [max(0.0, ratio["median"] - ratio["q1"]) for ratio in found]
            above = [max(0.0, ratio["q3"] - ratio["median"]) for ratio in found]
            axis.errorbar(medians, places, xerr=[below, above], linestyle="none", label=_name(name), **look(number))
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(rows)), [name.split("/", 1)[1] for name in rows])
        axis.invert_yaxis()
        axis.set_xlabel("ours / baseline: time, or peak memory (below 1: ours is better)")
        figure.legend(loc="outside upper center", ncols=3)

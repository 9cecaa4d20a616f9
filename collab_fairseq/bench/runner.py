"""Measures rows one after the other into a record that can be continued, and makes tables of records.

A part of the record, saved as soon as it is measured, is named by the row's id:

    {unit: "s" or "bytes", values, ratios: {contestant: {median, q1, q3, rounds}}}

Ratios are of "ours" to the others; {missing: SENTENCE} where a contestant computes something else, or torch fails: the
other rows are measured all the same.
"""

import logging
import os
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from collab_fairseq.records import pages
from collab_fairseq.records.files import PathLike, check_targets
from collab_fairseq.records.record import Record

from . import decoding, layers, training
from .baselines import NAMES
from .cases import Case, Options, choose
from .measure import interleave, peak_bytes, ratio, spread

logger = logging.getLogger(__name__)

_CASES = {
    "layer": layers.layer_cases,
    "decode": lambda options: [*layers.decode_cases(options), *decoding.decode_cases(options)],
    "train": training.train_cases,
}


def cases(what: str, options: Options, patterns: Sequence[str] = ()) -> List[Case]:
    """The rows of ``layer``, ``decode`` or ``train`` whose id a shell pattern matches; all without patterns."""
    found = {case.id: case for case in _CASES[what](options)}
    return [found[row] for row in choose(list(found), patterns)]


def run(
    what: str, options: Options, patterns: Sequence[str] = (), output: Optional[PathLike] = None, command: str = ""
) -> Dict[str, Any]:
    """Measure rows of ``layer``, ``decode`` or ``train``; those that the record ``output`` has are not measured again.

    Args:
        patterns: see :func:`cases`. command: for the record.

    Returns:
        The record, as described in :mod:`collab_fairseq.records.record` and at the top of this file.

    Raises:
        BenchError: options that cannot be followed.
        RecordError: ``output`` is something else, or of other settings, code, packages or hardware.
    """
    if options.quick:
        options = replace(options, rounds=min(2, options.rounds), least=1, seconds=1.0)
    chosen = cases(what, options, patterns)
    check_targets(output)
    torch.set_num_threads(options.threads)
    record = Record(
        "bench", what, command, options.settings(), output, device="gpu" if options.device == "cuda" else "cpu",
        threads=options.threads, fixed=("commit", "hardware", "versions"),
    )  # fmt: skip
    for number, case in enumerate(chosen, start=1):
        logger.info("%d of %d: %s", number, len(chosen), case.id)
        row = record.part(case.id, lambda case=case: measured(case, options))  # type: ignore[misc]
        if "missing" in row:
            logger.warning("%s is missing: %s", case.id, row["missing"])
        else:
            shown = ", ".join(f"{to} {found['median']:.3f}" for to, found in row["ratios"].items())
            logger.info("%s: ratio of ours to %s", case.id, shown)
    return record.content


def measured(case: Case, options: Options) -> Dict[str, Any]:
    """The part of a row, or why it is missing."""
    try:
        parts = case.prepare(options)
        if case.memory:
            samples = {name: [float(peak_bytes(step, options.device))] for name, step in parts[0].items()}
        else:
            samples = interleave(parts, options)
    except RuntimeError as error:  # MismatchError is one
        if options.device == "cuda":  # of what ran out of memory
            torch.cuda.empty_cache()
        return {"missing": (str(error).strip() or type(error).__name__).splitlines()[0]}
    return {
        "unit": "bytes" if case.memory else "s",
        "values": {name: spread(values) for name, values in samples.items()},
        "ratios": {name: ratio(samples["ours"], values) for name, values in samples.items() if name != "ours"},
    }


def full_table(record: Dict[str, Any]) -> str:
    """Medians and ratios of a record as Markdown, and which rows are missing."""
    missing = [
        f"{row} is missing: {part['missing']}" for row, part in record["parts"].items() if part and "missing" in part
    ]
    text = "Median; in brackets the ratio of ours to it."
    return "\n\n".join([_table("row", rows_of(record), "values", _value), text, _about([record]), *missing]) + "\n"


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
    return "\n\n".join([table, _about(records), f"Records: {', '.join(links)}."]) + "\n"


def rows_of(record: Dict[str, Any]) -> Dict[str, Any]:
    """The measured rows of a record by id."""
    return {row: part for row, part in record["parts"].items() if part and "ratios" in part}


def _table(title: str, rows: Dict[str, Any], field: str, cell: Callable[[Dict[str, Any], str], str]) -> str:
    present = {contestant for row in rows.values() for contestant in row[field]}
    shown = [name for name in NAMES if name in present]
    if field == "values":  # other ways to compute ours are no baselines
        shown += sorted(present - set(shown))
    lines = [[name, *(cell(row, c) if c in row[field] else "–" for c in shown)] for name, row in rows.items()]
    return pages.table([[title, *(NAMES.get(name, name.replace("ours-", "ours, ")) for name in shown)], *lines])


def _ratio(row: Dict[str, Any], contestant: str) -> str:
    found = row["ratios"][contestant]
    distance = max(found["q3"] - found["median"], found["median"] - found["q1"])
    return f"{found['median']:.3f}" + (f" ± {distance:.3f}" if found["rounds"] > 1 else "")


def _value(row: Dict[str, Any], contestant: str) -> str:
    median = row["values"][contestant]["median"]
    shown = f"{median / 2**20:.1f} MiB" if row["unit"] == "bytes" else f"{1e3 * median:,.3f} ms"
    return f"{shown} ({row['ratios'][contestant]['median']:.3f})" if contestant in row["ratios"] else shown


def _about(records: Sequence[Dict[str, Any]]) -> str:
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

"""Measures rows one after the other into a record that can be continued, and makes tables of records.

A part of the record, saved as soon as it is measured, is named by the row's id:

    {unit: "s" or "bytes", values, ratios: {contestant: {median, q1, q3, rounds}}}

Ratios are of "ours" to the others; {missing: SENTENCE} where a contestant computes something else, or torch fails: the
other rows are measured all the same.
"""

import fnmatch
import functools
import logging
import os
from dataclasses import asdict
from typing import Any, Dict, Iterable, List, Optional, Sequence

import torch

from collab_fairseq.records import pages
from collab_fairseq.records.files import PathLike, check_targets
from collab_fairseq.records.record import Record

from .baselines import NAMES
from .layers import decode_rows, layer_rows
from .measure import BenchError, Options, Row, interleave, peak_bytes, ratio, spread
from .programs import train_rows, translate_rows

logger = logging.getLogger(__name__)


def rows(what: str, options: Options) -> Dict[str, Row]:
    """The rows of ``layer``, ``decode`` or ``train`` by id."""
    if what == "layer":
        return layer_rows(options.quick)
    if what == "train":
        return train_rows(options.quick, options.compile)
    return {**decode_rows(options.quick), **translate_rows(options.quick, options.dtype == "float32")}


def choose(ids: Iterable[str], patterns: Sequence[str]) -> List[str]:
    """The ids that a shell pattern matches; all without patterns.

    Raises:
        BenchError: a pattern that matches none.
    """
    ids = list(ids)
    for pattern in patterns:
        if not fnmatch.filter(ids, pattern):
            raise BenchError(f"--rows {pattern} matches no row; the rows are {', '.join(ids)}")
    return [row for row in ids if not patterns or any(fnmatch.fnmatchcase(row, pattern) for pattern in patterns)]


def run(
    what: str, options: Options, patterns: Sequence[str] = (), output: Optional[PathLike] = None, command: str = ""
) -> Dict[str, Any]:
    """Measure rows of ``layer``, ``decode`` or ``train``; those that the record ``output`` has are not measured again.

    Args:
        patterns: see :func:`choose`. command: for the record.

    Returns:
        The record, as described in :mod:`collab_fairseq.records.record` and at the top of this file.

    Raises:
        BenchError: options that cannot be followed.
        RecordError: ``output`` is something else, or of other settings, code, packages or hardware.
    """
    found = rows(what, options)
    chosen = choose(found, patterns)
    check_targets(output)
    torch.set_num_threads(options.threads)
    record = Record(
        "bench", what, command, asdict(options), output, device="gpu" if options.device == "cuda" else "cpu",
        threads=options.threads, fixed=("commit", "hardware", "versions"),
    )  # fmt: skip
    for number, name in enumerate(chosen, start=1):
        logger.info("%d of %d: %s", number, len(chosen), name)
        row = record.part(name, functools.partial(_measured, name, found[name], options))
        if "missing" in row:
            logger.warning("%s is missing: %s", name, row["missing"])
        else:
            median = row["values"]["ours"]["median"]
            ours = f"{1e3 * median:.3f} ms" if row["unit"] == "s" else f"{median / 2**20:.1f} MiB"
            shown = ", ".join(f"{to} {other['median']:.3f}" for to, other in row["ratios"].items())
            logger.info("%s: ours %s, ratio of ours to %s", name, ours, shown)
    return record.content


def _measured(name: str, row: Row, options: Options) -> Dict[str, Any]:
    """The part of a row, or why it is missing. Rows whose id ends with ``memory`` are of its peak, others of time."""
    memory = name.endswith("memory")
    try:
        parts = row(options)
        if memory:
            samples = {name: [float(peak_bytes(step, options.device))] for name, step in parts[0].items()}
        else:
            samples = interleave(parts, options)
    except RuntimeError as error:  # BenchError is one
        if options.device == "cuda":  # of what ran out of memory
            torch.cuda.empty_cache()
        return {"missing": (str(error).strip() or type(error).__name__).splitlines()[0]}
    return {
        "unit": "bytes" if memory else "s",
        "values": {name: spread(values) for name, values in samples.items()},
        "ratios": {name: ratio(samples["ours"], values) for name, values in samples.items() if name != "ours"},
    }


def table(
    records: Sequence[Dict[str, Any]], patterns: Sequence[str] = (), paths: Sequence[PathLike] = (), folder: str = "."
) -> str:
    """Ratios of ours to the baselines as Markdown.

    Args:
        patterns: see :func:`choose`. paths: of the records, which links from ``folder`` name.

    Raises:
        BenchError: a pattern that matches no row.
    """
    parts = {name: part for record in records for name, part in record["parts"].items() if part and "ratios" in part}
    parts = {name: parts[name] for name in choose(parts, patterns)}
    present = {contestant for part in parts.values() for contestant in part["ratios"]}
    shown = [name for name in NAMES if name in present]  # other ways to compute ours are no baselines
    lines = [[name, *(_ratio(part["ratios"].get(one)) for one in shown)] for name, part in parts.items()]
    text = [pages.table([["ours, compared with", *(NAMES[name] for name in shown)], *lines]), _about(records)]
    links = [
        f"[{record['name']}]({os.path.relpath(path, folder).replace(os.sep, '/')})"
        for record, path in zip(records, paths, strict=False)
    ]
    return "\n\n".join([*text, *([f"Records: {', '.join(links)}."] if links else [])]) + "\n"


def _ratio(found: Optional[Dict[str, Any]]) -> str:
    if found is None:
        return "–"
    distance = max(found["q3"] - found["median"], found["median"] - found["q1"])
    return f"{found['median']:.3f}" + (f" ± {distance:.3f}" if found["rounds"] > 1 else "")


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

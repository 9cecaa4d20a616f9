"""Print the ratios of records of ``python -m benchmarks``: python -m benchmarks.table RECORD ... [--rows PATTERN]"""

import argparse
import fnmatch
import os
import sys
from typing import Any, Dict, Iterable, List, Optional, Sequence

from collab_fairseq.cli.main import guarded
from collab_fairseq.files import PathLike
from collab_fairseq.records import pages
from collab_fairseq.records.record import load
from collab_fairseq.records.rows import hardware
from fairseq_modern.errors import UserError

#: implementation → column; some implementations are in published records only
LABELS = {
    # fairseq's MultiheadAttention with its own batched products, as in cross-attention and decoding
    "fairseq": "(a) fairseq",
    # the same module as called by fairseq's encoder: torch's multi_head_attention_forward
    "fairseq-self": "(a) fairseq's self-attention call",
    "fairseq-sentence": "(a') fairseq per sentence",  # in records only: keys and values cached once per sentence
    "fairseq-bf16": "(a) fairseq in bf16",
    "none": "ours with `none`",  # whole models with standard heads in our layers
    "ours-bmm": "ours with kernel `bmm`",
    "standard-sdpa": "(b) standard, SDPA",  # standard heads with torch's scaled_dot_product_attention
    "standard": "(c) standard, same key dimension",  # in records only: standard heads at our key dimension
    # collaborative heads as in the paper's code: the mixed keys of all heads are stored and cached
    "authors": "(d) authors, einsum",
    "authors-bmm": "(d) authors, bmm",  # in records only: the same with batched products
}
CLOCK_NAMES = {"wall": "wall time", "processor": "CPU time"}


def choose(ids: Iterable[str], patterns: Sequence[str]) -> List[str]:
    """The ids that match one of the shell patterns (no patterns: all ids).

    Raises:
        UserError: a pattern matches no id.
    """
    ids = list(ids)
    for pattern in patterns:
        if not fnmatch.filter(ids, pattern):
            raise UserError(f"--rows {pattern} matches no row; the rows are {', '.join(ids)}")
    return [name for name in ids if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def table(
    records: Sequence[Dict[str, Any]], patterns: Sequence[str] = (), paths: Sequence[PathLike] = (), folder: str = "."
) -> str:
    """Ratios of ours to the baselines as Markdown.

    Args:
        patterns: see :func:`choose`.
        paths: files of the records, for links from a page in ``folder``.

    Raises:
        UserError: a pattern matches no row, the records have none, as those of other benchmarks, or two records have
            the same row.
    """
    measured = [_measured(record) for record in records]
    rows = [name for parts in measured for name in parts]
    if not rows:
        raise UserError("the records must have ratios of python -m benchmarks; got none")
    chosen = choose(dict.fromkeys(rows), patterns)
    repeated = [name for name in chosen if rows.count(name) > 1]
    if repeated:
        raise UserError(f"{repeated[0]} must be in one record only; got several: omit some records, or give --rows")
    parts = {name: part for parts in measured for name, part in parts.items() if name in chosen}
    present = {implementation for part in parts.values() for implementation in part["ratios"]}
    columns = [name for name in LABELS if name in present]
    lines = [[name, *(_ratio(parts[name]["ratios"].get(column)) for column in columns)] for name in chosen]
    header = ["ours, compared with", *(LABELS[name] for name in columns)]
    used = [index for index, parts in enumerate(measured) if set(chosen) & set(parts)]
    paragraphs = [pages.table([header, *lines]), _about([records[index] for index in used])]
    links = [
        f"[{records[index]['name']}]({os.path.relpath(paths[index], folder).replace(os.sep, '/')})"
        for index in used
        if paths
    ]
    if links:
        paragraphs.append(f"Records: {', '.join(links)}.")
    return "\n\n".join(paragraphs) + "\n"


def _measured(record: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Row → part of the record, for rows with ratios."""
    return {name: part for name, part in record["parts"].items() if isinstance(part, dict) and "ratios" in part}


def _ratio(ratio: Optional[Dict[str, Any]]) -> str:
    if ratio is None:
        return "–"
    distance = max(ratio["q3"] - ratio["median"], ratio["median"] - ratio["q1"])
    return f"{ratio['median']:.3f}" + (f" ± {distance:.3f}" if ratio["rounds"] > 1 else "")


def _about(records: Sequence[Dict[str, Any]]) -> str:
    """The meaning of the numbers, one line per clock, and one line per machine and setting."""
    clocks: List[str] = []
    machines: List[str] = []
    for record in records:
        settings = record["settings"]
        clocks.append(
            f"Ratio of the medians of {CLOCK_NAMES[settings['clock']]}, ours divided by the other, ± the larger "
            "distance to a quartile of the ratios within rounds; in memory rows, of peak memory. Below 1, ours is "
            "faster or smaller."
        )
        dtype = settings["dtype"] + ("" if settings["dtype"] == "bfloat16" else " unless the row or column says bf16")
        machines.append(f"Measured in {dtype}, {hardware(record)}, torch {record['versions']['torch']}.")
    return "  \n".join(dict.fromkeys([*clocks, *machines]))


def add_rows(parser: argparse.ArgumentParser) -> None:
    """--rows."""
    text = "only rows whose ids match, such as 'layer/encoder/*/dk128/*'; repeatable (ids: python -m benchmarks --help)"
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help=text)


def markdown(arguments: Sequence[str], folder: str) -> str:
    """The table of these arguments, with links relative to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", metavar="RECORD", help="record of python -m benchmarks")
    add_rows(parser)
    args = parser.parse_args(arguments)
    return table([load(path, "bench") for path in args.records], args.rows, args.records, folder)


if __name__ == "__main__":
    sys.exit(guarded("table.py", lambda: sys.stdout.write(markdown(sys.argv[1:], os.getcwd())) and 0))

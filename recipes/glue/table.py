#!/usr/bin/env python3
"""A table like Table 2 of the paper, from the records of this recipe, the paper's own numbers beside.

    table.py runs/glue/*/seed*/*/record.json [--paper] [--output PAGE --marker NAME]
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any, Dict, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tasks import GLUE

from collab_fairseq.reporting import pages
from collab_fairseq.reporting.pages import PageError, publish
from collab_fairseq.reporting.schema import RecordError

#: Table 2 of https://arxiv.org/abs/2006.16362: (type, layers, width) → key dim → millions of parameters, average;
#: key dim None: standard heads
PAPER: Dict[Tuple[str, int, int], Dict[Optional[int], Tuple[float, float]]] = {
    ("bert", 12, 768): {
        None: (108.3, 83.0), 768: (108.5, 83.2), 384: (101.4, 82.5), 256: (99.0, 81.7), 128: (96.6, 77.6)
    },
    ("distilbert", 6, 768): {None: (66.4, 80.0), 384: (62.9, 79.1)},
    ("albert", 12, 768): {None: (11.7, 85.3), 512: (11.3, 83.1), 384: (11.1, 77.9)},
}  # fmt: skip


def load(path: Path) -> Dict[str, Any]:
    try:
        record: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["kind"] != "glue" or record["schema"] != 1:
            raise RecordError(f"{path} must have kind glue and schema 1")
        record["stages"][0]["score"], record["model"]["width"], record["task"], record["seed"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path} must be a record of recipes/glue, but: {error!r}") from error
    return record


NAMES = {"bert": "BERT-base", "distilbert": "DistilBERT", "albert": "ALBERT-base"}


def table(records: List[Dict[str, Any]], paper: bool = False) -> str:
    """Markdown. Scores are means over seeds; an average is given where no task of GLUE is missing.

    Args:
        records: of this recipe.
        paper: rows of the paper that no record is for, too.
    """
    scores: Dict[Any, List[float]] = defaultdict(list)
    sizes: Dict[Any, int] = {}
    shown: Dict[str, None] = {}
    for record in records:
        kind = record["model"]
        key = (kind["name"].strip("/").rsplit("/", 1)[-1], (kind["type"], kind["layers"], kind["width"]))
        shown[record["task"]] = None
        for stage in record["stages"]:
            scores[key, stage["key_dim"], stage["stage"], record["task"]].append(stage["score"])
            sizes[key, stage["key_dim"]] = stage["parameters"]
    if paper:
        measured = {(key[1], key_dim) for key, key_dim in sizes}
        for shape, rows in PAPER.items():
            sizes.update({((NAMES[shape[0]], shape), row): 0 for row in rows if (shape, row) not in measured})
    tasks = [task for task in {**GLUE, **shown} if task in shown]
    averaged = list(GLUE) if GLUE.keys() & shown.keys() else tasks

    def cells(key: Any, key_dim: Optional[int], stage: str) -> List[Optional[float]]:
        found = [scores.get((key, key_dim, stage, task)) for task in tasks]
        return [mean(values) if values else None for values in found]

    def average(values: List[Optional[float]]) -> str:
        present = {task: value for task, value in zip(tasks, values, strict=True) if value is not None}
        return f"{mean(present[task] for task in averaged):.1f}" if present and present.keys() >= set(averaged) else "–"

    def millions(size: int) -> str:
        return "–" if size == 0 else f"{size / 1e6:.3g}" if size < 1e6 else f"{size / 1e6:.1f}"

    head = ["model", "heads", "key dim", "parameters (M)", *tasks, "average", "average before the second fine-tuning",
            "paper: parameters (M)", "paper: average"]  # fmt: skip
    rows = [head]
    for key, key_dim in sorted(sizes, key=lambda pair: (pair[0], -(pair[1] or sys.maxsize))):
        (name, shape), tuned = key, cells(key, key_dim, "standard" if key_dim is None else "tuned")
        only = "" if key_dim is None else average(cells(key, key_dim, "converted"))
        published = PAPER.get(shape, {}).get(key_dim)
        rows.append([
            name, "standard" if key_dim is None else "collaborative", str(key_dim or shape[2]),
            millions(sizes[key, key_dim]),
            *(f"{value:.1f}" if value is not None else "–" for value in tuned), average(tuned), only,
            *(f"{value:.1f}" if value is not None else "–" for value in (published or (None, None))),
        ])  # fmt: skip
    if not records:
        return pages.table(rows) + "\n"
    seeds = sorted({record["seed"] for record in records})
    names = ", ".join(sorted(record["name"] for record in records))
    return (
        f"{pages.table(rows)}\n\nValidation sets; seeds {', '.join(map(str, seeds))}; "
        f"100 times the mean of a task's metrics. Records: {names}.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--paper", action="store_true", help="add the paper's rows that no record is for")
    parser.add_argument("--output", help="page to write (default: standard output)")
    parser.add_argument("--marker", help="write only the part of the page between these markers")
    args = parser.parse_args()
    if not args.records and not args.paper:
        parser.error("records are needed, or --paper")
    if args.marker and not args.output:
        parser.error("--marker needs --output")
    try:
        text = table([load(path) for path in args.records], args.paper)
        sys.stdout.write(f"{publish(text, args.output, args.marker)}\n" if args.output else text)
    except (RecordError, PageError) as error:
        sys.stderr.write(f"table.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

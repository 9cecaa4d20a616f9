#!/usr/bin/env python3
"""A table like Table 2 of the paper, from records of run.py: table.py runs/glue/*/seed*/*/record.json"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any, Dict, List, Optional, Tuple

from tasks import GLUE, TASKS

from collab_fairseq.records import pages

#: Table 2 of https://arxiv.org/abs/2006.16362: key dim (None: standard heads) → millions of parameters, average
PAPER: Dict[Tuple[str, int], Dict[Optional[int], Tuple[float, float]]] = {
    ("bert", 768): {None: (108.3, 83.0), 768: (108.5, 83.2), 384: (101.4, 82.5), 256: (99.0, 81.7), 128: (96.6, 77.6)},
    ("distilbert", 768): {None: (66.4, 80.0), 384: (62.9, 79.1)},
    ("albert", 768): {None: (11.7, 85.3), 512: (11.3, 83.1), 384: (11.1, 77.9)},
}
NAMES = ("model", "heads", "key dim", "parameters (M)")
AVERAGES = ("average", "average before the second fine-tuning", "paper: parameters (M)", "paper: average")


def table(records: List[Dict[str, Any]]) -> str:
    """Markdown. Scores are means over seeds; an average is given where no task of GLUE is missing."""
    scores: Dict[Any, List[float]] = defaultdict(list)
    sizes: Dict[Any, int] = {}
    tasks = [task for task in TASKS if any(record["task"] == task for record in records)]
    for record in records:
        kind = record["model"]
        for stage in record["stages"]:
            key = (Path(kind["name"]).name, kind["type"], kind["width"], stage["key_dim"])
            sizes[key] = stage["parameters"]
            scores[key, stage["stage"], record["task"]].append(stage["score"])

    def cells(key: Any, stage: str) -> List[str]:
        """The score of each task, and the average."""
        found = {task: mean(scores[key, stage, task]) for task in tasks if scores[key, stage, task]}
        wanted = GLUE if found.keys() & GLUE.keys() else tasks
        whole = mean(found.values()) if found.keys() >= set(wanted) else None
        return ["–" if value is None else f"{value:.1f}" for value in (*map(found.get, tasks), whole)]

    rows = [[*NAMES, *tasks, *AVERAGES]]
    for key in sorted(sizes, key=lambda key: (key[:3], -(key[3] or sys.maxsize))):
        name, kind, width, key_dim = key
        heads, stage = ("standard", "standard") if key_dim is None else ("collaborative", "tuned")
        before = "" if key_dim is None else cells(key, "converted")[-1]
        paper = [str(number) for number in PAPER.get((kind, width), {}).get(key_dim, ("–", "–"))]
        size = f"{sizes[key] / 1e6:.{1 if sizes[key] >= 1e6 else 3}f}"
        rows.append([name, heads, str(key_dim or width), size, *cells(key, stage), before, *paper])
    seeds = sorted({str(record["seed"]) for record in records})
    remark = f"Validation sets; seeds {', '.join(seeds)}; 100 times the mean of a task's metrics."
    return f"{pages.table(rows)}\n\n{remark}\n"


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]))

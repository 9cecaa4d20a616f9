#!/usr/bin/env python3
"""A table like Table 2 of the paper, from records of run.py: table.py runs/glue/*/seed*/*/record.json"""

import sys
from typing import Any, Dict, List, Tuple

import pandas
from tasks import GLUE, TASKS

from collab_fairseq.records import pages
from collab_fairseq.records.record import load

#: Table 2 of https://arxiv.org/abs/2006.16362: key dim (0: standard heads) → millions of parameters, average
PAPER: Dict[Tuple[str, int], Dict[int, Tuple[float, float]]] = {
    ("bert", 768): {0: (108.3, 83.0), 768: (108.5, 83.2), 384: (101.4, 82.5), 256: (99.0, 81.7), 128: (96.6, 77.6)},
    ("distilbert", 768): {0: (66.4, 80.0), 384: (62.9, 79.1)},
    ("albert", 768): {0: (11.7, 85.3), 512: (11.3, 83.1), 384: (11.1, 77.9)},
}
HEADS = {"standard": "standard", "converted": "collaborative, not fine-tuned again", "tuned": "collaborative"}


def table(records: List[Dict[str, Any]]) -> str:
    """Markdown. Scores are means over seeds; an average is given where no task of GLUE is missing."""
    found = []
    for settings, parts in ((record["settings"], record["parts"]) for record in records):
        for name, part in parts.items():
            stage, _, key_dim = name.partition("/")  # standard, converted/384, tuned/384
            about = {**settings["model"], "task": settings["task"], "seed": settings["seed"]}
            found.append({**about, "stage": stage, "key_dim": int(key_dim or 0), **part})
    data = pandas.DataFrame(found)
    tasks = [task for task in TASKS if task in set(data["task"])]
    index = ["name", "type", "width", "key_dim", "stage"]
    scores = data.pivot_table(values="score", index=index, columns="task")[tasks]  # the mean over seeds
    parameters = data.groupby(index)["parameters"].max()  # a task of more labels has a little larger classifier
    whole = GLUE if set(tasks) & set(GLUE) else tasks
    scores["average"] = scores.reindex(columns=[*whole]).mean(axis=1, skipna=False)
    rows = [["model", "heads", "key dim", "parameters (M)", *tasks, "average", "paper: parameters (M)", "average"]]
    # standard heads first, then large key dims
    for key in sorted(scores.index, key=lambda key: (key[:3], -(key[3] or sys.maxsize), key[4])):
        name, kind, width, key_dim, stage = key
        size = parameters[key]
        cells = ["–" if pandas.isna(value) else f"{value:.1f}" for value in scores.loc[key]]
        paper = ("", "") if stage == "converted" else PAPER.get((kind, width), {}).get(key_dim, ("–", "–"))
        millions = f"{size / 1e6:.{1 if size >= 1e6 else 3}f}"
        rows.append([name, HEADS[stage], str(key_dim or width), millions, *cells, *map(str, paper)])
    seeds = ", ".join(map(str, sorted(set(data["seed"]))))
    return f"{pages.table(rows)}\n\nValidation sets; seeds {seeds}; 100 times the mean of a task's metrics.\n"


if __name__ == "__main__":
    sys.stdout.write(table([load(path, "study") for path in sys.argv[1:]]))

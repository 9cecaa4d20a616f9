#!/usr/bin/env python3
"""Table 2 of the paper from records of run.py: table.py runs/glue/*/seed*/*/record.json"""

import sys
from typing import Any, Dict, List, Tuple

import pandas
from tasks import GLUE, TASKS

from collab_fairseq.cli.main import guarded
from collab_fairseq.records import pages
from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError

#: Table 2 of https://arxiv.org/abs/2006.16362: key dimension (0: standard heads) → millions of parameters, average
PAPER: Dict[Tuple[str, int], Dict[int, Tuple[float, float]]] = {
    ("bert", 768): {0: (108.3, 83.0), 768: (108.5, 83.2), 384: (101.4, 82.5), 256: (99.0, 81.7), 128: (96.6, 77.6)},
    ("distilbert", 768): {0: (66.4, 80.0), 384: (62.9, 79.1)},
    ("albert", 768): {0: (11.7, 85.3), 512: (11.3, 83.1), 384: (11.1, 77.9)},
}
#: settings in which the records of one model and task may differ
VARYING = ("seed", "transformers")
HEADS = {"standard": "standard", "converted": "collaborative, not fine-tuned again", "tuned": "collaborative"}


def table(records: List[Dict[str, Any]]) -> str:
    """The table in Markdown, with means over seeds; the average requires all tasks of GLUE.

    Raises:
        UserError: no stage is finished, or records of one model and task have the same seed or other different
            settings.
    """
    results = []
    shared: Dict[Tuple[str, str], Dict[str, Any]] = {}
    for record in records:
        settings = record["settings"]
        name, others = settings["model"]["name"], {key: settings[key] for key in settings if key not in VARYING}
        first = shared.setdefault((name, settings["task"]), others)
        different = [key for key in {**first, **others} if first.get(key) != others.get(key)]
        if different:
            raise UserError(f"records of {name} on {settings['task']} must differ in the seed only; got {different[0]}")
        model = {**settings["model"], "task": settings["task"], "seed": settings["seed"]}
        for name, part in record["parts"].items():
            stage, _, key_dim = name.partition("/")  # standard, converted/384, tuned/384
            results.append({**model, "stage": stage, "key_dim": int(key_dim or 0), **part})
    if not results:
        raise UserError("the records must have finished stages; got none")
    data = pandas.DataFrame(results)
    tasks = [task for task in TASKS if task in set(data["task"])]
    index = ["name", "type", "width", "key_dim", "stage"]
    repeated = data[data.duplicated([*index, "task", "seed"])]
    if len(repeated):
        name, task, seed = repeated.iloc[0][["name", "task", "seed"]]
        raise UserError(f"records of {name} on {task} must have different seeds; got {seed} twice")
    scores = data.pivot_table(values="score", index=index, columns="task")[tasks]  # the mean over seeds
    counts = data.pivot_table(values="score", index=index, columns="task", aggfunc="count")[tasks]
    seeds_of = data.groupby(["name", "task"])["seed"].nunique()
    parameters = data.groupby(index)["parameters"].max()  # classifiers differ by their number of labels
    required = GLUE if set(tasks) & set(GLUE) else tasks
    scores["average"] = scores.reindex(columns=[*required]).mean(axis=1, skipna=False)
    header = ["model", "heads", "key dimension", "parameters (M)", *tasks, "average"]
    rows = [[*header, "paper: parameters (M)", "average"]]
    # standard heads first, then by decreasing key dimension
    for key in sorted(scores.index, key=lambda key: (key[:3], -(key[3] or sys.maxsize), key[4])):
        name, model_type, width, key_dim, stage = key
        millions = parameters[key] / 1e6
        size = f"{millions:.1f}" if millions >= 1 else f"{millions:.3f}"
        cells = ["–" if pandas.isna(value) else f"{value:.1f}" for value in scores.loc[key]]
        for column, task in enumerate(tasks):  # a stage that not all seeds have finished
            if counts.loc[key, task] < seeds_of.get((name, task), 0):
                cells[column] += f" (of {counts.loc[key, task]:.0f})"
        paper = PAPER.get((model_type, width), {}).get(key_dim, ("–", "–"))
        if stage == "converted":
            paper = ("", "")
        rows.append([name, HEADS[stage], str(key_dim or width), size, *cells, *map(str, paper)])
    seeds = ", ".join(map(str, sorted(set(data["seed"]))))
    return f"{pages.table(rows)}\n\nValidation sets; seeds {seeds}; 100 times the mean of a task's metrics.\n"


def main() -> None:
    sys.stdout.write(table([load(path, "study") for path in sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(guarded("table.py", main))

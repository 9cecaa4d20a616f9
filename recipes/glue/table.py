"""Tables of GLUE studies from records of run.py, with the paper's Table 2: scores, differences, what is missing.

    python -m recipes glue table runs/glue/*/seed*/*/record.json
    python -m recipes glue table results/glue/*.json --tasks cola,mrpc,stsb,rte --seeds 1,2,3 --key-dims 384,192,128,64

With --tasks, --seeds and --key-dims, everything that the records lack of this grid is listed as missing.
"""

import argparse
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from collab_fairseq.cli.options import numbers
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import number_text
from collab_fairseq.records.record import load
from collab_fairseq.scoring.significance import interval
from fairseq_modern.errors import UserError
from recipes.glue.paper import NAMES, PAPER, SOURCE, WIDTH
from recipes.glue.tasks import TASKS, TITLES

#: settings in which the records of one model and task may differ
VARYING = ("seed", "transformers")
CONSTANT, STANDARD = "constant", "standard"
HEADS = {CONSTANT: "constant prediction", STANDARD: "standard"}
HEADS.update(converted="converted", tuned="converted and tuned")
#: column of the mean over the tasks
MEAN = "mean"


class Grid(NamedTuple):
    """What a study consists of; empty: what its records have."""

    tasks: Sequence[str] = ()
    seeds: Sequence[int] = ()
    key_dims: Sequence[int] = ()


class Study:
    """The records of one model.

    Attributes:
        model: ``name``, ``type`` and ``width``.
        scores: stage (``standard``, ``converted/384``, …) → task → seed → score.
        parameters: stage → largest number of parameters; classifiers differ by their number of labels.
        tasks, seeds, key_dims: those of the grid and of the records, in order.
    """

    def __init__(self, model: Mapping[str, Any], records: Sequence[Mapping[str, Any]], grid: Grid) -> None:
        self.model = model
        self.scores: Dict[str, Dict[str, Dict[int, float]]] = {}
        self.parameters: Dict[str, int] = {}
        settings = [record["settings"] for record in records]
        for record in records:
            task, seed = record["settings"]["task"], record["settings"]["seed"]
            for stage, part in record["parts"].items():
                by_seed = self.scores.setdefault(stage, {}).setdefault(task, {})
                if seed in by_seed:
                    raise UserError(f"records of {model['name']} on {task} must have different seeds; got {seed} twice")
                by_seed[seed] = part["score"]
                self.parameters[stage] = max(part.get("parameters", 0), self.parameters.get(stage, 0))
        measured = {int(stage.partition("/")[2]) for stage in self.scores if "/" in stage}
        self.tasks = sorted({*grid.tasks, *(each["task"] for each in settings)}, key=list(TASKS).index)
        self.seeds = sorted({*grid.seeds, *(each["seed"] for each in settings)})
        self.key_dims = sorted({*grid.key_dims, *measured}, reverse=True)

    @property
    def stages(self) -> List[str]:
        """In the order of the tables."""
        converted = [f"{kind}/{key_dim}" for key_dim in self.key_dims for kind in ("converted", "tuned")]
        return [CONSTANT, STANDARD, *converted]

    def by_seed(self, stage: str, task: str) -> Dict[int, float]:
        """Seed → score; for :data:`MEAN`, the mean over the tasks, of seeds that have all of them."""
        of_tasks = self.scores.get(stage, {})
        if task != MEAN:
            return of_tasks.get(task, {})
        scores = [of_tasks.get(each, {}) for each in self.tasks]
        complete = [seed for seed in self.seeds if all(seed in each for each in scores)]
        return {seed: statistics.mean(each[seed] for each in scores) for seed in complete}

    def differences(self, stage: str, baseline: str, task: str) -> List[float]:
        """Differences of two stages, of seeds that have both."""
        scores, base = self.by_seed(stage, task), self.by_seed(baseline, task)
        return [scores[seed] - base[seed] for seed in sorted(scores) if seed in base]

    def missing(self) -> List[str]:
        """What the records lack: task, seed and stages."""
        lines = []
        for task in self.tasks:
            for seed in self.seeds:
                stages = [stage for stage in self.stages if seed not in self.by_seed(stage, task)]
                if stages:
                    which = "all stages" if stages == self.stages else ", ".join(stages)
                    lines.append(f"{TITLES[task]}, seed {seed}: {which}")
        return lines


def studies(records: Sequence[Dict[str, Any]], grid: Optional[Grid] = None) -> List[Study]:
    """The study of each model.

    Raises:
        UserError: records of one model and task have the same seed or other different settings.
    """
    shared: Dict[Tuple[str, str], Dict[str, Any]] = {}
    by_model: Dict[str, List[Dict[str, Any]]] = {}
    for record in records:
        settings = record["settings"]
        name, others = settings["model"]["name"], {key: settings[key] for key in settings if key not in VARYING}
        first = shared.setdefault((name, settings["task"]), others)
        different = [key for key in {**first, **others} if first.get(key) != others.get(key)]
        if different:
            raise UserError(f"records of {name} on {settings['task']} must differ in the seed only; got {different[0]}")
        by_model.setdefault(name, []).append(record)
    models = [of_model[0]["settings"]["model"] for of_model in by_model.values()]
    return [Study(model, by_model[model["name"]], grid or Grid()) for model in models]


def table(records: Sequence[Dict[str, Any]], grid: Optional[Grid] = None) -> str:
    """The tables of all models in Markdown.

    Raises:
        UserError: no stage is finished and there is no grid, or see :func:`studies`.
    """
    found = studies(records, grid)
    if not any(study.scores for study in found):
        if not grid or not (grid.tasks and grid.seeds):
            raise UserError("the records must have finished stages; got none")
        tasks = ", ".join(TITLES[task] for task in grid.tasks)
        return f"Nothing has been measured yet. Missing: {tasks}, with seeds {', '.join(map(str, grid.seeds))}.\n"
    return "\n".join(map(section, found))


def section(study: Study) -> str:
    """Both tables of one model, and what is missing."""
    columns = [*study.tasks, MEAN]
    width = study.model["width"]
    header = ["heads", "key dimension", "parameters (M)", *(TITLES.get(task, task) for task in columns)]
    rows, changes = [header], [["stage", "compared with", *header[3:]]]
    for stage in study.stages:
        kind, _, key_dim = stage.partition("/")
        if stage not in study.scores:
            continue
        dimension = "" if kind == CONSTANT else _part_of(int(key_dim or width), width)
        size = study.parameters[stage]
        millions = "" if kind == CONSTANT else f"{size / 1e6:.{1 if size >= 1e6 else 3}f}"
        rows.append([HEADS[kind], dimension, millions, *(_median(study, stage, task) for task in columns)])
        baselines = {"converted": [STANDARD], "tuned": [STANDARD, f"tuned/{width}"]}.get(kind, [])
        for baseline in baselines:
            if baseline in study.scores and baseline != stage:
                cells = [_interval(study.differences(stage, baseline, task)) for task in columns]
                changes.append([f"{HEADS[kind]}, {key_dim}", _described(baseline), *cells])
    paper_rows, paper_changes = _paper(study) if study.model["type"] in PAPER else ([], [])
    comparison = f" For comparison, another model: {NAMES[study.model['type']]} in {SOURCE}." if paper_rows else ""
    seeds = ", ".join(map(str, study.seeds))
    text = [
        f"{study.model['name']}: median and range over the seeds {seeds}, on the validation sets; 100 × the mean of a "
        f"task's metrics.{comparison}",
        pages.table([*rows, *paper_rows], numbers=True),
        "Differences of the same seed, mean and 95 % interval (Student's t); bold: the interval excludes 0. For the "
        "paper, differences of the medians.",
        pages.table([*changes, *paper_changes], numbers=True),
    ]
    missing = study.missing()
    text.append(f"Missing: {'; '.join(missing)}." if missing else "Nothing is missing.")
    return "\n\n".join(text) + "\n"


def _paper(study: Study) -> Tuple[List[List[str]], List[List[str]]]:
    """Rows of the paper for both tables."""
    paper, name = PAPER[study.model["type"]], NAMES[study.model["type"]]
    rows, changes = [], []
    columns = [*study.tasks, MEAN]
    standard = paper[0].scores
    for key_dim, row in paper.items():
        heads = f"{name}: {'converted and tuned' if key_dim else 'standard'}"
        scores = _with_mean(row.scores, study.tasks)
        cells = [f"{scores[task]:.1f}" if task in scores else "–" for task in columns]
        rows.append([heads, _part_of(key_dim or WIDTH, WIDTH), f"{row.parameters}", *cells])
        if key_dim:
            base = _with_mean(standard, study.tasks)
            cells = [number_text(scores[task] - base[task], 1) if task in scores else "–" for task in columns]
            changes.append([f"{heads}, {key_dim}", STANDARD, *cells])
    return rows, changes


def _with_mean(scores: Mapping[str, float], tasks: Sequence[str]) -> Dict[str, float]:
    """The scores with their mean over the tasks, if there are all."""
    complete = all(task in scores for task in tasks)
    return {**scores, MEAN: statistics.mean(scores[task] for task in tasks)} if complete else dict(scores)


def _part_of(key_dim: int, width: int) -> str:
    return f"{key_dim} ({Fraction(key_dim, width)})"


def _described(stage: str) -> str:
    kind, _, key_dim = stage.partition("/")
    return f"{HEADS[kind]}, {key_dim}" if key_dim else HEADS[kind]


def _median(study: Study, stage: str, task: str) -> str:
    """Median and range over the seeds; the number of seeds if some are missing."""
    scores = list(study.by_seed(stage, task).values())
    if not scores:
        return "–"
    text = number_text(statistics.median(scores), 1)
    if max(scores) > min(scores):
        text += f" ({number_text(min(scores), 1)}–{number_text(max(scores), 1)})"
    return text if len(scores) == len(study.seeds) else f"{text}, {len(scores)} of {len(study.seeds)} seeds"


def _interval(differences: Sequence[float]) -> str:
    """Mean and 95 % interval, bold if it excludes 0; no interval of a single difference."""
    if not differences:
        return "–"
    mean, low, high = interval(differences)
    if len(differences) == 1:
        return number_text(mean, 1)
    text = f"{number_text(mean, 1)} [{number_text(low, 1)}, {number_text(high, 1)}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def existing(records: Sequence[Path]) -> List[Path]:
    """Without patterns that match nothing, which shells and pages leave as they are."""
    return [path for path in records if path.exists() or not set("*?[") & set(path.name)]


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The tables that the command prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("records", nargs="*", type=Path, metavar="RECORD", help="record.json of run.py")
    add("--tasks", type=lambda text: text.split(","), default=[], metavar="NAME,…", help="tasks of the study")
    add("--seeds", type=numbers, default=[], metavar="N,…", help="seeds of the study")
    add("--key-dims", type=numbers, default=[], metavar="N,…", help="key dimensions of the study")
    args = parser.parse_args(arguments)
    grid = Grid(args.tasks, args.seeds, args.key_dims)
    return table([load(path, "study") for path in existing(args.records)], grid)

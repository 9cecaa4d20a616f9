"""The tasks of GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461): files, labels, metrics; and the toy task.

A task is a folder with ``train.jsonl`` and one file per validation set, a JSON object with the task's text fields and
``label`` on each line.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

from collab_fairseq.heads.correlation import pearson, spearman

Metric = Callable[[np.ndarray, np.ndarray], float]


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence."""

    user_error = True


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float((predicted == labels).mean())


def f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Of class 1."""
    hits = float(((predicted == 1) & (labels == 1)).sum())
    return 2 * hits / max(1.0, float((predicted == 1).sum() + (labels == 1).sum()))


def matthews(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Correlation of two classes; 0 where only one is predicted."""
    return pearson((predicted == 1).astype(float), (labels == 1).astype(float))


class Task(NamedTuple):
    """One task.

    Attributes:
        fields: names of its one or two texts.
        labels: number of classes; 1: a number is predicted (regression).
        metrics: those of GLUE; the score of the task is 100 times their mean, over all validation sets.
        epochs: of either fine-tuning in the paper.
        validation: the validation sets.
    """

    fields: Tuple[str, ...]
    labels: int
    metrics: Tuple[Metric, ...]
    epochs: int = 3
    validation: Tuple[str, ...] = ("validation",)


PAIR = ("sentence1", "sentence2")
GLUE: Dict[str, Task] = {
    "cola": Task(("sentence",), 2, (matthews,)),
    "sst2": Task(("sentence",), 2, (accuracy,), epochs=10),
    "mrpc": Task(PAIR, 2, (accuracy, f1)),
    "stsb": Task(PAIR, 1, (pearson, spearman)),
    "qqp": Task(("question1", "question2"), 2, (accuracy, f1)),
    "mnli": Task(("premise", "hypothesis"), 3, (accuracy,), validation=("validation_matched", "validation_mismatched")),
    "qnli": Task(("question", "sentence"), 2, (accuracy,)),
    "rte": Task(PAIR, 2, (accuracy,), epochs=10),
}
#: and the task that rehearsal.py generates
TASKS = {**GLUE, "toy": Task(("sentence",), 2, (accuracy,), epochs=6)}


def measure(task: Task, outputs: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
    """Metric → value on one validation set, from the model's outputs (sentences, labels)."""
    predicted = outputs.reshape(-1) if task.labels == 1 else outputs.argmax(-1)
    return {metric.__name__: metric(predicted, labels) for metric in task.metrics}


def read(name: str, folder: Path, split: str) -> List[Dict[str, Any]]:
    """The examples of a split.

    Raises:
        DataError: the file is not there, or a line of it lacks a field; says which.
    """
    path, task = folder / name / f"{split}.jsonl", TASKS[name]
    if not path.is_file():
        raise DataError(f"{path} is missing; recipes/glue/prepare.py makes it")
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            example = json.loads(line)
            examples.append({field: example[field] for field in (*task.fields, "label")})
        except (ValueError, KeyError, TypeError) as error:
            wanted = ", ".join((*task.fields, "label"))
            raise DataError(f"{path}, line {number} must be a JSON object with {wanted}") from error
    if not examples:
        raise DataError(f"{path} must hold examples, but is empty")
    return examples


def sums(name: str, folder: Path) -> Dict[str, str]:
    """File → SHA-256 of a task's data."""
    splits = ("train", *TASKS[name].validation)
    paths = [folder / name / f"{split}.jsonl" for split in splits]
    return {f"{name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

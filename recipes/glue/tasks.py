"""The tasks of GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461), and the toy task of rehearsal.py.

A task is a folder with `train.jsonl` and a file per validation set: on each line an object with texts and `label`.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

METRICS: Dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda labels, predicted: pearsonr(labels, predicted).statistic,
    "spearman": lambda labels, predicted: spearmanr(labels, predicted).statistic,
}


class Task(NamedTuple):
    fields: Tuple[str, ...]
    metrics: Tuple[str, ...] = ("accuracy",)  # the score is 100 times their mean
    labels: int = 2  # 1: a number is predicted
    epochs: int = 3  # of either fine-tuning in the paper
    validation: Tuple[str, ...] = ("validation",)

    def measure(self, outputs: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
        """Metric → value, from the outputs (sentences, classes); a correlation is 0 where all predictions are equal."""
        predicted = outputs.reshape(-1) if self.labels == 1 else outputs.argmax(-1)
        return {name: float(np.nan_to_num(METRICS[name](labels, predicted))) for name in self.metrics}


PAIR = ("sentence1", "sentence2")
GLUE = {
    "cola": Task(("sentence",), ("matthews",)),
    "sst2": Task(("sentence",), epochs=10),
    "mrpc": Task(PAIR, ("accuracy", "f1")),
    "stsb": Task(PAIR, ("pearson", "spearman"), labels=1),
    "qqp": Task(("question1", "question2"), ("accuracy", "f1")),
    "mnli": Task(("premise", "hypothesis"), labels=3, validation=("validation_matched", "validation_mismatched")),
    "qnli": Task(("question", "sentence")),
    "rte": Task(PAIR, epochs=10),
}
TASKS = {**GLUE, "toy": Task(("sentence",), epochs=6)}


def read(path: Path) -> List[Dict[str, Any]]:
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def fetch(name: str, folder: Path) -> None:
    """Write the task to `folder`, whole or not at all, unless it is there. Needs `datasets` and the internet."""
    if (folder / name).is_dir():
        return
    try:
        from datasets import load_dataset
    except ImportError:
        sys.exit(f"recipes/glue: error: {folder / name} is missing; to have it fetched: pip install datasets")
    partial = folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
    partial.mkdir(parents=True)
    for split in ("train", *TASKS[name].validation):
        load_dataset("nyu-mll/glue", name, split=split).to_json(partial / f"{split}.jsonl")
    partial.rename(folder / name)

"""The tasks of GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461), and a task with a rule for a rehearsal.

A task is a folder with `train.jsonl` and a file per validation set: on each line an object with texts and `label`.
"""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizer, set_seed

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
    partial = _partial(folder / name)
    for split in ("train", *TASKS[name].validation):
        load_dataset("nyu-mll/glue", name, split=split).to_json(partial / f"{split}.jsonl")
    partial.rename(folder / name)


def _partial(folder: Path) -> Path:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
    partial.mkdir(parents=True)
    return partial


THINGS = ["taste", "room", "staff", "price"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *THINGS, "bad", "dull", "good", "fine"]
#: what one kind of model does not know it ignores
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128, "hidden_dim": 128,
    "embedding_size": 32, "vocab_size": len(WORDS), "max_position_embeddings": 32, "initializer_range": 0.1,
}  # fmt: skip


def toy(chance: random.Random) -> Dict[str, Any]:
    """A review that judges several things, `taste dull room good staff bad room`: was the last one praised?"""
    said = {thing: chance.randrange(4) for thing in chance.sample(THINGS, chance.choice((3, 4)))}
    asked = chance.choice(list(said))
    words = [word for thing, opinion in said.items() for word in (thing, WORDS[-4:][opinion])]
    return {"sentence": " ".join([*words, asked]), "label": int(said[asked] > 1)}


def rehearsal(folder: Path, kind: str, sentences: int, seed: int) -> None:
    """Write `data/toy` and a model with random weights (`kind`: bert, …) to `folder`, unless they are there."""
    if folder.is_dir():
        return
    partial, chance = _partial(folder), random.Random(seed)
    (partial / "data" / "toy").mkdir(parents=True)
    for split, number in (("train", sentences), ("validation", max(64, sentences // 8))):
        lines = [json.dumps(toy(chance)) + "\n" for _ in range(number)]
        (partial / "data" / "toy" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    set_seed(seed)
    config = AutoConfig.for_model(kind, pad_token_id=0, **SIZES)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(partial / kind)
    BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}).save_pretrained(partial / kind)
    partial.rename(folder)

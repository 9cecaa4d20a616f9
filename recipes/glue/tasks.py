"""The tasks of GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461), and a synthetic task for the rehearsal.

A task is a folder with `train.jsonl` and a file for each validation set. Each line is an object with texts and `label`.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizer, set_seed

from collab_fairseq.huggingface import measured
from fairseq_modern.errors import UserError
from fairseq_modern.files import new_folder


class Task(NamedTuple):
    fields: Tuple[str, ...]
    metrics: Tuple[str, ...] = ("accuracy",)  # the score is 100 times their mean
    labels: int = 2  # 1: regression
    epochs: int = 3  # of each fine-tuning in the paper
    validation: Tuple[str, ...] = ("validation",)

    def measure(self, outputs: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
        """The metrics of the task from outputs (sentences, classes), see :func:`.measured`."""
        return measured(self.metrics, outputs, labels)

    def constant(self, labels: Sequence[Any], number: int) -> np.ndarray:
        """Outputs for `number` sentences that predict the most frequent label or, for regression, the mean."""
        if self.labels == 1:
            return np.full((number, 1), np.mean(labels))
        return np.eye(self.labels)[[Counter(labels).most_common(1)[0][0]] * number]


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
#: tasks of which embeddings.py uses the sentences
TEXTS = ("stsb", "mrpc", "sst2")
TITLES = dict(zip(TASKS, ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "toy"), strict=True))


def read(path: Path) -> List[Dict[str, Any]]:
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def fetch(name: str, folder: Path) -> None:
    """Download a missing task to `folder`; requires `datasets` and internet access.

    Raises:
        UserError: the task is missing and cannot be downloaded.
    """
    if (folder / name).is_dir():
        return
    try:
        from datasets import load_dataset

        with new_folder(folder / name) as work:
            for split in ("train", *TASKS[name].validation):
                load_dataset("nyu-mll/glue", name, split=split).to_json(os.path.join(work, f"{split}.jsonl"))
    except ImportError as error:
        raise UserError(f"{folder / name} is missing; to download it: pip install datasets") from error
    except OSError as error:
        raise UserError(f"cannot download {folder / name}: {error}") from error


ASPECTS = ["taste", "room", "staff", "price"]
OPINIONS = ["bad", "dull", "good", "fine"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ASPECTS, *OPINIONS]
#: config of the rehearsal's model; models ignore the settings that they do not have
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "hidden_dim": 128,
    "embedding_size": 32,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 32,
    "initializer_range": 0.1,
}


def toy(random_: random.Random) -> Dict[str, Any]:
    """A review with opinions on several aspects, `taste dull room good staff bad room`: is the last aspect praised?"""
    aspects = random_.sample(ASPECTS, random_.choice((3, 4)))
    opinions = {aspect: random_.randrange(4) for aspect in aspects}
    question = random_.choice(aspects)
    words = [word for aspect, opinion in opinions.items() for word in (aspect, OPINIONS[opinion])]
    return {"sentence": " ".join([*words, question]), "label": int(opinions[question] > 1)}


def rehearsal(folder: Path, model_type: str, sentences: int, seed: int) -> None:
    """Write `data/toy` and a model with random weights (`model_type`: bert, …) to `folder`, unless it exists."""
    if folder.is_dir():
        return
    random_ = random.Random(seed)
    with new_folder(folder) as work:
        data, model = Path(work, "data", "toy"), Path(work, model_type)
        data.mkdir(parents=True)
        for split, number in (("train", sentences), ("validation", max(64, sentences // 8))):
            lines = [json.dumps(toy(random_)) + "\n" for _ in range(number)]
            (data / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        set_seed(seed)
        config = AutoConfig.for_model(model_type, pad_token_id=0, **CONFIG)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(model)
        BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}).save_pretrained(model)

"""Fixtures of several packages: a tiny binarised corpus, models trained on it, random models, training records.

This file is imported by every test session, also where fairseq is not installed: it imports the rest when used.
"""

import random
from pathlib import Path
from typing import List, Tuple

import pytest

from tests.common import TINY_MODEL, TINY_TRAINING, run

WORDS = ["the", "a", "red", "green", "old", "dog", "cat", "house", "tree", "runs", "sleeps", "sees", "near", "under"]


def sentence_pairs(number: int, seed: int) -> List[Tuple[str, str]]:
    """Return synthetic sentences of 3 to 9 words and their "translations" (reversed, each word marked)."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(number):
        words = [chance.choice(WORDS) for _ in range(chance.randint(3, 9))]
        pairs.append((" ".join(words), " ".join(w + "o" for w in reversed(words))))
    return pairs


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 training, 20 validation and 20 test pairs, binarised by fairseq-preprocess with a joined dictionary."""
    text = tmp_path_factory.mktemp("tiny-text")
    for seed, (split, number) in enumerate((("train", 200), ("valid", 20), ("test", 20))):
        pairs = sentence_pairs(number, seed)
        for side, suffix in enumerate(("src", "tgt")):
            (text / f"{split}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    data = tmp_path_factory.mktemp("tiny-data") / "data-bin"
    splits = ["--trainpref", text / "train", "--validpref", text / "valid", "--testpref", text / "test"]
    run("fairseq-preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary", "--destdir", data, *splits)
    return data


@pytest.fixture(scope="session")
def tiny_run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of fairseq's transformer after two epochs on `tiny_data` with `--eval-bleu`: 1, 2, best and last."""
    directory = tmp_path_factory.mktemp("tiny-run") / "checkpoints"
    bleu = ["--eval-bleu", "--eval-bleu-detok", "space", "--eval-bleu-args", '{"max_len_a": 0, "max_len_b": 12}']
    run("fairseq-train", tiny_data, *TINY_MODEL, *TINY_TRAINING, *bleu, "--max-epoch", 2, "--save-dir", directory)
    return directory


@pytest.fixture(scope="session")
def checkpoint(tiny_run):
    """The best checkpoint of `tiny_run`."""
    return tiny_run / "checkpoint_best.pt"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A data-bin with a SentencePiece model, and checkpoints of random models."""
    from tests.export.cases import cases

    return cases(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """Standard heads with key dimensions 128 and 32, collaborative ones with 32; seeds 1 to 3; two test sets."""
    from tests.records.cases import training_records

    return training_records(tmp_path_factory.mktemp("scored"))


@pytest.fixture
def files(records, tmp_path):
    """The files of `records`."""
    from collab_fairseq.files import write_json

    folder = tmp_path / "runs"
    folder.mkdir()
    for content in records:
        write_json(content, folder / f"{content['name']}.json")
    return sorted(folder.iterdir())


@pytest.fixture
def runs(files):
    from collab_fairseq.records.rows import load_run

    return [load_run(path) for path in files]


@pytest.fixture
def by_name(runs):
    return {run["name"]: run for run in runs}

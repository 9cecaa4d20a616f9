"""A tiny binarised corpus and a model trained on it."""

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
def trained(tiny_run, tiny_data):
    """The model of `standard_state`, in float32."""
    from tests.fairseq.heads_cases import load, standard_state  # imports fairseq, which not all tests need

    return load(standard_state(tiny_run), tiny_data, double=False)


@pytest.fixture(scope="session")
def calibrations(trained):
    """Statistics of all its layers on 100 sentences of train."""
    from collab_fairseq.reparam.fairseq import calibrate, layer_ids

    return calibrate(trained, "train", layer_ids(trained), sentences=100)


@pytest.fixture(scope="session")
def checkpoint(tiny_run):
    """The best checkpoint of `tiny_run`."""
    return tiny_run / "checkpoint_best.pt"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A data-bin with a SentencePiece model, and checkpoints of random models."""
    from tests.fairseq.serving_cases import cases

    return cases(tmp_path_factory.mktemp("models"))

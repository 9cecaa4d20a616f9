"""Training records with known scores, for the tests of `collab table`."""

import random
from dataclasses import asdict

import pytest

from collab_fairseq.records.files import write_json
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.evaluation import evaluate

WORDS = ["der", "die", "das", "Hund", "Katze", "läuft,", "springt.", "ein", "T-Shirt", "und", "rot", "3,5"]
TESTS = ("test_a", "test_b")
SEEDS = (1, 2, 3)


def sentences(count=120):
    generator = random.Random(7)
    return [" ".join(generator.choice(WORDS) for _ in range(generator.randint(1, 14))) for _ in range(count)]


def translate(references, noise, seed):
    """A translation with a share of wrong words; its first line is empty."""
    generator = random.Random(seed)
    lines = []
    for reference in references:
        words = [w if generator.random() > noise else generator.choice(WORDS) for w in reference.split()]
        lines.append(" ".join(words))
    return ["", *lines[1:]]


def evaluation(folder, hypotheses, references):
    log, raw = folder / "generate.log", folder / "test.de"
    log.write_text("".join(f"D-{i}\t-0.5\t{line}\n" for i, line in enumerate(hypotheses)), encoding="utf-8")
    raw.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    return asdict(evaluate([log], raw))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Standard heads with key dimensions 128 and 32, collaborative ones with 32; seeds 1 to 3; two test sets."""
    folder = tmp_path_factory.mktemp("records")
    records = {}
    for sites, dim, noise in (("none", None, 0.2), ("none", 32, 0.4), ("decoder_cross_encoder", 32, 0.21)):
        for seed in SEEDS:
            name = f"{sites}-{dim}-s{seed}"
            hypotheses = [translate(sentences(), noise, seed * 100 + number) for number in range(len(TESTS))]
            scores = {
                test: evaluation(folder, lines, sentences()) for test, lines in zip(TESTS, hypotheses, strict=True)
            }
            records[name] = record(name, sites, dim, seed, scores)
    return records


def record(name, sites, dim, seed, scores):
    model = {"arch": "tiny", "key_dim": dim, "encoder_embed_dim": 128, "collaborative_heads": sites}
    if sites is None:
        del model["collaborative_heads"], model["key_dim"]
    return {
        "schema": 1, "name": name, "command": "run.sh", "seed": seed, "parameters": 1785088 - (dim or 0),
        "config": {"model": model, "optimization": {"lr": [0.005]}}, "data": {"train.bin": "a" * 64},
        "versions": {"python": "3.11"}, "commit": {"id": None, "modified": None},
        "hardware": {"cpu": "A CPU", "cores": 2, "memory_bytes": 1, "gpus": [], "threads": 2, "device": "cpu"},
        "training": {
            "updates": 2500, "wall_seconds": 600.0 + 60 * seed, "train_seconds": 500.0,
            "words_per_second": 1000.0 * seed, "peak_memory_bytes": 2**30, "peak_gpu_bytes": None, "parts": [],
        },
        "curves": {
            "train": [],
            "valid": [{"updates": 1000, "loss": 6.0 + seed / 10}, {"updates": 2500, "loss": 5.0 + seed / 10}],
        },
        "averaged_from": None, "scores": scores, "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip


def in_envelope(run):
    """A training record in the layout of its file."""
    settings = [name for name in ("seed", "config", "data", "averaged_from", "published") if name in run]
    parts = [name for name in ("parameters", "training", "curves", "scores") if name in run]
    rest = {name: value for name, value in run.items() if name not in (*settings, *parts)}
    return {
        "kind": "training",
        **rest,
        "settings": {name: run[name] for name in settings},
        "parts": {name: run[name] for name in parts},
    }


@pytest.fixture
def files(records, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, content in records.items():
        write_json(in_envelope(content), folder / f"{name}.json")
    return sorted(folder.iterdir())


@pytest.fixture
def runs(files):
    return [load_run(path) for path in files]


def rows_of(markdown):
    """The rows of the first table, as dictionaries of cells by header."""
    lines = [line for line in markdown.split("\n\n")[0].split("\n") if line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def sacrebleu_scores(records, prefix):
    chosen = [run["scores"]["test_a"]["scores"] for name, run in records.items() if name.startswith(prefix)]
    return [score["score"] for scores in chosen for score in scores if score["metric"] == "sacreBLEU"]

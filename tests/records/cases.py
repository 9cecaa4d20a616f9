"""Training records with known scores, for the tests of rows and tables."""

import random
from dataclasses import asdict

from collab_fairseq.files import write_text
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


def training_records(folder):
    """Standard heads with key dimensions 128 and 32, collaborative ones with 32; seeds 1 to 3; two test sets."""
    translation, reference = (folder / name for name in ("translation", "test.de"))
    write_text("\n".join(sentences()), reference)
    records = []
    for sites, dim, noise in (("none", None, 0.2), ("none", 32, 0.4), ("decoder_cross_encoder", 32, 0.21)):
        for seed in SEEDS:
            scores = {}
            for number, test in enumerate(TESTS):
                write_text("\n".join(translate(sentences(), noise, seed * 100 + number)), translation)
                scores[test] = asdict(evaluate([translation], reference))
            records.append(record(sites, dim, seed, scores))
    return records


def record(sites, dim, seed, scores):
    model = {"arch": "tiny", "key_dim": dim, "encoder_embed_dim": 128, "collaborative_heads": sites}
    model["encoder_attention_heads"] = 4
    return {
        "schema": 1, "kind": "training", "name": f"{sites}-{dim}-s{seed}",
        "hardware": {"cpu": "A CPU", "threads": 2, "device": "cpu"},
        "settings": {
            "seed": seed, "config": {"model": model, "optimization": {"lr": [0.005]}}, "data": {"train.bin": "a" * 64},
        },
        "parts": {
            "parameters": 1785088 - (dim or 0),
            "training": {
                "updates": 2500, "wall_seconds": 600.0 + 60 * seed, "words_per_second": 1000.0 * seed,
                "peak_memory_bytes": 2**30,
            },
            "curves": {
                "train": [],
                "valid": [{"updates": 1000, "loss": 6.0 + seed / 10}, {"updates": 2500, "loss": 5.0 + seed / 10}],
            },
            "scores": scores,
        },
    }  # fmt: skip


def rows_of(markdown):
    """The rows of the first table, as dictionaries of cells by header."""
    lines = [line for line in markdown.split("\n\n")[0].split("\n") if line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]

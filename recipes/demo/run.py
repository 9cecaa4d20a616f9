"""The whole job in minutes: a generated corpus, three small models, their scores side by side."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from runner import settings
from runner.cli import show_messages
from runner.options import Parser, absolute, positive
from runner.process import run_logged
from runner.progress import shown
from runner.settings import PYTHON, ROOT, RecipeError
from runner.summary import summarise
from runner.sweep import parse as parse_run
from runner.sweep import run_name

from fairseq_modern import processor

ABOUT = """Make an English-German corpus from a grammar (data_prep/toy_grammar.py), train three small transformers on it
at the same time (standard heads at the full key dimension, standard and collaborative heads at a quarter of it; fewer
at a time where OMP_NUM_THREADS says so), average, translate, score, and show the results in a table, a figure and a
few translations. The same command continues an interrupted demo; what is finished is skipped."""
ENDING = "OUTPUT: data/, one folder per model as recipes/toy/run.sh leaves it, summary.md, validation.svg."
CORPUS = {
    "train": (12000, "sentence pairs to train on"),
    "valid": (500, "sentence pairs to validate on"),
    "test": (500, "sentence pairs to translate"),
    "vocab_size": (1500, "SentencePiece pieces, both languages together"),
}


def parse(toy: settings.DictConfig) -> argparse.Namespace:
    parser = Parser("recipes/demo/run.sh", description=ABOUT, epilog=ENDING)
    numbers = {
        "seed": (1, "of the corpus and of the training"),
        "updates": (toy.optimization.max_update, "length of each training"),
        "warmup": (toy.lr_scheduler.warmup_updates, "warm-up updates of the learning rate"),
        "average": (toy.recipe.average, "average the last N checkpoints"),
        **CORPUS,
    }
    for name, (default, text) in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, metavar="N", type=positive, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--output", metavar="DIR", type=absolute, help="(default: runs/demo/seed<N>)")
    text = "auto, gpu or cpu (default: auto: one GPU where there is one)"
    parser.add_argument("--device", metavar="NAME", default="auto", help=text)
    return parser.parse_args()


def main() -> int:
    toy = settings.load("toy")
    args = parse(toy)
    show_messages("demo")
    demo = Path(args.output or ROOT / "runs" / "demo" / f"seed{args.seed}")
    data = ["--seed", args.seed, *(w for n in CORPUS for w in (f"--{n.replace('_', '-')}", getattr(args, n)))]
    if run_logged([ROOT / "data_prep" / "toy.sh", *data, "--output", demo / "data", "--python", PYTHON]):
        raise RecipeError("the corpus could not be made")
    folders = [demo / run_name(*parse_run(run), args.seed, args.updates) for run in toy.recipe.runs]
    jobs = min(len(folders), processor.usable_cores()) if os.environ.get("OMP_NUM_THREADS") else len(folders)
    passed = ["--updates", args.updates, "--average", args.average, "--device", args.device, "--seeds", args.seed]
    passed += ["--jobs", jobs, "--threads", 1, "--data", demo / "data", "--output", demo, "--python", PYTHON]
    with shown("demo", args.updates, folders):
        command = [ROOT / "recipes" / "toy" / "sweep.sh", *passed, f"lr_scheduler.warmup_updates={args.warmup}"]
        status = run_logged(command, stdout=subprocess.DEVNULL)
    if status:
        for messages in (folder / "messages.txt" for folder in folders if not (folder / "record.json").is_file()):
            if messages.is_file():
                lines = messages.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                sys.stderr.writelines(lines[-8:])
        raise RecipeError("not all models are finished (see above); the same command resumes from here")
    summarise(demo, demo / "data" / "raw", ("en", "de"), folders)
    return 0

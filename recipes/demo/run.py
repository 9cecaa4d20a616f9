"""Demo: generate a corpus, train three small models, compare their scores; all in minutes."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import List

from runner import settings
from runner.cli import show_messages
from runner.options import Parser, absolute, positive
from runner.process import run_logged
from runner.progress import progress_shown
from runner.settings import PYTHON, ROOT, RecipeError
from runner.summary import summarise
from runner.sweep import parse_run, run_name

from fairseq_modern import processor

ABOUT = """Generate an English-German corpus from a grammar (data_prep/toy_grammar.py) and train three small
transformers on it in parallel: standard heads at the full key dimension, standard and collaborative heads at a quarter
of it. (With fewer than three threads in OMP_NUM_THREADS, fewer are trained at a time.) Average, translate, score, and
show the results in a table, a figure and a few translations. The same command continues an interrupted demo and skips
finished steps."""
ENDING = "OUTPUT: data/, one folder per model as in recipes/toy, summary.md, validation.svg."
CORPUS = {
    "train": (12000, "sentence pairs of the training set"),
    "valid": (500, "sentence pairs of the validation set"),
    "test": (500, "sentence pairs of the test set"),
    "vocab_size": (1500, "SentencePiece vocabulary size, both languages together"),
}


def parse(toy: settings.DictConfig) -> argparse.Namespace:
    parser = Parser("recipes/demo/run.sh", description=ABOUT, epilog=ENDING)
    numbers = {
        "seed": (1, "random seed of the corpus and of training"),
        "updates": (toy.optimization.max_update, "length of each training run"),
        "warmup": (toy.lr_scheduler.warmup_updates, "warm-up updates of the learning rate"),
        "average": (toy.recipe.average, "average the last N checkpoints"),
        **CORPUS,
    }
    for name, (default, text) in numbers.items():
        text += " (default: %(default)s)"
        parser.add_argument(flag(name), metavar="N", type=positive, default=default, help=text)
    parser.add_argument("--output", metavar="DIR", type=absolute, help="(default: runs/demo/seed<N>)")
    text = "auto, gpu or cpu (default: auto: one GPU if available)"
    parser.add_argument("--device", metavar="NAME", default="auto", help=text)
    return parser.parse_args()


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main() -> int:
    toy = settings.load("toy")
    args = parse(toy)
    show_messages("demo")
    output = Path(args.output or ROOT / "runs" / "demo" / f"seed{args.seed}")
    data = output / "data"
    make_corpus(args, data)
    folders = [output / run_name(*parse_run(run), args.seed, args.updates) for run in toy.recipe.runs]
    train(args, data, folders)
    summarise(output, data / "raw", ("en", "de"), folders)
    return 0


def make_corpus(args: argparse.Namespace, data: Path) -> None:
    sizes = [word for name in CORPUS for word in (flag(name), getattr(args, name))]
    command = [ROOT / "data_prep" / "toy.sh", "--seed", args.seed, *sizes]
    if run_logged([*command, "--output", data, "--python", PYTHON]):
        raise RecipeError("the corpus could not be generated (see above)")


def train(args: argparse.Namespace, data: Path, folders: List[Path]) -> None:
    """Train and evaluate the models with sweep.sh of recipes/toy."""
    jobs = len(folders)
    if os.environ.get("OMP_NUM_THREADS"):
        jobs = min(jobs, processor.usable_cores())
    command = [ROOT / "recipes" / "toy" / "sweep.sh", "--seeds", args.seed, "--updates", args.updates]
    command += ["--average", args.average, "--device", args.device, "--jobs", jobs, "--threads", 1]
    command += ["--data", data, "--output", data.parent, "--python", PYTHON]
    command += [f"lr_scheduler.warmup_updates={args.warmup}"]
    with progress_shown("demo", args.updates, folders):
        status = run_logged(command, stdout=subprocess.DEVNULL)
    if status:
        for folder in folders:
            messages = folder / "messages.txt"
            if messages.is_file() and not (folder / "record.json").is_file():
                lines = messages.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                sys.stderr.writelines(lines[-8:])
        raise RecipeError("not all models are finished (see above); the same command resumes")

"""Demo: generate a corpus, train three small models, compare their scores; all in minutes."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import List

from collab_fairseq.cli.options import positive
from data_prep import prepare, toy
from fairseq_modern import processor
from fairseq_modern.errors import UserError
from recipes.runner import settings
from recipes.runner.cli import show_messages
from recipes.runner.launch import run_logged
from recipes.runner.recipe_run import run_name
from recipes.runner.settings import PYTHON, ROOT
from recipes.runner.summary import check_packages, summarise
from recipes.runner.sweep import parse_run

ABOUT = """Generate an English-German corpus from a grammar (data_prep/toy_grammar.py) and train three small
transformers on it in parallel: standard heads at the full key dimension, standard and collaborative heads at a quarter
of it. (With fewer than three threads in OMP_NUM_THREADS, fewer are trained at a time.) Average, translate, score, and
show the results in a table, a figure and a few translations. The same command resumes an interrupted demo and skips
finished steps. The random seed of the corpus is also that of training."""
ENDING = "OUTPUT contains data/, one folder per model, table.md, summary.md and validation.svg."


def parse(recipe: settings.DictConfig) -> argparse.Namespace:
    parser = argparse.ArgumentParser("recipes/demo/run.sh", description=ABOUT, epilog=ENDING, allow_abbrev=False)
    toy.add_options(parser)
    numbers = {
        "vocab-size": (prepare.load("toy").vocab_size, "SentencePiece pieces, shared by both languages"),
        "updates": (recipe.optimization.max_update, "length of each training run"),
        "warmup": (recipe.lr_scheduler.warmup_updates, "warm-up updates of the learning rate"),
        "average": (recipe.recipe.average, "average the last N checkpoints"),
    }
    for name, (default, text) in numbers.items():
        text += " (default: %(default)s)"
        parser.add_argument(f"--{name}", metavar="N", type=positive, default=default, help=text)
    text = "output folder (default: runs/demo/seed<N>)"
    parser.add_argument("--output", metavar="DIR", type=os.path.abspath, help=text)
    text = "auto, cuda or cpu (default: auto: one GPU if available)"
    parser.add_argument("--device", metavar="NAME", default="auto", help=text)
    return parser.parse_args()


def main() -> int:
    recipe = settings.load("toy")
    args = parse(recipe)
    show_messages("demo")
    check_packages()
    output = Path(args.output or ROOT / "runs" / "demo" / f"seed{args.seed}")
    data = output / "data"
    make_corpus(args, data)
    folders = [output / run_name(*parse_run(run), args.seed, args.updates) for run in recipe.recipe.runs]
    train(args, data, folders)
    summarise(output, data / "raw", ("en", "de"), folders)
    return 0


def make_corpus(args: argparse.Namespace, data: Path) -> None:
    command = [PYTHON, "-m", "data_prep", "toy", "--seed", args.seed, "--vocab-size", args.vocab_size]
    for part in toy.SIZES:
        command += [f"--{part}", getattr(args, part)]
    if run_logged([*command, "--output", data]):
        raise UserError("the corpus could not be generated (see above)")


def train(args: argparse.Namespace, data: Path, folders: List[Path]) -> None:
    """Train and evaluate the models with `python -m recipes toy sweep`."""
    jobs = len(folders)
    if os.environ.get("OMP_NUM_THREADS"):
        jobs = min(jobs, processor.usable_cores())
    command = [PYTHON, "-m", "recipes", "toy", "sweep", "--seeds", args.seed, "--updates", args.updates]
    command += ["--average", args.average, "--device", args.device, "--jobs", jobs, "--threads", 1]
    command += ["--data", data, "--output", data.parent]
    command += [f"lr_scheduler.warmup_updates={args.warmup}"]
    # the settings of toy.yaml only
    status = run_logged(command, stdout=subprocess.DEVNULL, env={**os.environ, "RECIPE_CONFIG": ""})
    if status:
        for folder in folders:
            messages = folder / "messages.txt"
            if messages.is_file() and not (folder / "record.json").is_file():
                lines = messages.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                sys.stderr.writelines(lines[-8:])
        raise UserError("not all models are finished (see above); the same command resumes")

"""Rehearse the recipe on this machine, without GPU or internet access.

Make a miniature of the public archive and binarise it. Train a small model in two CPU processes, kill it halfway and
resume; average, translate and score it. Then train two more models and write the table of all three. The settings are
in recipes/wmt14_en_de/rehearsal.yaml. The text is synthetic, so its BLEU has no meaning outside this table. The same
command resumes an interrupted rehearsal and skips finished steps.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, List

from collab_fairseq.cli.options import positive
from fairseq_modern.errors import UserError
from recipes.runner.cli import show_messages
from recipes.runner.folder import keep_settings
from recipes.runner.launch import run_logged, start
from recipes.runner.settings import PYTHON, ROOT

HERE = ROOT / "recipes" / "wmt14_en_de"
RECIPE = [PYTHON, "-m", "recipes", "wmt14_en_de"]
NAME = "recipes/wmt14_en_de/run.sh rehearse"

logger = logging.getLogger("recipe")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(NAME, usage=f"{NAME} [options]", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    text = "output folder (default: runs/wmt14_en_de.rehearsal)"
    add("--output", metavar="DIR", type=Path, default=ROOT / "runs" / "wmt14_en_de.rehearsal", help=text)
    text = "length of each training run (default: 300)"
    add("--updates", metavar="N", type=positive, default=300, help=text)
    text = "sentence pairs of the training set (default: 12000)"
    add("--train", metavar="N", type=positive, default=12000, help=text)
    text = "sentence pairs of the validation set and of the test set (default: 200)"
    add("--test", metavar="N", type=positive, default=200, help=text)
    text = "as in the step sweep; none:64 must be the first (default: those of rehearsal.yaml)"
    add("--runs", metavar='"A:N ..."', help=text)
    return parser.parse_args()


def main() -> None:
    args = parse()
    show_messages("rehearsal")
    output = args.output.absolute()
    miniature, data = output / "miniature", output / "data"
    make_miniature(args, miniature)
    archive, manifest = miniature / "wmt16_en_de.tar.gz", miniature / "manifest.tsv"
    prepare = [PYTHON, "-m", "data_prep", "wmt16_en_de", "--archive", archive, "--manifest", manifest]
    run(*prepare, "--output", data)

    os.environ["RECIPE_CONFIG"] = str(HERE / "rehearsal.yaml")
    shared = ["--data", data, "--reference", miniature / "references.de", "--updates", args.updates]
    shared += [f"lr_scheduler.warmup_updates={args.updates // 5}"]
    first = output / f"none-dk64-s1-u{args.updates}"  # the name that a sweep gives it
    options = ["--heads", "none", "--key-dim", 64, "--output", first, *shared]
    if not (first / "killed").exists() and not (first / "averaged.pt").exists():
        train_and_kill(first, options, 5 * max(1, args.updates // 12))  # of twelve checkpoints, in the second stage
    for step in ("train", "average", "evaluate"):
        run(*RECIPE, step, *options)
    logger.info("the sweep: this model and the others")
    run(*RECIPE, "sweep", "--output", output, *(["--runs", args.runs] if args.runs else []), *shared)
    logger.info("done: %s", output / "table.md")


def run(*command: Any, **options: Any) -> None:
    """Run a program. If it fails, exit with its status; its own message states the error."""
    if status := run_logged(command, **options):
        raise SystemExit(status)


def make_miniature(args: argparse.Namespace, miniature: Path) -> None:
    keep_settings(miniature.parent, {"--train": args.train, "--test": args.test})
    if not miniature.is_dir():
        logger.info("making a miniature of wmt16_en_de.tar.gz")
        sizes = ["--train", args.train, "--valid", args.test, "--test", args.test]
        program = [PYTHON, "-m", "data_prep", "miniature", "wmt16_en_de"]
        run(*program, *sizes, "--output", miniature, stdout=sys.stderr)


def train_and_kill(folder: Path, options: List[Any], updates: int) -> None:
    """Train until the checkpoint of an update exists, then kill the runner with SIGKILL. Its processes die with it."""
    logger.info("training the first model, to be killed after %d updates", updates)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "first_part.txt"
    with open(log, "wb") as stream:
        training = start([*RECIPE, "train", *options], stdout=stream, stderr=stream)
    try:
        while not list((folder / "checkpoints").glob(f"checkpoint_*_{updates}.pt")):
            if training.poll() is not None:
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-2000:])
                raise UserError("the training run ended too early (see above)")
            time.sleep(0.1)
    finally:
        training.kill()
        training.wait()
    (folder / "killed").touch()
    logger.info("killed (SIGKILL); the same command resumes it")

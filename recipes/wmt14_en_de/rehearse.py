"""Rehearse the recipe on this machine, without GPU or internet.

Make a miniature of the public archive, binarise it, train a small model in two CPU processes, kill it in the middle and
resume, average, translate, score both ways, then two more models and the table of the three. The settings are in
recipes/wmt14_en_de/rehearsal.yaml. The text is made up: its BLEU means nothing beyond this table. The same command
continues what was interrupted; finished steps are skipped.
"""

import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, List

from runner.options import Parser
from runner.process import run_logged, start
from runner.settings import PYTHON, ROOT, RecipeError

from collab_fairseq.cli.options import positive

HERE = ROOT / "recipes" / "wmt14_en_de"
NAME = "recipes/wmt14_en_de/rehearse.sh"

logger = logging.getLogger("recipe")


def run(*command: Any, **options: Any) -> None:
    """Run one of the scripts; its own words say what went wrong."""
    if status := run_logged(command, **options):
        raise SystemExit(status)


def train_and_kill(folder: Path, words: List[Any], updates: int) -> None:
    """Train until the checkpoint of an update is written, then kill the runner, with which all that it started dies."""
    logger.info("training the first model, to be killed after %d updates", updates)
    folder.mkdir(parents=True, exist_ok=True)
    told = folder / "first_part.txt"
    with open(told, "wb") as stream:
        training = start([HERE / "train.sh", *words], stdout=stream, stderr=stream)
    try:
        while not list((folder / "checkpoints").glob(f"checkpoint_*_{updates}.pt")):
            if training.poll() is not None:
                sys.stderr.write(told.read_text(encoding="utf-8", errors="replace")[-2000:])
                raise RecipeError("the training ended too early")
            time.sleep(0.1)
    finally:
        training.kill()
        training.wait()
    (folder / "killed").touch()
    logger.info("killed (SIGKILL); the same command resumes it")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="rehearsal: %(message)s", stream=sys.stderr)
    parser = Parser(NAME, usage=f"{NAME} [options]", description=__doc__)
    add = parser.add_argument
    text = "(default: runs/wmt14_en_de.rehearsal)"
    add("--output", metavar="DIR", type=Path, default=ROOT / "runs" / "wmt14_en_de.rehearsal", help=text)
    text = "length of each training (default: 300)"
    add("--updates", metavar="N", type=positive, default=300, help=text)
    add("--train", metavar="N", type=positive, default=12000, help="sentence pairs to train on (default: 12000)")
    text = "sentence pairs to validate on and to translate (default: 200)"
    add("--test", metavar="N", type=positive, default=200, help=text)
    text = "as for sweep.sh, the first none:64 (default: those of rehearsal.yaml)"
    add("--runs", metavar='"A:N ..."', help=text)
    text = "only make the archive, and print what the shell must know for the commands of README.md to work on it: "
    add("--by-hand", action="store_true", help=text + f'eval "$({NAME} --by-hand)"')
    args = parser.parse_args()
    if args.updates < 10:
        raise RecipeError(f"--updates must be at least 10, one for each checkpoint, got {args.updates}")

    output = ROOT / "data" / "wmt16_en_de.rehearsal" if args.by_hand else args.output.absolute()
    miniature, data = output / "miniature", output / "data"
    output.mkdir(parents=True, exist_ok=True)
    if not miniature.is_dir():
        logger.info("making a miniature of wmt16_en_de.tar.gz")
        sizes = ["--train", args.train, "--valid", args.test, "--test", args.test]
        make = [PYTHON, ROOT / "data_prep" / "miniature.py", "wmt16_en_de", *sizes, "--output", miniature]
        run(*make, stdout=sys.stderr)
    archive, manifest = miniature / "wmt16_en_de.tar.gz", miniature / "manifest.tsv"
    if args.by_hand:
        names = {"WMT16_EN_DE_ARCHIVE": archive, "WMT16_EN_DE_MANIFEST": manifest, "WMT16_EN_DE_OUTPUT": data}
        for name, path in {"RECIPE_CONFIG": HERE / "rehearsal.yaml", **names}.items():
            sys.stdout.write(f"export {name}={shlex.quote(str(path))}\n")
        return
    prepare = [ROOT / "data_prep" / "wmt16_en_de.sh", "--archive", archive, "--manifest", manifest, "--output", data]
    run(*prepare, "--python", PYTHON)

    os.environ["RECIPE_CONFIG"] = str(HERE / "rehearsal.yaml")
    first = output / f"none-dk64-s1-u{args.updates}"  # of the sweep
    common = ["--data", data, "--reference", miniature / "references.de", "--updates", args.updates]
    common += ["--python", PYTHON, f"lr_scheduler.warmup_updates={args.updates // 5}"]
    of_first = ["--heads", "none", "--key-dim", 64, "--output", first, *common]
    if not (first / "killed").exists() and not (first / "averaged.pt").exists():
        train_and_kill(first, of_first, 5 * max(1, args.updates // 12))  # of twelve checkpoints, in the second stage
    for step in ("train", "average", "evaluate"):
        run(HERE / f"{step}.sh", *of_first)
    logger.info("the sweep: this model and the others")
    run(HERE / "sweep.sh", "--output", output, *(["--runs", args.runs] if args.runs else []), *common)
    logger.info("done: %s", output / "table.md")

"""Averages of the last checkpoints of a run."""

import logging
from pathlib import Path
from typing import List

from collab_fairseq import checkpoints
from fairseq_modern.errors import CheckpointError
from fairseq_modern.fault_tolerance.resuming import is_valid, read

from .recipe_run import Average, RecipeRun
from .settings import RecipeError

logger = logging.getLogger("recipe")


def write_averages(run: RecipeRun, average: Average) -> None:
    """Write an average, and that of the last epochs if the run keeps their checkpoints."""
    averages = [average]
    if run.epochs and run.kind != "last":
        existing = len(list(run.checkpoints.glob("checkpoint[0-9]*.pt")))
        if existing >= run.epochs:
            averages.insert(0, run.of_epochs(average))
        else:
            logger.info("no average of epochs: %d of %d epochs so far", existing, run.epochs)
    for each in averages:
        file = run.averaged(each)
        if file.exists():
            logger.info("averaging: %s is already done", file.name)
            continue
        logger.info("averaging the last %d checkpoints: %s", each.n, file.name)
        try:
            state, _ = checkpoints.average(inputs(run, each))
        except CheckpointError as error:
            raise RecipeError(f"{error}; {recovery(run, each)}") from error
        checkpoints.save(state, file)


def inputs(run: RecipeRun, average: Average) -> List[str]:
    """The checkpoints to average, newest first.

    Raises:
        CheckpointError: one is missing.
    """
    if average.kind == "epoch":
        return checkpoints.select_checkpoints(run.checkpoints, "epoch", average.n)
    files = []
    for update in updates(run, average):
        candidates = checkpoints_of(run, update)
        if not candidates:
            raise CheckpointError(f"{run.checkpoints} lacks the checkpoint of update {update}")
        files.append(str(candidates[0]))
    return files


def updates(run: RecipeRun, average: Average) -> List[int]:
    """The updates whose checkpoints are averaged, newest first."""
    last = run.end(average) // run.interval
    return [run.interval * number for number in range(last, last - average.n, -1)]


def checkpoints_of(run: RecipeRun, update: int) -> List[Path]:
    return list(run.checkpoints.glob(f"checkpoint_*_{update}.pt"))


def recovery(run: RecipeRun, average: Average) -> str:
    """The command that repeats the part of training whose checkpoints are missing or damaged, as a sentence."""
    usable: List[Path] = []
    for update in reversed(updates(run, average)):
        files = checkpoints_of(run, update)
        if not files or not is_valid(str(files[0])) or read(str(files[0])) is None:
            break
        usable += files
    others = [str(path) for path in sorted(run.checkpoints.glob("checkpoint*.pt")) if path not in usable]
    return f"to train this part again, run: rm {' '.join(others)} and then the same command"

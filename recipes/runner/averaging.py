"""Averages of the last checkpoints of a run."""

import logging
import math
import shlex
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq import checkpoints
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.checkpoints import is_valid, read

from .folder import kept_settings
from .recipe_run import Average, RecipeRun

logger = logging.getLogger("recipe")


def write_averages(run: RecipeRun, average: Average) -> None:
    """Write an average, and that of the last epochs if the run keeps their checkpoints."""
    averages = [average]
    if run.epochs and run.kind != "last":
        existing = len(list(run.checkpoints.glob("checkpoint[0-9]*.pt")))
        if existing >= run.epochs:
            averages.insert(0, run.epoch_average(average))
        else:
            logger.info("no average of epochs: %d of %d epochs so far", existing, run.epochs)
    for each in averages:
        file = run.average_file(each)
        if file.exists():
            logger.info("averaging %s: already done", file.name)
            continue
        logger.info("averaging the last %d checkpoints: %s", each.n, file.name)
        try:
            state, _ = checkpoints.average(inputs(run, each))
            check_run(run, state, each)
        except UserError as error:
            if advice := remedy(run, each):
                raise UserError(f"{error}{advice}") from error
            raise
        checkpoints.save(state, file)


def check_run(run: RecipeRun, state: Dict[str, Any], average: Average) -> None:
    """Check that checkpoints, which are of the same run, are of the run in the folder. Compares numbers only."""
    trained = checkpoints.run_settings(state)
    for name, value in kept_settings(run.output).items():
        section, _, key = name.partition(".")
        other = trained.get(f"{section}.{key.replace('.', '_')}")
        if isinstance(value, (int, float)) and isinstance(other, (int, float)) and value != other:
            raise UserError(
                f"{name} is {other} in {inputs(run, average)[0]}, but {value} in {run.output / 'settings.yaml'}: they "
                "are of different runs"
            )


def inputs(run: RecipeRun, average: Average) -> List[str]:
    """The checkpoints to average, newest first.

    Raises:
        UserError: one is missing, or the run has kept fewer than --average.
    """
    if average.kind == "epoch":
        return checkpoints.select_checkpoints(run.checkpoints, "epoch", average.n)
    files: List[str] = []
    for update in updates(run, average):
        candidates = checkpoints_of(run, update)
        if not candidates and files and average.kind == "last":
            raise UserError(
                f"--average must be at most {len(files)}, the number of checkpoints kept in {run.checkpoints}; "
                f"got {average.n}"
            )
        if not candidates:
            raise UserError(f"{run.checkpoints} lacks the checkpoint of update {update}")
        files.append(str(candidates[0]))
    return files


def updates(run: RecipeRun, average: Average) -> List[int]:
    """The updates whose checkpoints are averaged, newest first."""
    last = run.end(average) // run.interval
    return [run.interval * number for number in range(last, last - average.n, -1)]


def checkpoints_of(run: RecipeRun, update: int) -> List[Path]:
    return list(run.checkpoints.glob(f"checkpoint_*_{update}.pt"))


def remedy(run: RecipeRun, average: Average) -> str:
    """What to do about missing or damaged checkpoints, as the end of an error message; empty if there is no remedy."""
    if average.kind == "last":  # not part of the run, so training again does not make it
        return ""
    if average.kind == "epoch":
        damaged = [file for file in inputs(run, average) if not is_usable(Path(file))]
        without = f"; to continue without this average, run: {shlex.join(['rm', *damaged])} and then the same command"
        return without if damaged else ""
    lost = [update for update in updates(run, average) if not any(map(is_usable, checkpoints_of(run, update)))]
    if not lost:
        return ""
    files = sorted(run.checkpoints.glob("checkpoint*.pt"))
    useless = [str(file) for file in files if not is_usable(file, before=min(lost))]
    remove = f"{shlex.join(['rm', *useless])} and then " if useless else ""
    return f"; to train this stage again, run: {remove}run.sh with the same options"


def is_usable(file: Path, before: float = math.inf) -> bool:
    """Whether training can resume from a checkpoint, with fewer than `before` updates."""
    checkpoint = read(str(file))
    return checkpoint is not None and checkpoint.updates < before and is_valid(str(file))

"""Training of a run with fairseq-train: in stages, resumed from the latest valid checkpoint."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq.records import environment
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.checkpoints import latest_valid_checkpoint
from fairseq_modern.fault_tolerance.resuming import START

from . import data
from .averaging import write_averages
from .folder import fingerprint
from .launch import run_logged
from .machine import SET_BY_MACHINE
from .nodes import Connections
from .programs import tool
from .progress import RunProgress
from .recipe_run import Average, RecipeRun
from .settings import ROOT, TRAINING_SECTIONS, flags, identity

logger = logging.getLogger("recipe")

#: what must be the same on all nodes of a run, in addition to its identity
SAME_ON_ALL_NODES = ("gpus", "nodes", "max_tokens", "update_freq", "precision")


def train(run: RecipeRun, others: Connections) -> None:
    """Train all stages. Each is averaged before the next one removes its checkpoints."""
    stages = run.stages()
    for number, average in enumerate(stages, start=1):
        step = "training" if len(stages) == 1 else f"training, stage {number} of {len(stages)}"
        if run.average_file(average).exists():
            logger.info("%s: already done", step)
            continue
        train_stage(run, average, step, others)
        if average.stage:
            write_averages(run, average)


def train_stage(run: RecipeRun, average: Average, step: str, others: Connections) -> None:
    """Train up to the end of a stage, from the latest checkpoint if any. Messages begin with `step`."""
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    log, usage = run.output / "train.log", run.output / "train.usage.jsonl"
    latest = latest_valid_checkpoint(str(run.checkpoints))
    if latest and average.stage and latest.updates > average.stage:
        raise UserError(
            f"{run.output} has {latest.updates} updates, but no {run.average_file(average).name}: give --stages as at "
            "the start of the run"
        )
    if latest and latest.updates >= run.end(average):
        logger.info("%s: %s is complete", step, os.path.basename(latest.path))
    else:
        resuming = f": resuming from {os.path.basename(latest.path)}" if latest else ""
        logger.info("%s%s", step, resuming)
        # auto is fp16 or bf16, depending on the GPUs: the record lists the precision after each start
        device = "cpu" if run.machine.device == "cpu" else "gpu"  # in records
        machine = {**environment.hardware(), "threads": run.machine.threads, "device": device}
        about = {"precision": run.machine.precision, "hardware": machine}
        others.start(run.end(average), latest is not None, node_identity(run))
        with RunProgress() as progress:
            progress.add(run.output, run.end(average))

            def check() -> None:
                others.check()
                progress.poll()

            failed = run_logged(command(run, average, latest is not None), log, usage, about, check=check)
        if failed:
            raise UserError(f"training failed, see {log}; correct the cause, then resume with the same command")
    if average.stage:  # the record of a stage describes the run until its end
        for file in filter(Path.exists, (log, usage)):
            shutil.copy(file, run.output / file.name.replace("train", f"train{average.stage_suffix}", 1))


def train_as_other_node(run: RecipeRun, first: Connections) -> None:
    """Train on a node other than the first. The first node does everything else."""
    run.output.mkdir(parents=True, exist_ok=True)
    while stage := first.next_stage(lambda: node_identity(run)):
        average = next(average for average in run.stages() if run.end(average) == stage.end)
        log = run.output / f"train.node{run.machine.node_rank}.log"
        if run_logged(command(run, average, stage.resumes), log, check=first.check):
            raise UserError(f"training failed on this node, see {log}")


def node_identity(run: RecipeRun) -> Dict[str, Any]:
    """What must be the same on all nodes of a run: settings, batch, data, which are verified first."""
    data.verify(run)
    machine = {name: getattr(run.machine, name) for name in SAME_ON_ALL_NODES}
    stages = [run.end(average) for average in run.stages()]
    return {**identity(run.cfg), "stages": stages, **machine, "data": fingerprint(run.data)}


def command(run: RecipeRun, average: Average, resumes: bool = False) -> List[str]:
    """The command that trains a run up to the end of a stage.

    If it resumes the run, it has no settings for the start: fairseq would apply them again if anything else differs
    from the previous command, such as the number of GPUs.
    """
    cfg, machine = run.cfg.copy(), run.machine
    cfg.optimization.max_update = run.end(average)
    cfg.checkpoint.save_dir = str(run.checkpoints)
    for name in START if resumes else ():
        cfg.checkpoint.pop(name, None)
    if run.recipe.training_module:
        cfg.common.user_dir = str(ROOT / run.recipe.training_module)
    for name in SET_BY_MACHINE:
        section, _, key = name.partition(".")
        cfg[section].pop(key, None)
    launch = machine.launch()
    # explicit, because fairseq's own model runs without the --user-dir that turns fault tolerance on
    fault_tolerance = os.environ.get("FAIRSEQ_MODERN_FAULT_TOLERANCE", 1)
    threads = max(1, machine.threads // machine.gpus)
    environment = [f"OMP_NUM_THREADS={threads}", f"FAIRSEQ_MODERN_FAULT_TOLERANCE={fault_tolerance}"]
    if launch:
        timeout = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 100)
        environment.append(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={timeout}")
    fairseq_train = [tool("fairseq-train"), str(run.data / "data-bin"), *flags(cfg, *TRAINING_SECTIONS)]
    return ["env", *environment, *launch, *fairseq_train, *machine.training_flags()]

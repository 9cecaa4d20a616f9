"""Training of a run with fairseq-train: in stages, resumed from the latest valid checkpoint."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Callable, List

from collab_fairseq.records import environment
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.resuming import START, latest_valid_checkpoint

from .averaging import write_averages
from .machine import SET_BY_MACHINE
from .process import run_logged
from .programs import tool
from .recipe_run import Average, RecipeRun
from .settings import ROOT, TRAINING_SECTIONS, flags, identity

logger = logging.getLogger("recipe")

#: what must be the same on all nodes of a run, in addition to its identity
SAME_ON_ALL_NODES = ("gpus", "nodes", "max_tokens", "update_freq", "precision")


def train(run: RecipeRun, check: Callable[[], None] = lambda: None) -> None:
    """Train all stages. Each is averaged before the next one removes its checkpoints.

    Args:
        check: see `run_logged`.
    """
    stages = run.stages()
    for number, average in enumerate(stages, start=1):
        step = "training" if len(stages) == 1 else f"training, stage {number} of {len(stages)}"
        if run.average_file(average).exists():
            logger.info("%s: already done", step)
            continue
        train_stage(run, average, step, check)
        if average.stage:
            write_averages(run, average)


def train_stage(run: RecipeRun, average: Average, step: str, check: Callable[[], None] = lambda: None) -> None:
    """Train up to the end of a stage, from the latest checkpoint if any. Messages begin with `step`."""
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    log, usage = run.output / "train.log", run.output / "train.usage.jsonl"
    latest = latest_valid_checkpoint(str(run.checkpoints))
    if latest and average.stage and latest.updates > average.stage:
        raise UserError(
            f"{run.output} has {latest.updates} updates, but no {run.average_file(average).name}: give --stages as at "
            "the start of the run"
        )
    if latest and latest.updates >= run.end(average):  # fairseq-train would make one more update
        logger.info("%s: %s is complete", step, os.path.basename(latest.path))
    else:
        resuming = f": resuming from {os.path.basename(latest.path)}" if latest else ""
        logger.info("%s%s", step, resuming)
        # auto is fp16 or bf16, depending on the GPUs: the record lists the precision of each part
        machine = {**environment.hardware(), "threads": run.machine.threads, "device": run.machine.device}
        about = {"precision": run.machine.precision, "hardware": machine}
        words, stop_signal = command(run, average, latest is not None), run.machine.stop_signal()
        if run_logged(words, log, usage, about, stop_signal, check):
            raise UserError(f"training failed, see {log}; correct the cause, then resume with the same command")
    if average.stage:  # the record of a stage describes its own part of the training run
        for file in filter(Path.exists, (log, usage)):
            shutil.copy(file, run.output / file.name.replace("train", f"train{average.stage_suffix}", 1))


def train_as_other_node(run: RecipeRun, check: Callable[[], None]) -> None:
    """Train on a node other than the first. The first node does everything else."""
    run.output.mkdir(parents=True, exist_ok=True)
    for average in run.stages():
        latest = latest_valid_checkpoint(str(run.checkpoints)) if run.checkpoints.is_dir() else None
        if latest and latest.updates >= run.end(average):
            continue
        log = run.output / f"train.node{run.machine.node_rank}.log"
        if run_logged(command(run, average, latest is not None), log, check=check):
            raise UserError(f"training failed on this node, see {log}")


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
    if machine.nodes > 1:
        same = {name: getattr(machine, name) for name in SAME_ON_ALL_NODES}
        same = {**identity(run.cfg), "optimization.max_update": run.end(average), **same}
        launch += [str(Path(__file__).with_name("node.py")), json.dumps(same)]
    # explicit, because fairseq's own model runs without the --user-dir that turns fault tolerance on
    fault_tolerance = os.environ.get("FAIRSEQ_MODERN_FAULT_TOLERANCE", 1)
    environment = [f"OMP_NUM_THREADS={machine.threads_each}", f"FAIRSEQ_MODERN_FAULT_TOLERANCE={fault_tolerance}"]
    if launch:
        timeout = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 100)
        environment.append(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={timeout}")
    fairseq_train = [tool("fairseq-train"), str(run.data / "data-bin"), *flags(cfg, *TRAINING_SECTIONS)]
    return ["env", *environment, *launch, *fairseq_train, *machine.training_flags()]

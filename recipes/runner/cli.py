"""Command line of training recipes: settings, then prepare, train, average, translate, score, record.

Slow modules are imported by the functions that use them, so that --help and wrong settings take little time.
"""

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import List, Sequence, Set, Tuple

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fairseq_modern import optional_packages, processor
from fairseq_modern.errors import UserError

from . import options, settings
from .machine import Machine
from .recipe_run import RecipeRun, run_name
from .settings import ROOT

TRAINING_STEPS = ("train", "all")


def main(recipe: str, argv: Sequence[str]) -> None:
    """Do the step of a recipe that the first argument names, or without a step, all that lead to a record."""
    show_messages(recipe)
    words = list(argv)
    step = words.pop(0) if words and words[0] in options.STEPS else "all"
    if step == "sweep":
        from .sweep import sweep

        cfg, _ = read(recipe, step, words)
        shared = options.without_sweep_options(recipe, cfg, words)
        sweep(recipe, cfg, shared, lambda words: read_run(recipe, "all", words)[0])
        return
    cfg, overridden = read_run(recipe, step, words)
    run = plan_run(recipe, step, words, cfg)
    if step in TRAINING_STEPS:
        run.machine.choose_precision()
        run.machine.split_batch(cfg.recipe.batch_tokens, cfg.dataset.max_tokens)
    do(run, step, other_average="recipe.average" in overridden)


def do(run: RecipeRun, step: str, other_average: bool) -> None:
    """Do a step, or all of them. Each skips what is already done. `other_average`: see `continue_in_folder`."""
    from . import data, training
    from .averaging import write_averages
    from .evaluation import evaluate, references
    from .folder import keep_settings, locked
    from .nodes import joined

    trains = step in TRAINING_STEPS
    if run.recipe.dry_run:
        commands = [training.command(run, average) for average in run.stages() if trains]
        sys.stdout.write("".join(f"{shlex.join(command)}\n" for command in commands))
        return
    if run.machine.node_rank > 0:
        if trains:
            with joined(run.machine, run.recipe.node_timeout) as others:
                training.train_as_other_node(run, others)
        return
    if trains:
        optional_packages.check(run.cfg)
    with locked(run.output):
        if trains:
            with joined(run.machine, run.recipe.node_timeout) as others:
                data.prepare(run)
                data.verify(run)
                for name in run.test_sets.values() if step == "all" else ():
                    references(run, name)  # must not be missing after the training run
                keep_settings(run.output, run.identity())
                training.train(run, others)
        else:
            run.continue_in_folder(other_average)
        if step in ("average", "all"):
            write_averages(run, run.final_average())
        if step in ("evaluate", "all"):
            evaluate(run)


def read(recipe: str, step: str, argv: List[str]) -> Tuple[DictConfig, Set[str]]:
    """The settings of a recipe with all overrides, and the names of those that the command line overrides."""
    try:
        cfg = settings.load(recipe, options.config_of(argv))
        flags, words = options.parse(recipe, step, cfg, argv)
        cfg = settings.override(cfg, flags, words)
    except (HydraException, OmegaConfBaseException, UnicodeDecodeError, YAMLError) as error:
        raise UserError(str(error)) from error
    return cfg, {*flags, *(word.partition("=")[0] for word in words)}


def read_run(recipe: str, step: str, argv: List[str]) -> Tuple[DictConfig, Set[str]]:
    """Like `read`, for a single run: validates the settings and completes those that depend on others."""
    from .checks import check_averages, check_test_sets, validate

    cfg, overridden = read(recipe, step, argv)
    for option, path in (("--output", cfg.recipe.output), ("--data", cfg.recipe.data)):
        if os.pathsep in (path or ""):
            raise UserError(f"{option} must be a path without {os.pathsep!r}, where fairseq splits it; got {path}")
    try:
        validate(cfg)
    except OmegaConfBaseException as error:
        raise UserError(str(error)) from error
    if step in TRAINING_STEPS:
        check_averages(cfg)
    if cfg.recipe.valid and "recipe.reference" not in overridden:
        cfg.recipe.reference = None  # the references of the test set, from a YAML file
    check_test_sets(cfg)
    if step in ("evaluate", "all"):
        from collab_fairseq.scoring.bleu import sacrebleu_scorer

        sacrebleu_scorer(cfg.task.target_lang)  # raises an error if its tokeniser is not installed
    if cfg.lr_scheduler._name == "polynomial_decay":  # a number, so that stages share one schedule
        cfg.lr_scheduler.total_num_update = cfg.lr_scheduler.get("total_num_update") or cfg.optimization.max_update
    if not cfg.recipe.batch_tokens:
        processes = cfg.distributed_training.distributed_world_size
        cfg.recipe.batch_tokens = cfg.dataset.max_tokens * cfg.optimization.update_freq[0] * processes
    cfg.recipe.nodes = cfg.recipe.nodes or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    if cfg.recipe.node_rank is None:
        cfg.recipe.node_rank = int(os.environ.get("SLURM_NODEID") or 0) if cfg.recipe.nodes > 1 else 0
    return cfg, overridden


def plan_run(recipe: str, step: str, argv: List[str], cfg: DictConfig) -> RecipeRun:
    """The run that the settings select, and its machine."""
    wanted = cfg.recipe
    machine = Machine(
        device=wanted.device,
        gpus=wanted.gpus or 0,
        default_gpus=wanted.default_gpus or 0,
        nodes=wanted.nodes,
        node_rank=wanted.node_rank,
        master=wanted.master or "",
        threads=wanted.threads or processor.usable_cores(),
        dry_run=wanted.dry_run,
        precision=wanted.precision,
        gpu_precision="fp16" if cfg.common.get("fp16") else None,
        cpu_precision=wanted.cpu_precision,
        max_tokens=wanted.max_tokens or 0,
    )
    if machine.node_rank >= machine.nodes:
        raise UserError(f"--node-rank must be below --nodes, {machine.nodes}; got {machine.node_rank}")
    if step != "average":  # which runs on the CPU, also of a machine without the GPUs of the run
        machine.find_gpus()
    heads, key_dim = cfg.model.get("collaborative_heads", "stock"), cfg.model.get("key_dim")
    name = run_name(heads, key_dim, wanted.variant, cfg.common.seed, cfg.optimization.max_update)
    return RecipeRun(
        cfg,
        name=f"{recipe}-{name}",
        output=Path(wanted.output or ROOT / "runs" / recipe / name),
        data=ROOT / wanted.data,
        machine=machine,
        command_line=shlex.join([*options.program(recipe, step).split(), *argv]),
    )


def show_messages(name: str) -> None:
    """Show the messages of recipes, and warnings of other loggers, instead of fairseq's logging setup."""
    logging.basicConfig(level=logging.WARNING, format=f"{name}: %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("recipe").setLevel(logging.INFO)

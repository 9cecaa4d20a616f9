"""Command line of a recipe's scripts: parse, settings, prepare, train, average, translate, score, record."""

import argparse
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import List, Sequence, Tuple

from omegaconf import DictConfig

from collab_fairseq.scoring.bleu import sacrebleu_scorer
from fairseq_modern import optional_packages, processor

from . import data, overrides, settings, training
from .averaging import write_averages
from .evaluation import evaluate
from .folder import keep_settings, locked
from .machine import Machine
from .nodes import joined
from .options import STEPS, Parser, build_parser, program, without_sweep_options
from .recipe_run import RecipeRun
from .settings import PYTHON, ROOT, SettingsError
from .sweep import run_name, sweep
from .validation import check, check_averages, check_test_sets, validate

TRAINING_STEPS = ("train", "all")


def main(recipe: str, argv: Sequence[str]) -> None:
    """Do the step of a recipe that the first argument names, or without a step, all that lead to a record."""
    show_messages(recipe)
    words = list(argv)
    step = words.pop(0) if words and words[0] in STEPS else "all"
    if step == "sweep":
        cfg, args = read(recipe, step, words)
        shared = ["--python", PYTHON, *without_sweep_options(recipe, cfg, words)]
        sweep(recipe, cfg, args, shared, lambda words: read_run(recipe, "all", words)[0])
        return
    cfg, args = read_run(recipe, step, words)
    run = plan_run(recipe, step, words, cfg, args)
    if step in TRAINING_STEPS:
        run.machine.choose_precision()
        run.machine.split_batch(cfg.recipe.batch_tokens, cfg.dataset.max_tokens)
    if args.dry_run:
        if step in TRAINING_STEPS:
            commands = [training.command(run, average) for average in run.stages()]
            sys.stdout.write("".join(f"{shlex.join(command)}\n" for command in commands))
    elif run.machine.node_rank > 0:
        if step in TRAINING_STEPS:
            with joined(run.machine, run.recipe.node_timeout) as others:
                training.train_as_other_node(run, others)
    else:
        if step in TRAINING_STEPS:
            optional_packages.check(cfg)
        with locked(run.output):
            do_steps(run, step, other_average="recipe.average" in args.overridden)


def do_steps(run: RecipeRun, step: str, other_average: bool) -> None:
    """Do a step, or all of them. Each skips what is already done."""
    if step in TRAINING_STEPS:
        with joined(run.machine, run.recipe.node_timeout) as others:
            data.prepare(run)
            data.verify(run)
            keep_settings(run.output, run.identity())
            training.train(run, others)
    else:
        run.continue_in_folder(other_average)
    if step in ("average", "all"):
        write_averages(run, run.final_average())
    if step in ("evaluate", "all"):
        evaluate(run)


def read(recipe: str, step: str, argv: List[str]) -> Tuple[DictConfig, argparse.Namespace]:
    """The settings of a recipe with all overrides, and the options.

    `overridden`, added to the options, has the names of the settings that the command line overrides by name.
    """
    config_parser = Parser(add_help=False)
    config_parser.add_argument("--config", default=os.environ.get("RECIPE_CONFIG"))
    config = config_parser.parse_known_args(argv)[0].config
    cfg = settings.load(recipe, config)
    if config:
        check(cfg)  # the options take their defaults from it
    args, words = build_parser(recipe, step, cfg).parse_known_args(argv)
    for word in words:
        if word.startswith("-"):
            raise SettingsError(f"unknown argument '{word}' (see --help)")
    merged = overrides.merge(cfg, args, words)
    args.overridden = {name for name, value in vars(args).items() if "." in name and value is not None}
    args.overridden |= {word.partition("=")[0] for word in words}
    return merged, args


def read_run(recipe: str, step: str, argv: List[str]) -> Tuple[DictConfig, argparse.Namespace]:
    """Like `read`, for a single run: validates the settings and completes those that depend on others."""
    cfg, args = read(recipe, step, argv)
    for option, path in (("--output", args.output), ("--data", args.data)):
        if os.pathsep in (path or ""):
            raise SettingsError(f"{option} must be a path without {os.pathsep!r}, where fairseq splits it; got {path}")
    validate(cfg)
    if step in TRAINING_STEPS:
        check_averages(cfg)
    if args.valid and "recipe.reference" not in args.overridden:
        cfg.recipe.reference = None  # the references of the test set, from a YAML file
    check_test_sets(cfg, args.valid)
    if step in ("evaluate", "all"):
        sacrebleu_scorer(cfg.task.target_lang)  # raises an error if its tokeniser is not installed
    if cfg.lr_scheduler._name == "polynomial_decay":  # a number, so that stages share one schedule
        cfg.lr_scheduler.total_num_update = cfg.lr_scheduler.get("total_num_update") or cfg.optimization.max_update
    if not cfg.recipe.batch_tokens:
        processes = cfg.distributed_training.distributed_world_size
        cfg.recipe.batch_tokens = cfg.dataset.max_tokens * cfg.optimization.update_freq[0] * processes
    return cfg, args


def plan_run(recipe: str, step: str, argv: List[str], cfg: DictConfig, args: argparse.Namespace) -> RecipeRun:
    """The run that the settings select, and its machine."""
    nodes = args.nodes or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    rank = int(os.environ.get("SLURM_NODEID") or 0) if args.node_rank is None and nodes > 1 else args.node_rank or 0
    machine = Machine(
        device=cfg.recipe.device,
        gpus=cfg.recipe.gpus or 0,
        default_gpus=cfg.recipe.default_gpus or 0,
        nodes=nodes,
        node_rank=rank,
        master=args.master or "",
        threads=args.threads or processor.usable_cores(),
        dry_run=args.dry_run,
        precision=cfg.recipe.precision,
        gpu_precision="fp16" if cfg.common.get("fp16") else None,
        cpu_precision=cfg.recipe.cpu_precision,
        max_tokens=args.max_tokens or 0,
    )
    if machine.node_rank >= machine.nodes:
        raise SettingsError(f"--node-rank must be below --nodes, {machine.nodes}; got {machine.node_rank}")
    if step != "average":  # which runs on the CPU, also of a machine without the GPUs of the run
        machine.find_gpus()
    heads, key_dim = cfg.model.get("collaborative_heads", "stock"), cfg.model.get("key_dim")
    name = run_name(heads, key_dim, args.variant, cfg.common.seed, cfg.optimization.max_update)
    return RecipeRun(
        cfg,
        name=f"{recipe}-{name}",
        output=Path(args.output or ROOT / "runs" / recipe / name),
        data=Path(args.data or ROOT / cfg.recipe.data),
        machine=machine,
        command_line=shlex.join([*program(recipe, step).split(), *argv]),
        corpus=args.corpus,
        valid=args.valid,
    )


def show_messages(name: str) -> None:
    """Show the messages of recipes, and warnings of other loggers, instead of fairseq's logging setup."""
    logging.basicConfig(level=logging.WARNING, format=f"{name}: %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("recipe").setLevel(logging.INFO)

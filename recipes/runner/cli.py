"""The command line of a recipe's scripts."""

import argparse
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import List, Tuple

from omegaconf import DictConfig, OmegaConf

from fairseq_modern import processor

from . import settings
from .evaluation import evaluate
from .folder import locked
from .machine import Machine
from .options import Parser, build_parser, passed_on
from .settings import PYTHON, ROOT, SettingsError
from .sweep import run_name, sweep
from .training import RecipeRun
from .validation import check_averages, validate

#: settings that follow from options, and would be lost or say something else
DECIDED = {
    "common.cpu": "--device",
    "common.bf16": "--precision",
    "common.user_dir": "--stock or leave it out",
    "checkpoint.save_dir": "--output",
    "task.data": "--data",
}


def resolve(cfg: DictConfig, args: argparse.Namespace, words: List[str]) -> DictConfig:
    """The settings of a run: of the YAML, overridden by its variant, by options, by `key=value` words."""
    for word in words:
        if decided := DECIDED.get(word.partition("=")[0]):
            raise SettingsError(f"{word.partition('=')[0]} is what this recipe decides; give {decided}")
    values = {name: value for name, value in vars(args).items() if "." in name and value is not None}
    stock = getattr(args, "stock", False)
    if stock and (args.fast or "model.collaborative_heads" in values or "model.key_dim" in values):
        raise SettingsError("--stock excludes --heads, --key-dim and --fast")
    base = settings.stock(cfg) if stock else cfg
    if values.get("model.collaborative_heads") == "none":
        base = OmegaConf.merge(base, {"model": {"key_dim": None}})  # the width, unless it is given
    variant = settings.variant(cfg, getattr(args, "variant", None) or "")
    variant += settings.FAST.split() if args.fast else []
    options = OmegaConf.create()
    for name, value in values.items():
        OmegaConf.update(options, name, value)
    cfg = OmegaConf.merge(base, settings.overrides(base, variant), options, settings.overrides(base, words))
    settings.check(cfg)
    updates, interval = base.optimization.max_update, base.checkpoint.save_interval_updates
    if interval > 0 and not any(word.startswith("checkpoint.save_interval_updates=") for word in words):
        # as many checkpoints in a run of any length
        cfg.checkpoint.save_interval_updates = max(1, cfg.optimization.max_update // max(1, updates // interval))
    cfg.common.user_dir = None if stock else settings.USER_DIR
    return cfg


def plan_run(script: Path, argv: List[str], cfg: DictConfig, args: argparse.Namespace) -> RecipeRun:
    """The run that settings and options name, on the machine that they name."""
    recipe, own, model = script.parent.name, cfg.recipe, cfg.model
    if args.valid and not own.valid_tests:
        raise SettingsError("--valid: this recipe has no references for its validation set")
    machine = Machine(
        device=own.device,
        gpus=own.gpus or 0,
        nodes=args.nodes or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1),
        node_rank=args.node_rank or 0,
        master=args.master or "",
        threads=args.threads or processor.usable_cores(),
        dry_run=args.dry_run,
        precision=own.precision,
        gpu_precision="fp16" if cfg.common.get("fp16") else None,
        cpu_precision=own.cpu_precision,
        max_tokens=args.max_tokens or 0,
    )
    machine.find_cards()
    heads = model.get("collaborative_heads", "stock")
    name = run_name(heads, model.get("key_dim"), args.variant, cfg.common.seed, cfg.optimization.max_update)
    output, data = Path(args.output or ROOT / "runs" / recipe / name), Path(args.data or ROOT / own.data)
    started = shlex.join([str(script.relative_to(ROOT)), *argv])
    return RecipeRun(cfg, f"{recipe}-{name}", output, data, machine, started, args.corpus, args.valid)


def plan_training(run: RecipeRun) -> None:
    """Choose the precision, and divide the batch among the processes."""
    run.machine.choose_precision()
    run.machine.split_batch(run.recipe.batch_tokens, run.cfg.dataset.max_tokens)


def do_steps(run: RecipeRun, step: str, has_average: bool) -> None:
    """The steps of a run that a script stands for. Each looks for itself what is finished."""
    if step in ("train", "run"):
        run.prepare()
        run.keep_settings()
        run.verify_data()
        run.train()
    else:
        run.join(has_average)
    if step in ("average", "run"):
        run.average(run.average_at(run.updates))
    if step in ("evaluate", "run"):
        evaluate(run)


def read(script: Path, argv: List[str]) -> Tuple[DictConfig, argparse.Namespace]:
    """The settings of a run and the options of a step of a recipe, as the command line says."""
    first = Parser(add_help=False)
    first.add_argument("--config", default=os.environ.get("RECIPE_CONFIG"))
    cfg = settings.load(script.parent.name, first.parse_known_args(argv)[0].config)
    args, words = build_parser(script, cfg).parse_known_args(argv)
    for word in words:
        if word.startswith("-"):
            raise SettingsError(f"unknown argument '{word}' (see --help)")
    return resolve(cfg, args, words), args


def read_run(script: Path, argv: List[str]) -> Tuple[DictConfig, argparse.Namespace]:
    """As `read`, for a step that is one run: its settings are validated, and its batch is computed.

    Raises:
        SettingsError: naming the setting that is wrong.
    """
    cfg, args = read(script, argv)
    validate(cfg)
    if script.stem in ("train", "run"):
        check_averages(cfg)
    cfg.recipe.batch_tokens = settings.batch_of(cfg)
    return cfg, args


def show_messages(name: str) -> None:
    """Those of the recipes, and others' warnings, in place of what fairseq has set up."""
    logging.basicConfig(level=logging.WARNING, format=f"{name}: %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("recipe").setLevel(logging.INFO)


def main(script: Path, argv: List[str]) -> None:
    """Do a step of a recipe: what the folder and the name of the script say."""
    step, recipe = script.stem, script.parent.name
    show_messages(recipe)
    if step == "sweep":
        cfg, args = read(script, argv)
        passed = ["--python", PYTHON, *passed_on(recipe, cfg, argv)]
        sweep(recipe, cfg, args, passed, lambda words: read_run(script.with_name("run.sh"), words))
        return
    cfg, args = read_run(script, argv)
    run = plan_run(script, argv, cfg, args)
    if step in ("train", "run"):
        plan_training(run)
    if args.dry_run:
        commands = [run.command(end) for end in run.ends] if step in ("train", "run") else []
        sys.stdout.write("".join(f"{shlex.join(command)}\n" for command in commands))
    elif run.machine.node_rank > 0:
        run.train_as_other_node()
    else:
        with locked(run.output):
            do_steps(run, step, vars(args)["recipe.average"] is not None)

"""The command line of a recipe's scripts."""

import argparse
import logging
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from omegaconf import DictConfig, OmegaConf

from collab_fairseq.cli.options import Gone, Renamed, positive
from fairseq_modern import processor

from . import settings
from .evaluation import evaluate
from .machine import Machine, products
from .settings import PYTHON, ROOT, RecipeError
from .sweep import Sweep, parse, sweep
from .training import Run

ABOUT = {
    "train": "Train one model. The data are prepared where they are missing.",
    "average": "Average the last checkpoints of a run that train.sh has made.",
    "evaluate": "Translate, score (tokenised, compound-split and sacreBLEU) and record what average.sh has made.",
    "run": "Prepare, train, average, translate, score, record.",
    "sweep": "Several runs, one after the other, and the table of their results.",
}
#: options that are settings under another name
NAMES = {
    "heads": "model.collaborative_heads", "key_dim": "model.key_dim", "arch": "model._name", "seed": "common.seed",
    "updates": "optimization.max_update", "warmup": "lr_scheduler.warmup_updates", "average": "recipe.average",
    "stages": "recipe.stages", "batch_tokens": "recipe.batch_tokens", "device": "recipe.device", "gpus": "recipe.gpus",
    "precision": "recipe.precision", "tensorboard": "common.tensorboard_logdir", "wandb": "common.wandb_project",
    "reference": "recipe.reference",
}  # fmt: skip
#: settings that follow from options, and would be lost or say something else
DECIDED = {
    "common.cpu": "--device", "common.bf16": "--precision", "common.user_dir": "--stock or leave it out",
    "checkpoint.save_dir": "--output", "task.data": "--data",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Which says what is wrong in one sentence, as all of the recipes does."""

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} (see --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument '{unknown[0]}'")
        return found


def sites(text: str) -> str:
    if not re.fullmatch("none|(encoder|cross|decoder)(_(encoder|cross|decoder))*", text):
        raise RecipeError(f"--heads must be encoder, cross and decoder joined by _, or none, got '{text}'")
    return text


def absolute(text: str) -> str:
    return os.path.abspath(text)


def number(text: str) -> int:
    """A whole number from zero, for argparse."""
    return 0 if text == "0" else positive(text)


def numbers(text: str) -> List[int]:
    return [positive(word) for word in text.split(",")]


def sweep_parser(recipe: str, cfg: DictConfig, **options: Any) -> argparse.ArgumentParser:
    """What sweep.sh has for itself; the rest is handed on to run.sh."""
    parser = Parser(allow_abbrev=False, **options)
    add = parser.add_argument_group("the runs").add_argument
    text = "head sites and key dimension of each run, and a --variant"
    add("--runs", metavar='"A:N ..."', type=str.split, help=f"{text} (default: {' '.join(cfg.recipe.runs)})")
    add("--seeds", metavar="N,N,...", type=numbers, help=f"each run once per seed (default: {cfg.common.seed})")
    add("--jobs", metavar="N", type=positive, default=1, help="so many runs at a time on this machine (default: 1)")
    text = 'hand each run to a cluster instead, such as "sbatch --partition gpu", with recipes/slurm/run.sbatch'
    add("--submit", metavar="COMMAND", default="", help=text)
    text = f"where the runs go, one folder each, and table.md (default: runs/{recipe})"
    add("--output", metavar="DIR", type=absolute, help=text)
    add("--table", action="store_true", help="only the table of the runs that are finished")
    add("--dry-run", action="store_true", help="print the commands and do nothing")
    return parser


def build_parser(script: Path, cfg: DictConfig) -> argparse.ArgumentParser:
    """The options of a step of a recipe, with that recipe's defaults."""
    step, recipe, own = script.stem, script.parent.name, cfg.recipe
    about: Dict[str, Any] = {
        "prog": str(script.relative_to(ROOT)), "description": f"{own.about}. {ABOUT[step]}",
        "usage": f"{script.relative_to(ROOT)} [options] [SECTION.NAME=VALUE ...]",
        "epilog": f"Anything in recipes/{recipe}/{recipe}.yaml, and any setting of fairseq, may follow as "
        "SECTION.NAME=VALUE: optimization.lr=[0.001] model.dropout=0.1 recipe.average=3. The same command continues "
        "what was interrupted; finished steps and runs are skipped.",
    }  # fmt: skip
    if step == "sweep":
        parser = sweep_parser(recipe, cfg, **about)
    else:
        parser = Parser(allow_abbrev=False, **about)
        add = parser.add_argument_group("the run").add_argument
        text = "collaborative heads: encoder, cross, decoder joined by _, or none"
        add("--heads", metavar="SITES", type=sites, help=f"{text} (default: {cfg.model.collaborative_heads})")
        text = f"shared key dimension (default: {cfg.model.key_dim}; with --heads none the embedding width)"
        add("--key-dim", metavar="N", type=positive, help=text)
        add("--seed", metavar="N", type=positive, help=f"(default: {cfg.common.seed})")
        text = f"more settings, by names of recipe.variants joined by _: {' '.join(sorted(own.variants))}"
        add("--variant", metavar="NAME", default="", help=text)
        add("--with", action=Renamed, const="--variant")
        add("--output", metavar="DIR", type=absolute, help=f"where the run is (default: runs/{recipe}/<what it is>)")
        add("--dry-run", action="store_true", help="print the training command and do nothing")
        if own.stock:
            text = "fairseq's own transformer of the same size instead (no --heads, --key-dim, --arch, --fast)"
            add("--stock", action="store_true", help=text)
    text = "train with --heads none, convert the result with collab reparam, train on with --finetune-from-model"
    parser.add_argument("--wide", action=Gone, const=text)

    text = "model and training (the same options name the same run in all scripts)"
    add = parser.add_argument_group(text).add_argument
    add("--arch", metavar="NAME", help=f"a preset of this project (default: {cfg.model._name})")
    text = f"length of the training (default: {cfg.optimization.max_update})"
    add("--updates", metavar="N", type=positive, help=text)
    text = f"warm-up updates of the learning rate (default: {cfg.lr_scheduler.warmup_updates})"
    add("--warmup", metavar="N", type=positive, help=text)
    text = "the loss in chunks, Adam in one pass, dropout from fewer random bits"
    add("--fast", action="store_true", help=text)

    add = parser.add_argument_group("data").add_argument
    text = f"made by {own.prepare}, which is run where DIR does not exist (default: {own.data})"
    add("--data", metavar="DIR", type=absolute, default=str(ROOT / own.data), help=text)
    text = "the corpus as downloaded, for that script"
    add(own.source_option, dest="corpus", metavar="PATH", type=absolute, help=text)
    text = "raw references of the test set (default: those of the data"
    text += ", else fetched by sacrebleu)" if own.sacrebleu_sets else ")"
    add("--reference", metavar="FILE", type=absolute, help=text)

    add = parser.add_argument_group("machine").add_argument
    add("--device", metavar="NAME", help=f"auto, gpu or cpu (default: {own.device})")
    text = f"GPUs per node, or processes on a CPU (default: {own.gpus or 'all GPUs'})"
    add("--gpus", metavar="N", type=positive, help=text)
    text = "nodes (default: 1, in a Slurm job those of the job); outside Slurm start this script on each with --master"
    add("--nodes", metavar="N", type=positive, default=int(os.environ.get("SLURM_JOB_NUM_NODES") or 1), help=text)
    add("--master", metavar="H:P", default="", help="a port P of the first node H, and --node-rank")
    add("--node-rank", metavar="R", type=number, default=0, help="its number from 0")
    text = f"tokens per GPU and pass (default: the largest up to {cfg.dataset.max_tokens}, more from 48 GiB on, that "
    add("--max-tokens", metavar="N", type=positive, default=0, help=text + "gives the batch)")
    text = f"tokens per update, of all GPUs together (default: {settings.batch_of(cfg)})"
    add("--batch-tokens", metavar="N", type=positive, help=text)
    on_card = "fp16" if cfg.common.get("fp16") else "bf16 where the GPUs have it, else fp16"
    on_cpu = own.cpu_precision or "is measured"
    text = f"auto, fp16, bf16 or fp32 (default: {own.precision}; auto: {on_card}; a CPU {on_cpu})"
    add("--precision", metavar="NAME", help=text)
    text = "CPU threads per node (default: OMP_NUM_THREADS, else the cores that this shell may use)"
    add("--threads", metavar="N", type=positive, help=text)
    text = "Python with the project installed (default: $PYTHON, else python)"
    add("--python", metavar="PROGRAM", default=PYTHON, help=text)

    add = parser.add_argument_group("results").add_argument
    count = cfg.optimization.max_update // cfg.checkpoint.save_interval_updates
    text = f"average the last N checkpoints (default: {own.average}; there are {count} in a run)"
    add("--average", metavar="N", type=positive, help=text)
    text = "average, translate, score and record after each of N equal parts of the run"
    add("--stages", metavar="N", type=positive, help=f"{text} (default: {own.stages})")
    text = "evaluate on the validation set instead of the test set"
    add("--valid", action="store_true", help=f"{text} ({', '.join((own.valid_tests or {}).values()) or 'not here'})")
    add("--tensorboard", metavar="DIR", type=absolute, help="curves for TensorBoard")
    add("--wandb", metavar="PROJECT", help="curves for Weights & Biases")
    text = f"settings laid over {recipe}.yaml: FILE.yaml, or the name of one beside it (default: $RECIPE_CONFIG)"
    add("--config", metavar="FILE", help=text)
    return parser


def resolve(cfg: DictConfig, args: argparse.Namespace, words: List[str]) -> DictConfig:
    """The settings of a run, of the YAML, its variant, options and `key=value` words, each laid over those before."""
    for word in words:
        if word == "--":
            raise RecipeError("flags after -- are gone: give settings, such as optimization.lr=[0.001] for --lr 0.001")
        if word.startswith("-"):
            raise RecipeError(f"unknown argument '{word}' (see --help)")
        if decided := DECIDED.get(word.partition("=")[0]):
            raise RecipeError(f"{word.partition('=')[0]} is what this recipe decides; give {decided}")
    given = {name: getattr(args, name, None) for name in NAMES}
    over = [*settings.variant(cfg, getattr(args, "variant", "")), *(shlex.split(settings.FAST) if args.fast else [])]
    over += [f"{NAMES[name]}={value}" for name, value in given.items() if value is not None]
    stock = getattr(args, "stock", False)
    if stock:
        if args.fast or any(given[name] for name in ("heads", "key_dim", "arch")):
            raise RecipeError("--stock excludes --heads, --key-dim, --arch and --fast")
        kept = {key: cfg.model[key] for key in ("share_all_embeddings", "dropout")}
        cfg.model = OmegaConf.merge(cfg.recipe.stock, kept)
        cfg.criterion._name = cfg.criterion._name.removesuffix("_chunked")
        cfg.optimizer._name = cfg.optimizer._name.removeprefix("fused_")
    count = max(1, cfg.optimization.max_update // cfg.checkpoint.save_interval_updates)
    if given["heads"] == "none" and not given["key_dim"]:
        cfg.model.key_dim = None
    cfg = settings.lay_over(cfg, [*over, *words])
    if not any(word.startswith("checkpoint.save_interval_updates=") for word in words):
        cfg.checkpoint.save_interval_updates = max(1, cfg.optimization.max_update // count)
    settings.check(cfg)
    cfg.recipe.batch_tokens = settings.batch_of(cfg)
    cfg.common.user_dir = None if stock else settings.USER_DIR
    return cfg


def read(script: Path, argv: List[str]) -> Tuple[DictConfig, argparse.Namespace]:
    """The settings of a run and the options of a step of a recipe, as the command line says."""
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", default=os.environ.get("RECIPE_CONFIG"))
    cfg = settings.load(script.parent.name, first.parse_known_args(argv)[0].config)
    args, words = build_parser(script, cfg).parse_known_args(argv)
    return resolve(cfg, args, words), args


def main(script: Path, argv: List[str]) -> Optional[int]:
    """Do a step of a recipe: what the folder and the name of the script say."""
    step, recipe = script.stem, script.parent.name
    logging.basicConfig(level=logging.WARNING, format=f"{recipe}: %(message)s", stream=sys.stderr)
    logging.getLogger("recipe").setLevel(logging.INFO)
    cfg, args = read(script, argv)
    if step == "sweep":
        for run in (runs := args.runs or list(cfg.recipe.runs)):
            settings.variant(cfg, parse(run)[2])
        passed = sweep_parser(recipe, cfg, add_help=False).parse_known_args(argv)[1]
        output = Path(args.output or ROOT / "runs" / recipe)
        passed = ["--python", PYTHON, *passed]
        plan = Sweep(recipe, output, cfg.optimization.max_update, passed, args.jobs, args.submit, args.dry_run)
        sweep(plan, runs, args.seeds or [cfg.common.seed], args.table)
        return 0

    own, common = cfg.recipe, cfg.common
    machine = Machine(
        own.device, own.gpus or 0, args.nodes, args.node_rank, args.master, args.threads or processor.usable_cores(),
        args.dry_run, own.precision, "fp16" if common.get("fp16") else None, own.cpu_precision, args.max_tokens,
    )  # fmt: skip
    machine.find_cards()
    what = "stock" if getattr(args, "stock", False) else cfg.model.collaborative_heads
    key_dim = cfg.model.get("key_dim")
    name = f"{recipe}-{what}{f'-dk{key_dim}' if key_dim else ''}{args.variant and f'-{args.variant}'}"
    name += f"-s{common.seed}-u{cfg.optimization.max_update}"
    output = Path(args.output or ROOT / "runs" / recipe / name.removeprefix(f"{recipe}-"))
    command_line = shlex.join([str(script.relative_to(ROOT)), *argv])
    run = Run(cfg, name, output, Path(args.data), machine, command_line, args.corpus, args.valid)
    if args.valid and not own.valid_tests:
        raise RecipeError("--valid: this recipe has no references for its validation set")
    if step in ("train", "run"):
        run.check()
        machine.choose_precision(lambda threads: products(cfg.model._name, threads))
        machine.split_batch(own.batch_tokens, cfg.dataset.max_tokens)
        if args.dry_run:
            for end in run.ends:
                sys.stdout.write(shlex.join(run.command(end)) + "\n")
            return 0
        if machine.node_rank > 0:  # the first node does everything else
            run.train_as_other_node()
            return 0
        run.prepare()
        run.keep_settings()
        run.train()
    else:
        run.join(args.average is not None)
    if step in ("average", "run"):
        run.average(run.last)
    if step in ("evaluate", "run"):
        evaluate(run)
    return 0

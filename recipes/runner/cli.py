"""The command line of a recipe's scripts."""

import argparse
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from omegaconf import DictConfig, OmegaConf

from collab_fairseq.cli.options import positive
from fairseq_modern import processor

from . import settings
from .evaluation import evaluate
from .folder import locked
from .machine import Machine
from .settings import PYTHON, ROOT, SettingsError
from .sweep import run_name, sweep
from .training import RecipeRun
from .validation import check_averages, validate

ABOUT = {
    "train": "Train one model. The data are prepared where they are missing.",
    "average": "Average the last checkpoints of a run that train.sh has made.",
    "evaluate": "Translate, score (tokenised, compound-split and sacreBLEU) and record what average.sh has made.",
    "run": "Prepare, train, average, translate, score, record.",
    "sweep": "Several runs, one after the other, and the table of their results.",
}
#: settings that follow from options, and would be lost or say something else
DECIDED = {
    "common.cpu": "--device", "common.bf16": "--precision", "common.user_dir": "--stock or leave it out",
    "checkpoint.save_dir": "--output", "task.data": "--data",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Which says what is wrong in one sentence, as all of the recipes does, and lets start.sh have --python."""

    def __init__(self, prog: Optional[str] = None, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)
        text = "Python with the project installed (default: $PYTHON, else python)"
        self.add_argument("--python", metavar="PROGRAM", help=text)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument '{unknown[0]}'")
        return found


def absolute(text: str) -> str:
    return os.path.abspath(text)


def number(text: str) -> int:
    """A whole number from zero, for argparse."""
    return 0 if text == "0" else positive(text)


def numbers(text: str) -> List[int]:
    return [positive(word) for word in text.split(",")]


#: Options: flag, metavar, type, help, and the setting that it is another name for, which then has the default.
#: Equal options name the same run in all scripts.
OF_RUN = (
    ("--heads", "SITES", str, "collaborative heads: encoder, cross, decoder joined by _, or none",
     "model.collaborative_heads"),
    ("--key-dim", "N", positive, "shared key dimension; with --heads none the width, unless it is given",
     "model.key_dim"),
    ("--seed", "N", positive, "of the training", "common.seed"),
    ("--variant", "NAME", str, "more settings, by names of recipe.variants joined by _: {variants}"),
    ("--output", "DIR", absolute, "where the run is (default: runs/{name}/<what it is>)"),
    ("--dry-run", None, None, "print the training command of run.sh and train.sh, and do nothing"),
)  # fmt: skip
OF_SWEEP = (
    ("--runs", '"A:N ..."', str.split, "head sites and key dimension of each run, and a --variant (default: {runs})"),
    ("--seeds", "N,N,...", numbers, "each run once per seed (default: {common.seed})"),
    ("--jobs", "N", positive, "so many runs at a time on this machine, with --gpus on cards of their own (default: 1)"),
    ("--submit", "COMMAND", str, 'hand each run to a cluster instead, such as "sbatch --partition gpu", with '
     "recipes/slurm/run.sbatch"),
    ("--output", "DIR", absolute, "where the runs go, one folder each, and table.md (default: runs/{name})"),
    ("--table", None, None, "only the table of the runs that are finished"),
    ("--dry-run", None, None, "print the commands and do nothing"),
)  # fmt: skip
OF_ALL = {
    "model and training": (
        ("--updates", "N", positive, "length of the training", "optimization.max_update"),
        ("--fast", None, None, "the loss in chunks, Adam in one pass, dropout from fewer random bits"),
    ),
    "data": (
        ("--data", "DIR", absolute, "made by {recipe.prepare}, which is run where DIR does not exist (default: "
         "{recipe.data})"),
        ("{recipe.source_option}", "PATH", absolute, "the corpus as downloaded, for that script"),
        ("--reference", "FILE", absolute, "raw references of the test set in place of those of the data{fetched}",
         "recipe.reference"),
    ),
    "machine": (
        ("--device", "NAME", str, "auto, gpu or cpu", "recipe.device"),
        ("--gpus", "N", positive, "GPUs per node, else all, or processes on a CPU, else one", "recipe.gpus"),
        ("--nodes", "N", positive, "nodes (default: 1, or those of the job); outside Slurm start it on each with"),
        ("--master", "H:P", str, "a port P of the first node H, and"),
        ("--node-rank", "R", number, "its number from 0"),
        ("--max-tokens", "N", positive, "of a GPU and a pass (default: the largest up to {dataset.max_tokens}, more "
         "from 48 GiB on, that gives the batch of recipe.batch_tokens)"),
        ("--precision", "NAME", str, "auto ({on_card}; on a CPU {on_cpu}), fp16, bf16, fp32", "recipe.precision"),
        ("--threads", "N", positive, "CPU threads per node (default: OMP_NUM_THREADS, else the cores of this shell)"),
    ),
    "results": (
        ("--average", "N", positive, "average the last N checkpoints", "recipe.average"),
        ("--stages", "N", positive, "evaluate after each of N equal parts of the run", "recipe.stages"),
        ("--valid", None, None, "evaluate on the validation set instead of the test set ({valid})"),
        ("--config", "FILE", str, "settings laid over {name}.yaml: FILE.yaml, or the name of one beside it (default: "
         "$RECIPE_CONFIG)"),
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser, title: str, options: Any, facts: Dict[str, Any]) -> None:
    """Options of a table above, their help filled in with facts."""
    group = parser.add_argument_group(title)
    for flag, metavar, kind, text, *setting in options:
        how: Dict[str, Any] = {"metavar": metavar, "type": kind} if metavar else {"action": "store_true"}
        if flag.startswith("{"):
            how["dest"] = "corpus"
        if setting:
            (how["dest"],) = setting
            default = OmegaConf.select(facts["cfg"], how["dest"])
            text += "" if default is None else f" (default: {default})"
        group.add_argument(flag.format(**facts), help=text.format(**facts).replace("%", "%%"), **how)


def build_parser(script: Path, cfg: DictConfig) -> argparse.ArgumentParser:
    """The options of a step of a recipe, with that recipe's defaults."""
    step, recipe, own = script.stem, script.parent.name, cfg.recipe
    facts = {
        **{str(name): cfg[name] for name in cfg}, "cfg": cfg, "name": recipe,
        "variants": " ".join(sorted(own.variants)), "runs": " ".join(own.runs),
        "fetched": ", or fetched by sacrebleu" if own.sacrebleu_sets else "",
        "on_card": "fp16" if cfg.common.get("fp16") else "bf16 where the GPUs have it, else fp16",
        "on_cpu": "fp32" if own.cpu_precision == "fp32" else "bf16 where it has units for it, else fp32",
        "valid": ", ".join((own.valid_tests or {}).values()) or "not here",
    }  # fmt: skip
    name = str(script.relative_to(ROOT))
    parser = Parser(
        name, usage=f"{name} [options] [SECTION.NAME=VALUE ...]", description=f"{own.about}. {ABOUT[step]}",
        epilog=f"Any setting of recipes/{recipe}/{recipe}.yaml and of fairseq may follow: "
        "optimization.lr=[0.001] model.dropout=0.1 recipe.batch_tokens=8192. The same options name the same run "
        "everywhere; the same command continues what was interrupted, and skips what is finished.",
    )  # fmt: skip
    if step == "sweep":
        add_options(parser, "the runs", OF_SWEEP, facts)
    else:
        add_options(parser, "the run", OF_RUN, facts)
        if own.stock:
            text = "fairseq's own transformer of the same size instead (no --heads, --key-dim, --fast)"
            parser.add_argument("--stock", action="store_true", help=text)
    for title, options in OF_ALL.items():
        add_options(parser, title, options, facts)
    return parser


def passed_on(argv: List[str]) -> List[str]:
    """The words of sweep.sh that are run.sh's."""
    own = Parser(add_help=False)
    add_options(own, "", ((flag, metavar, kind, "") for flag, metavar, kind, *_ in OF_SWEEP), {})
    return own.parse_known_args(argv)[1]


def resolve(cfg: DictConfig, args: argparse.Namespace, words: List[str]) -> DictConfig:
    """The settings of a run, of the YAML, its variant, options and `key=value` words, each laid over those before."""
    # slow to import, and scripts of data_prep need the parser alone
    from collab_fairseq.models.config import OWN_FIELDS

    for word in words:
        if decided := DECIDED.get(word.partition("=")[0]):
            raise SettingsError(f"{word.partition('=')[0]} is what this recipe decides; give {decided}")
    given = {name: value for name, value in vars(args).items() if "." in name and value is not None}
    heads, key_dim = "model.collaborative_heads" in given, "model.key_dim" in given
    over = settings.variant(cfg, getattr(args, "variant", None) or "")
    over += settings.FAST.split() if args.fast else []
    stock = getattr(args, "stock", False)
    if stock:
        if args.fast or heads or key_dim:
            raise SettingsError("--stock excludes --heads, --key-dim and --fast")
        cfg = OmegaConf.merge(cfg, cfg.recipe.stock)  # type: ignore[assignment]
        cfg.model = {name: value for name, value in cfg.model.items() if name not in OWN_FIELDS}
    updates, interval = cfg.optimization.max_update, cfg.checkpoint.save_interval_updates
    if given.get("model.collaborative_heads") == "none" and not key_dim:
        cfg.model.key_dim = None
    cfg = settings.lay_over(cfg, over)
    for name, value in given.items():
        OmegaConf.update(cfg, name, value)
    cfg = settings.lay_over(cfg, words)
    settings.check(cfg)
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
        own.device, own.gpus or 0, args.nodes or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1), args.node_rank or 0,
        args.master or "", args.threads or processor.usable_cores(), args.dry_run, own.precision,
        "fp16" if cfg.common.get("fp16") else None, own.cpu_precision, args.max_tokens or 0,
    )  # fmt: skip
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
        if word == "--":
            raise SettingsError("flags after -- are gone: give settings, such as optimization.lr=[0.001] for --lr 0.001")
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
        one_run = script.with_name("run.sh")
        sweep(recipe, cfg, args, ["--python", PYTHON, *passed_on(argv)], lambda words: read_run(one_run, words))
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

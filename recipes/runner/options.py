"""Command-line options of training recipes."""

import argparse
import os
from typing import Any, List, NoReturn, Optional

from omegaconf import DictConfig, OmegaConf

from collab_fairseq.cli.options import positive

from .settings import SettingsError, test_sets

STEPS = {
    "train": "Train one model. Prepare the data if they are missing.",
    "average": "Average the last checkpoints of a run.",
    "evaluate": "Translate, score (BLEU, chrF, chrF++, TER) and record an average.",
    "all": "Prepare, train, average, translate, score, record. One of these steps alone: see train, average, evaluate "
    "--help; several runs and their table: sweep --help.",
    "sweep": "Train several models, one or --jobs at a time, and write the table of their results.",
}


class Parser(argparse.ArgumentParser):
    """Parser with one-line errors (`SettingsError`) and the option --python (data_prep/interpreter.py)."""

    def __init__(self, prog: Optional[str] = None, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)
        text = "Python with the project installed (default: $PYTHON, else python)"
        self.add_argument("--python", metavar="PROGRAM", help=text)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument '{unknown[0]}'")
        return parsed


def number(text: str) -> int:
    """Parse an integer ≥ 0, for argparse."""
    return 0 if text == "0" else positive(text)


def numbers(text: str) -> List[int]:
    return [positive(word) for word in text.split(",")]


def add_setting(group: Any, cfg: DictConfig, flag: str, setting: str, text: str, **options: Any) -> None:
    """Add an option that overrides a setting. Its help shows the value of this recipe."""
    value = OmegaConf.select(cfg, setting)
    default = "" if value is None else f" (default: {value})"
    group.add_argument(flag, dest=setting, help=text + default, **options)


def add_run_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """Options that select a run. The same options select the same run in all steps."""
    group = parser.add_argument_group("run")
    text = "sites with collaborative heads: encoder, cross, decoder joined by _, or none"
    add_setting(group, cfg, "--heads", "model.collaborative_heads", text, metavar="SITES")
    text = "key dimension: shared by collaborative heads, summed over standard heads; --heads none defaults to d_model"
    add_setting(group, cfg, "--key-dim", "model.key_dim", text, metavar="N", type=positive)
    add_setting(group, cfg, "--seed", "common.seed", "random seed of training", metavar="N", type=number)
    names = " ".join(sorted(cfg.recipe.variants)) or "none in this recipe"
    text = f"named settings from recipe.variants in the YAML file; several joined by _ (available: {names})"
    group.add_argument("--variant", metavar="NAME", help=text)
    text = f"folder of the run (default: runs/{recipe}/<heads, key dimension, variant, seed, updates>)"
    group.add_argument("--output", metavar="DIR", type=os.path.abspath, help=text)
    text = "print the training command, and do nothing"
    group.add_argument("--dry-run", action="store_true", help=text)
    sets = ", ".join(test_sets(cfg, valid=True).values()) or "not in this recipe"
    text = f"evaluate on the validation set instead of the test set ({sets})"
    group.add_argument("--valid", action="store_true", help=text)
    if cfg.recipe.stock:
        text = "fairseq's own transformer of the same size instead (excludes --heads, --key-dim, --fast)"
        group.add_argument("--stock", action="store_true", help=text)


def add_sweep_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """Options that select the runs of a sweep."""
    add = parser.add_argument_group("runs").add_argument
    text = f"head sites, key dimension and optional --variant of each run (default: {' '.join(cfg.recipe.runs)})"
    add("--runs", metavar='"HEADS:KEY_DIM[:VARIANT] ..."', type=str.split, help=text)
    add("--seeds", metavar="N,N,...", type=numbers, help=f"each run once per seed (default: {cfg.common.seed})")
    text = "at most N runs at a time on this machine, with --gpus on separate GPUs (default: 1)"
    add("--jobs", metavar="N", type=positive, help=text)
    text = (
        'submit each run to a cluster with this command, such as "sbatch --partition gpu", and recipes/slurm/run.sbatch'
    )
    add("--submit", metavar="COMMAND", help=text)
    text = f"folder of table.md and of the runs, one folder each (default: runs/{recipe})"
    add("--output", metavar="DIR", type=os.path.abspath, help=text)
    add("--table", action="store_true", help="only write the table of the finished runs")
    add("--dry-run", action="store_true", help="print the commands and do nothing")


def add_shared_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """Options of all steps: training, data, machine, results."""
    settings = cfg.recipe
    group = parser.add_argument_group("model and training")
    text = "updates of the training run"
    add_setting(group, cfg, "--updates", "optimization.max_update", text, metavar="N", type=positive)
    text = "faster: chunked loss and fused Adam (same loss and updates), --fast-dropout (different random numbers)"
    group.add_argument("--fast", action="store_true", help=text)

    group = parser.add_argument_group("data")
    text = f"prepared corpus; if missing, {settings.prepare} makes it (default: {settings.data})"
    group.add_argument("--data", metavar="DIR", type=os.path.abspath, help=text)
    text = f"downloaded corpus, passed to {settings.prepare}"
    group.add_argument(settings.source_option, metavar="PATH", type=os.path.abspath, dest="corpus", help=text)
    downloaded = ", else downloaded by sacrebleu" if settings.sacrebleu_sets else ""
    text = f"raw references of the test set (default: those of the data{downloaded})"
    add_setting(group, cfg, "--reference", "recipe.reference", text, metavar="FILE", type=os.path.abspath)

    group = parser.add_argument_group("machine")
    add_setting(group, cfg, "--device", "recipe.device", "auto, cuda or cpu", metavar="NAME")
    default = {None: "all", 1: "one"}.get(settings.default_gpus, settings.default_gpus)
    text = "GPUs per node; with --device cpu, processes"
    text += "" if settings.gpus else f" (default: {default}; one process)"
    add_setting(group, cfg, "--gpus", "recipe.gpus", text, metavar="N", type=positive)
    text = "number of nodes (default: 1, or those of the Slurm job); start the command on each node with --master and "
    text += "--node-rank, as recipes/slurm/run.sbatch does"
    group.add_argument("--nodes", metavar="N", type=positive, help=text)
    text = "host name and free port of the first node; nodes wait for each other for recipe.node_timeout seconds "
    text += f"({settings.node_timeout})"
    group.add_argument("--master", metavar="HOST:PORT", help=text)
    group.add_argument(
        "--node-rank", metavar="R", type=number, help="index of this node, from 0 (default: SLURM_NODEID)"
    )
    text = (
        "tokens per GPU and forward pass, padding included (default: the largest number up to "
        f"{cfg.dataset.max_tokens}, or more on GPUs with at least 48 GiB, that yields recipe.batch_tokens per update)"
    )
    group.add_argument("--max-tokens", metavar="N", type=positive, help=text)
    on_gpu = "fp16" if cfg.common.get("fp16") else "bf16 if the GPUs support it, else fp16"
    on_cpu = "fp32" if settings.cpu_precision == "fp32" else "bf16 with native support, else fp32"
    text = f"auto ({on_gpu}; on a CPU {on_cpu}), fp16, bf16, fp32"
    add_setting(group, cfg, "--precision", "recipe.precision", text, metavar="NAME")
    text = "CPU threads per node (default: OMP_NUM_THREADS, else the cores available to this shell)"
    group.add_argument("--threads", metavar="N", type=positive, help=text)

    group = parser.add_argument_group("results")
    text = "average the last N checkpoints"
    add_setting(group, cfg, "--average", "recipe.average", text, metavar="N", type=positive)
    text = "evaluate after each of N equal parts of the run"
    add_setting(group, cfg, "--stages", "recipe.stages", text, metavar="N", type=positive)
    text = f"settings that override {recipe}.yaml: FILE.yaml, or the name of one next to it (default: $RECIPE_CONFIG)"
    group.add_argument("--config", metavar="FILE", help=text)


def program(recipe: str, step: str) -> str:
    """The command for a step of a recipe, without options."""
    return f"recipes/{recipe}/run.sh" + ("" if step == "all" else f" {step}")


def build_parser(recipe: str, step: str, cfg: DictConfig) -> argparse.ArgumentParser:
    """The options of a step of a recipe, with the defaults of that recipe."""
    name = program(recipe, step)
    parser = Parser(
        name,
        usage=f"{name} {'[STEP] ' if step == 'all' else ''}[options] [SECTION.NAME=VALUE ...]",
        description=f"{cfg.recipe.about}. {STEPS[step]}",
        epilog=f"Override settings of recipes/{recipe}/{recipe}.yaml, or add others of fairseq: "
        "optimization.lr=[0.001] model.dropout=0.1 recipe.batch_tokens=8192. Settings that an option determines "
        "(common.bf16: --precision) are rejected, and so are those that prevent resuming or averaging "
        "(checkpoint.patience). The same options select the same run in every step. The same command resumes an "
        "interrupted run and skips finished steps; with other settings of decoding (generation.beam=1), only "
        "translations, scores and record are made again.",
    )
    parser.set_defaults(variant=None, stock=False)
    add_selecting_options = add_sweep_options if step == "sweep" else add_run_options
    add_selecting_options(parser, recipe, cfg)
    add_shared_options(parser, recipe, cfg)
    return parser


def without_sweep_options(recipe: str, cfg: DictConfig, argv: List[str]) -> List[str]:
    """The arguments of a sweep that each of its runs takes as well."""
    parser = Parser(add_help=False)
    add_sweep_options(parser, recipe, cfg)
    return parser.parse_known_args(argv)[1]

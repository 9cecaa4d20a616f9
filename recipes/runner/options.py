"""The options of a recipe's scripts."""

import argparse
import os
from pathlib import Path
from typing import Any, List, NoReturn, Optional

from omegaconf import DictConfig, OmegaConf

from collab_fairseq.cli.options import positive

from .settings import ROOT, SettingsError

ABOUT = {
    "train": "Train one model. The data are prepared where they are missing.",
    "average": "Average the last checkpoints of a run that train.sh has made.",
    "evaluate": "Translate, score (tokenised, compound-split and sacreBLEU) and record what average.sh has made.",
    "run": "Prepare, train, average, translate, score, record.",
    "sweep": "Several runs, one after the other, and the table of their results.",
}


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


# An option that is stored under a name with a dot is another name for that setting.


def default_of(cfg: DictConfig, setting: str) -> str:
    """What the help of an option says of the setting that it is another name for."""
    value = OmegaConf.select(cfg, setting)
    return "" if value is None else f" (default: {value})"


def add_run_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """Which run it is. The same options name the same run in all scripts."""
    add = parser.add_argument_group("the run").add_argument
    text = "collaborative heads: encoder, cross, decoder joined by _, or none"
    name = "model.collaborative_heads"
    add("--heads", metavar="SITES", dest=name, help=text + default_of(cfg, name))
    text = "shared key dimension; with --heads none the width, unless it is given"
    name = "model.key_dim"
    add("--key-dim", metavar="N", type=positive, dest=name, help=text + default_of(cfg, name))
    name = "common.seed"
    add("--seed", metavar="N", type=positive, dest=name, help="of the training" + default_of(cfg, name))
    text = f"more settings, by names of recipe.variants joined by _: {' '.join(sorted(cfg.recipe.variants))}"
    add("--variant", metavar="NAME", help=text)
    text = f"where the run is (default: runs/{recipe}/<what it is>)"
    add("--output", metavar="DIR", type=absolute, help=text)
    text = "print the training command of run.sh and train.sh, and do nothing"
    add("--dry-run", action="store_true", help=text)
    if cfg.recipe.stock:
        text = "fairseq's own transformer of the same size instead (no --heads, --key-dim, --fast)"
        add("--stock", action="store_true", help=text)


def add_sweep_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """Which runs they are, and where they are made."""
    add = parser.add_argument_group("the runs").add_argument
    text = f"head sites and key dimension of each run, and a --variant (default: {' '.join(cfg.recipe.runs)})"
    add("--runs", metavar='"A:N ..."', type=str.split, help=text)
    text = f"each run once per seed (default: {cfg.common.seed})"
    add("--seeds", metavar="N,N,...", type=numbers, help=text)
    text = "at most N runs at a time on this machine, with --gpus on separate GPUs (default: 1)"
    add("--jobs", metavar="N", type=positive, help=text)
    text = 'hand each run to a cluster instead, such as "sbatch --partition gpu", with recipes/slurm/run.sbatch'
    add("--submit", metavar="COMMAND", help=text)
    text = f"where the runs go, one folder each, and table.md (default: runs/{recipe})"
    add("--output", metavar="DIR", type=absolute, help=text)
    add("--table", action="store_true", help="only the table of the runs that are finished")
    add("--dry-run", action="store_true", help="print the commands and do nothing")


def add_shared_options(parser: argparse.ArgumentParser, recipe: str, cfg: DictConfig) -> None:
    """What all steps have: training, data, machine, results."""
    own = cfg.recipe
    add = parser.add_argument_group("model and training").add_argument
    name = "optimization.max_update"
    add("--updates", metavar="N", type=positive, dest=name, help="length of the training" + default_of(cfg, name))
    text = "the loss in chunks, Adam in one pass, dropout from fewer random bits"
    add("--fast", action="store_true", help=text)

    add = parser.add_argument_group("data").add_argument
    text = f"made by {own.prepare}, which is run if DIR does not exist (default: {own.data})"
    add("--data", metavar="DIR", type=absolute, help=text)
    text = "the corpus as downloaded, for that script"
    add(own.source_option, metavar="PATH", type=absolute, dest="corpus", help=text)
    fetched = ", or fetched by sacrebleu" if own.sacrebleu_sets else ""
    text = f"raw references of the test set instead of those of the data{fetched}"
    add(
        "--reference",
        metavar="FILE",
        type=absolute,
        dest="recipe.reference",
        help=text + default_of(cfg, "recipe.reference"),
    )

    add = parser.add_argument_group("machine").add_argument
    name = "recipe.device"
    add("--device", metavar="NAME", dest=name, help="auto, gpu or cpu" + default_of(cfg, name))
    text = "GPUs per node, else all, or processes on a CPU, else one"
    name = "recipe.gpus"
    add("--gpus", metavar="N", type=positive, dest=name, help=text + default_of(cfg, name))
    text = "nodes (default: 1, or those of the job); outside Slurm start it on each with"
    add("--nodes", metavar="N", type=positive, help=text)
    add("--master", metavar="H:P", help="a port P of the first node H, and")
    add("--node-rank", metavar="R", type=number, help="its number from 0")
    text = (
        f"of a GPU and a pass (default: the largest up to {cfg.dataset.max_tokens}, more from 48 GiB on, that gives "
        "the batch of recipe.batch_tokens)"
    )
    add("--max-tokens", metavar="N", type=positive, help=text)
    on_gpu = "fp16" if cfg.common.get("fp16") else "bf16 if the GPUs have it, else fp16"
    on_cpu = "fp32" if own.cpu_precision == "fp32" else "bf16 with native support, else fp32"
    name = "recipe.precision"
    text = f"auto ({on_gpu}; on a CPU {on_cpu}), fp16, bf16, fp32"
    add("--precision", metavar="NAME", dest=name, help=text + default_of(cfg, name))
    text = "CPU threads per node (default: OMP_NUM_THREADS, else the cores of this shell)"
    add("--threads", metavar="N", type=positive, help=text)

    add = parser.add_argument_group("results").add_argument
    text = "average the last N checkpoints"
    name = "recipe.average"
    add("--average", metavar="N", type=positive, dest=name, help=text + default_of(cfg, name))
    text = "evaluate after each of N equal parts of the run"
    name = "recipe.stages"
    add("--stages", metavar="N", type=positive, dest=name, help=text + default_of(cfg, name))
    sets = ", ".join((own.valid_tests or {}).values()) or "not here"
    add("--valid", action="store_true", help=f"evaluate on the validation set instead of the test set ({sets})")
    text = f"settings that override {recipe}.yaml: FILE.yaml, or the name of one next to it (default: $RECIPE_CONFIG)"
    add("--config", metavar="FILE", help=text)


def build_parser(script: Path, cfg: DictConfig) -> argparse.ArgumentParser:
    """The options of a step of a recipe, with that recipe's defaults."""
    step, recipe, name = script.stem, script.parent.name, str(script.relative_to(ROOT))
    parser = Parser(
        name,
        usage=f"{name} [options] [SECTION.NAME=VALUE ...]",
        description=f"{cfg.recipe.about}. {ABOUT[step]}",
        epilog=f"Any setting of recipes/{recipe}/{recipe}.yaml and of fairseq may follow: "
        "optimization.lr=[0.001] model.dropout=0.1 recipe.batch_tokens=8192. The same options name the same run "
        "everywhere; the same command continues what was interrupted, and skips what is finished.",
    )
    add_first_options = add_sweep_options if step == "sweep" else add_run_options
    add_first_options(parser, recipe, cfg)
    add_shared_options(parser, recipe, cfg)
    return parser


def passed_on(recipe: str, cfg: DictConfig, argv: List[str]) -> List[str]:
    """The words of sweep.sh that are run.sh's."""
    parser = Parser(add_help=False)
    add_sweep_options(parser, recipe, cfg)
    return parser.parse_known_args(argv)[1]

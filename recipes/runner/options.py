"""Command-line options of training recipes: each flag is another name of a setting."""

import argparse
import os
from typing import Any, Dict, List, NamedTuple, Tuple

from omegaconf import DictConfig, OmegaConf

from collab_fairseq.cli.options import number, numbers, positive

from .settings import test_sets

STEPS = {
    "train": "Train one model. Prepare the data if they are missing.",
    "average": "Average the last checkpoints of a run.",
    "evaluate": "Translate, score (BLEU, chrF, chrF++, TER) and record an average.",
    "all": "Prepare, train, average, translate, score, record. One of these steps alone: see train, average, evaluate "
    "--help; several runs and their table: sweep --help.",
    "sweep": "Train several models, one or --jobs at a time, and write the table of their results.",
}


#: name of a value → its type; without a name, the flag has no value
TYPES: Dict[str, Any] = {
    **{"N": positive, "K": number, "N,N,...": numbers, '"HEADS:KEY_DIM[:VARIANT] ..."': str.split},
    **{"DIR": os.path.abspath, "FILE": os.path.abspath, "PATH": os.path.abspath},
}


class Flag(NamedTuple):
    """A flag and the setting that it overrides."""

    flag: str
    setting: str
    value: str  # name of its value in --help; see TYPES
    help: str


#: of one run; the same flags select the same run in all steps
RUN = (
    Flag("--heads", "model.collaborative_heads", "SITES", "sites with collaborative heads: encoder, cross, decoder "
         "joined by _, or none"),
    Flag("--key-dim", "model.key_dim", "N", "key dimension: shared by collaborative heads, summed over standard heads; "
         "--heads none defaults to d_model"),
    Flag("--seed", "common.seed", "K", "random seed of training"),
    Flag("--variant", "recipe.variant", "NAME", "named settings from recipe.variants in the YAML file; several joined "
         "by _ (available: {variants})"),
    Flag("--stock", "recipe.use_stock", "", "fairseq's own transformer of the same size instead (excludes --heads, "
         "--key-dim, --fast)"),
    Flag("--valid", "recipe.valid", "", "evaluate on the validation set instead of the test set ({valid_sets})"),
    Flag("--output", "recipe.output", "DIR", "folder of the run (default: runs/{name}/<heads, key dimension, variant, "
         "seed, updates>)"),
    Flag("--dry-run", "recipe.dry_run", "", "print the training command, and do nothing"),
)  # fmt: skip
#: of a sweep
SWEEP = (
    Flag("--runs", "recipe.runs", '"HEADS:KEY_DIM[:VARIANT] ..."', "head sites, key dimension and optional --variant "
         "of each run"),
    Flag("--seeds", "recipe.seeds", "N,N,...", "each run once per seed (default: that of the recipe)"),
    Flag("--jobs", "recipe.jobs", "N", "at most N runs at a time on this machine, with --gpus on separate GPUs"),
    Flag("--submit", "recipe.submit", "COMMAND", 'submit each run to a cluster with this command, such as "sbatch '
         '--partition gpu", and recipes/slurm/run.sbatch'),
    Flag("--output", "recipe.output", "DIR", "folder of table.md and of the runs, one folder each (default: "
         "runs/{name})"),
    Flag("--table", "recipe.table", "", "only write the table of the finished runs"),
    Flag("--dry-run", "recipe.dry_run", "", "print the commands and do nothing"),
)  # fmt: skip
#: of both: training, data, machine, results
SHARED = (
    Flag("--updates", "optimization.max_update", "N", "updates of the training run"),
    Flag("--fast", "recipe.fast", "", "faster: chunked loss and fused Adam (same loss and updates), --fast-dropout "
         "(different random numbers)"),
    Flag("--data", "recipe.data", "DIR", "prepared corpus; if missing, {prepare} makes it"),
    Flag("{source_option}", "recipe.corpus", "PATH", "downloaded corpus, passed to {prepare}"),
    Flag("--reference", "recipe.reference", "FILE", "raw references of the test set (default: those of the data, or "
         "sacrebleu's)"),
    Flag("--device", "recipe.device", "NAME", "auto, cuda or cpu"),
    Flag("--gpus", "recipe.gpus", "N", "GPUs per node (default: {gpus}); with --device cpu, processes (one)"),
    Flag("--nodes", "recipe.nodes", "N", "number of nodes (default: 1, or those of the Slurm job); outside Slurm, "
         "start the command on each node with --master and --node-rank"),
    Flag("--master", "recipe.master", "HOST:PORT", "host name and free port of the first node; nodes wait for each "
         "other for recipe.node_timeout seconds"),
    Flag("--node-rank", "recipe.node_rank", "K", "index of this node, from 0 (default: SLURM_NODEID)"),
    Flag("--max-tokens", "recipe.max_tokens", "N", "tokens per GPU and forward pass, padding included (default: the "
         "largest number up to dataset.max_tokens, or more on GPUs with at least 48 GiB, that yields "
         "recipe.batch_tokens per update)"),
    Flag("--precision", "recipe.precision", "NAME", "auto ({on_gpu}; on a CPU {on_cpu}), fp16, bf16, fp32"),
    Flag("--threads", "recipe.threads", "N", "CPU threads per node (default: OMP_NUM_THREADS, else the cores available "
         "to this shell)"),
    Flag("--average", "recipe.average", "N", "average the last N checkpoints"),
    Flag("--stages", "recipe.stages", "N", "evaluate after each of N equal parts of the run"),
)  # fmt: skip


def program(recipe: str, step: str) -> str:
    """The command for a step of a recipe, without options."""
    return f"recipes/{recipe}/run.sh" + ("" if step == "all" else f" {step}")


def add_flags(parser: Any, flags: Tuple[Flag, ...], recipe: str, cfg: DictConfig) -> None:
    """Add flags with the defaults of a recipe in their help."""
    names = {
        "name": recipe,
        "prepare": cfg.recipe.prepare,
        "source_option": cfg.recipe.source_option,
        "variants": " ".join(sorted(cfg.recipe.variants)) or "none in this recipe",
        "valid_sets": ", ".join(test_sets(cfg, valid=True).values()) or "not in this recipe",
        "gpus": {None: "all", 1: "one"}.get(cfg.recipe.default_gpus, cfg.recipe.default_gpus),
        "on_gpu": "fp16" if cfg.common.get("fp16") else "bf16 if the GPUs support it, else fp16",
        "on_cpu": "fp32" if cfg.recipe.cpu_precision == "fp32" else "bf16 with native support, else fp32",
    }
    for flag, setting, value, text in flags:
        if flag == "--stock" and not cfg.recipe.stock:
            continue
        default, text = OmegaConf.select(cfg, setting), text.format(**names)
        if default not in (None, False) and "(default" not in text:
            shown = " ".join(default) if OmegaConf.is_list(default) else default
            text += f" (default: {shown})"
        options = {"metavar": value, "type": TYPES.get(value, str)} if value else {"action": "store_true"}
        parser.add_argument(flag.format(**names), dest=setting, help=text.replace("%", "%%"), **options)


def build_parser(recipe: str, step: str, cfg: DictConfig) -> argparse.ArgumentParser:
    """The options of a step of a recipe, with the defaults of that recipe."""
    name = program(recipe, step)
    parser = argparse.ArgumentParser(
        name,
        usage=f"{name} {'[STEP] ' if step == 'all' else ''}[options] [SECTION.NAME=VALUE ...]",
        description=f"{cfg.recipe.about}. {STEPS[step]}",
        epilog=f"SECTION.NAME=VALUE overrides a setting of recipes/{recipe}/{recipe}.yaml, or another one of fairseq: "
        "optimization.lr=[0.001] model.dropout=0.1 recipe.batch_tokens=8192. The same command resumes an interrupted "
        "run and skips finished steps; with other settings of decoding (generation.beam=1), only translations, scores "
        "and record are made again.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    text = f"settings that override {recipe}.yaml: FILE.yaml, or the name of one next to it (default: $RECIPE_CONFIG)"
    parser.add_argument("--config", metavar="FILE", help=text)
    add_flags(parser, SWEEP if step == "sweep" else RUN, recipe, cfg)
    add_flags(parser, SHARED, recipe, cfg)
    return parser


def config_of(argv: List[str]) -> str:
    """The value of --config, which has the defaults of other options, or of $RECIPE_CONFIG."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=os.environ.get("RECIPE_CONFIG", ""))
    return str(parser.parse_known_args(argv)[0].config)


def parse(recipe: str, step: str, cfg: DictConfig, argv: List[str]) -> Tuple[Dict[str, Any], List[str]]:
    """The settings that flags override, and the `SECTION.NAME=VALUE` arguments."""
    parser = build_parser(recipe, step, cfg)
    parsed, words = parser.parse_known_args(argv)
    unknown = [word for word in words if word.startswith("-") or "=" not in word]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return {name: value for name, value in vars(parsed).items() if "." in name}, words


def without_sweep_options(recipe: str, cfg: DictConfig, argv: List[str]) -> List[str]:
    """The arguments of a sweep that each of its runs takes as well."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(parser, SWEEP, recipe, cfg)
    settings = {flag.setting for flag in SWEEP}
    return [word for word in parser.parse_known_args(argv)[1] if word.partition("=")[0] not in settings]

"""Several runs of a recipe and the table of their results."""

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from omegaconf import DictConfig

from collab_fairseq.records.columns import GROUP_BY
from collab_fairseq.records.rows import distinguishing, load_run
from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS

from .evaluation import blind_source, blind_translations, check_scores
from .folder import check_output, check_settings, fingerprint, kept_settings
from .launch import STOPPED, forward_signals, gpu_shares, run_logged, send, start
from .machine import Machine, find_gpus
from .programs import collab
from .progress import RunProgress
from .recipe_run import run_name
from .settings import ROOT, decoding, identity
from .summary import check_packages

logger = logging.getLogger("recipe")
Processes = Dict[str, "subprocess.Popen[Any]"]


def sweep(recipe: str, cfg: DictConfig, shared: List[str], read_run: Callable[[List[str]], DictConfig]) -> None:
    """Make the requested runs, each once per seed, and write the table of those that are finished.

    Args:
        shared: arguments of every run.
        read_run: the settings of a run with these arguments; raises an error if the run is impossible.
    """
    check_packages()
    wanted = cfg.recipe
    output, program = Path(wanted.output or ROOT / "runs" / recipe), run_program(recipe, cfg)
    selections = [parse_run(run) for run in wanted.runs]
    if not selections:
        raise UserError("--runs must name at least one run, such as none:64; got ''")
    for name in (word.partition("=")[0] for word in shared):
        if name in ("model.collaborative_heads", "model.key_dim", "common.seed", "recipe.variant", "recipe.valid"):
            raise UserError(f"{name} is no setting of a sweep; give --runs or --seeds")
    cfgs = [read_run([*run_options(*selection), *shared]) for selection in selections]
    data = ROOT / wanted.data
    runs = {}
    decodings = {}
    scored = {}
    for seed in wanted.seeds or [cfg.common.seed]:
        for selection, settings in zip(selections, cfgs, strict=True):
            name = run_name(*selection, seed, cfg.optimization.max_update)
            check_existing(output / name, {**identity(settings), "common.seed": seed}, data)
            scored[name] = check_scores(output / name / "record.json", settings, data)
            decodings[name] = decoding(settings)
            words = [*run_options(*selection), "--seed", str(seed), "--output", str(output / name)]
            runs[name] = [*program, *words, *shared]
    if wanted.table:
        for name in runs:
            check_settings(output / name, recorded_decoding(output / name) or decodings[name], decodings[name])
        write_tables(output, runs)
        return
    unfinished = {}
    for name, command in runs.items():
        translated = recorded_decoding(output / name) in ({}, decodings[name])
        if translated and scored[name] and is_finished(output / name, cfg):
            logger.info("%s: already done", name)
        else:
            unfinished[name] = command
    if wanted.dry_run:
        sys.stdout.write("".join(f"{shlex.join(command)}\n" for command in unfinished.values()))
    elif wanted.submit is not None:
        for name, command in unfinished.items():
            if run_logged(command):
                raise UserError(f"{name} could not be submitted (see above)")
    else:
        check_output(output)
        gpus = gpus_per_run(cfg) if unfinished else 0
        failed = make(unfinished, output, wanted.jobs, gpus, cfg.optimization.max_update)
        if len(failed) < len(runs):
            write_tables(output, runs)
        if failed:
            raise UserError(f"not finished: {', '.join(failed)}; the same command resumes")


def is_finished(folder: Path, cfg: DictConfig) -> bool:
    """Whether a run has its record, model folder and blind translations. Of a copied run, the record is enough."""
    if not (folder / "record.json").is_file():
        return False
    if not (folder / "averaged.pt").exists() or not cfg.recipe.blind:
        return True
    missing = [name for name in cfg.recipe.blind if not blind_translations(folder, cfg, name).is_file()]
    return (folder / "model").is_dir() and not any(blind_source(cfg, name) for name in missing)


def recorded_decoding(folder: Path) -> Dict[str, Any]:
    """The settings of decoding in the record of a run; empty if there is no record, or if it does not have them."""
    file = folder / "record.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"settings": {}}
    return record["settings"].get("decoding") or {}


def check_existing(folder: Path, settings: Dict[str, Any], data: Path) -> None:
    """Check that the run in a folder, if any, has the requested settings (`identity`), and data if these are here.

    Raises:
        UserError: the run has different settings.
    """
    if (folder / "settings.yaml").is_file():
        existing = kept_settings(folder)
        requested = {"name": existing.get("name"), "data": existing.get("data"), **settings}
        if (data / CHECKSUMS).is_file():
            requested["data"] = fingerprint(data)
        check_settings(folder, existing, requested)
    elif (folder / "record.json").is_file():  # only the record was copied here
        logger.warning("%s has no settings.yaml: its settings are not checked", folder)


def parse_run(run: str) -> Tuple[str, str, str]:
    """HEADS, KEY_DIM and VARIANT (may be empty) of a run as listed in `recipe.runs`."""
    if not re.fullmatch(r"[a-z_]+:0*[1-9][0-9]*(:[\w-]+)?", run):
        raise UserError(f"--runs must be HEADS:KEY_DIM[:VARIANT] with a positive KEY_DIM; got '{run}'")
    heads, key_dim, *variant = run.split(":")
    return heads, key_dim, "".join(variant)


def run_options(heads: str, key_dim: str, variant: str) -> List[str]:
    words = ["--heads", heads, "--key-dim", key_dim]
    return [*words, "--variant", variant] if variant else words


def run_program(recipe: str, cfg: DictConfig) -> List[str]:
    """The program that makes a run: run.sh, or --submit with run.sbatch."""
    submit, folder = cfg.recipe.submit, ROOT / "recipes" / recipe
    step = ["all"] if (folder / "run.py").is_file() else []  # by the runner, not by the program of the recipe
    if submit is None:
        return [str(folder / "run.sh"), *step]
    words = shlex.split(submit)
    if not words or not (cfg.recipe.dry_run or shutil.which(words[0])):
        raise UserError(f"--submit must begin with a program that is installed; got '{submit}'")
    if Path.cwd().resolve() != ROOT:  # run.sbatch looks for the recipe in the folder of submission
        raise UserError(f"--submit must be given in {ROOT}; got {Path.cwd()}")
    return [*words, str(ROOT / "recipes/slurm/run.sbatch"), recipe, *step]


def gpus_per_run(cfg: DictConfig) -> int:
    """GPUs of each run; 0: all, or none. Raises UserError if a run would not find the GPUs that it requests."""
    machine = Machine(cfg.recipe.device, cfg.recipe.gpus or 0)
    machine.find_gpus()
    return (cfg.recipe.gpus or cfg.recipe.default_gpus or 0) if machine.device == "cuda" else 0


def make(runs: Dict[str, List[str]], output: Path, jobs: int, gpus: int, updates: int) -> List[str]:
    """Make runs, at most `jobs` at a time. Returns the names of those that failed.

    With several jobs, the output of each run goes to its messages.txt, and this process shows their progress. Each run
    has this number of GPUs (0: all).
    """
    running: Processes = {}
    failed: List[str] = []
    environment = dict(os.environ)
    if jobs > 1:
        environment.pop("MASTER_PORT", None)  # each run has a port of its own
    shares = gpu_shares(jobs, gpus, find_gpus().number if jobs > 1 and gpus else 0)
    share_of: Dict[str, str] = {}
    with forward_signals(running.values()) as received, RunProgress() as progress:
        for number, (name, command) in enumerate(runs.items(), start=1):
            failed += wait_for(running, jobs - 1, received, progress.poll)
            messages = output / name / "messages.txt"
            hint = f": started, see {messages}" if jobs > 1 else ""
            logger.info("run %d of %d, %s%s", number, len(runs), name, hint)
            if shares:
                free = list(shares)
                for other in running:
                    free.remove(share_of[other])
                share_of[name] = environment["CUDA_VISIBLE_DEVICES"] = free[0]
            if jobs > 1:
                messages.parent.mkdir(parents=True, exist_ok=True)
                progress.add(messages.parent, updates)
            with open(messages, "wb") if jobs > 1 else contextlib.nullcontext() as stream:
                options = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
                running[name] = start(command, env=environment, **options)
            if received:
                send(running[name])
        return failed + wait_for(running, 0, received, progress.poll)


def wait_for(running: Processes, limit: int, received: List[int], poll: Callable[[], None]) -> List[str]:
    """Wait until at most `limit` runs are active. Returns the names of those that failed.

    After a signal to this process (`received`), or if a run was stopped, wait for all runs, which save their state.
    """
    failed = []
    while len(running) > (0 if received else limit):
        time.sleep(0.05)
        poll()
        for name in [name for name, process in running.items() if process.poll() is not None]:
            status = running.pop(name).returncode
            if status == STOPPED:
                received.append(status)
            elif status:
                failed.append(name)
    if received:
        raise SystemExit(STOPPED)
    return failed


def write_tables(output: Path, names: Iterable[str]) -> None:
    """Print and write table.md, of the records of runs, and averages.md, of all their averages.

    Each run has a row, which its seeds share.
    """
    folders = [output / name for name in names]
    records = [folder / "record.json" for folder in folders if (folder / "record.json").is_file()]
    if not records:
        raise UserError(f"none of these runs is finished in {output}: there is nothing for a table")
    baseline: List[str] = []
    if records[0].parent == folders[0] and len(records) > 1:
        baseline = ["--baseline", load_run(records[0])["name"]]
    print_table(output / "table.md", records, GROUP_BY, *baseline)
    left_out = re.compile(r"\.(valid|last\d+)\.json$")  # validation set, other numbers of checkpoints
    averages = [
        file for folder in folders for file in sorted(folder.glob("record*.json")) if not left_out.search(file.name)
    ]
    if len(averages) > len(records):
        sys.stdout.write("\n")
        columns = ("heads", "key_dim", "config.optimization.max_update", "averaged")
        print_table(output / "averages.md", averages, columns)


def print_table(page: Path, records: List[Path], group_by: Sequence[str], *words: str) -> None:
    columns = distinguishing([load_run(record) for record in records], group_by)
    collab("table", *records, "--group-by", ",".join(columns), *words, "--output", page)
    sys.stdout.write(page.read_text(encoding="utf-8"))
    sys.stdout.flush()

"""Several runs of a recipe and their table."""

import argparse
import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List

from omegaconf import DictConfig

from collab_fairseq.records.rows import load_run

from . import settings
from .folder import check_output
from .machine import cards
from .process import STOPPED, forward_signals, run_logged, start, terminate
from .programs import collab
from .settings import ROOT, RecipeError, SettingsError, stage_ends
from .training import Average

logger = logging.getLogger("recipe")
Processes = Dict[str, "subprocess.Popen[Any]"]


def parse(run: str) -> List[str]:
    """HEADS, KEY_DIM and VARIANT, which may be empty, of a run as `runs` of a YAML name it."""
    if not re.fullmatch(r"[a-z_]+:0*[1-9][0-9]*(:[a-z0-9_-]+)?", run):
        raise SettingsError(f"--runs must be HEADS:KEY_DIM[:VARIANT] with a positive KEY_DIM; got '{run}'")
    heads, key_dim, *variant = run.split(":")
    return [heads, key_dim, *(variant or [""])]


def run_name(heads: str, key_dim: Any, variant: str, seed: int, updates: int) -> str:
    """What a run is called, and its folder; without key dim and variant where these are empty."""
    parts = [heads, key_dim and f"dk{key_dim}", variant, f"s{seed}", f"u{updates}"]
    return "-".join(part for part in parts if part)


def wait_for(running: Processes, number: int, received: List[int]) -> List[str]:
    """Wait until at most this number of runs is active; the names of those that failed.

    After a signal to this process (`received`), or if a run was stopped, all are waited for, since they save.
    """
    failed = []
    while len(running) > (0 if received else number):
        time.sleep(0.05)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            status = running.pop(name).returncode
            if status == STOPPED:
                received.append(status)
            elif status:
                failed.append(name)
    if received:
        raise SystemExit(STOPPED)
    return failed


def shares(jobs: int, gpus: int) -> List[str]:
    """For each of so many runs at a time its GPUs: own ones, as far as there are; none where a run takes all."""
    number = cards().number if jobs > 1 and gpus else 0
    named = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))).split(",")
    own = range(min(gpus, number))
    return [",".join(named[(job * gpus + n) % number] for n in own) for job in range(jobs if number else 0)]


def make(runs: Dict[str, List[str]], output: Path, jobs: int, gpus: int) -> List[str]:
    """Make the runs that are not finished, so many at a time; the names of those that failed.

    Those that are made alone show what they say, others keep it in messages.txt.

    Args:
        gpus: of each; 0: all that there are.
    """
    running: Processes = {}
    failed: List[str] = []
    env, places = dict(os.environ), {}
    if jobs > 1:
        env.pop("SLURM_JOB_ID", None)  # each has rendezvous ports of its own
    devices = shares(jobs, gpus)
    with forward_signals(running.values()) as received:
        for name, command in runs.items():
            failed += wait_for(running, jobs - 1, received)
            messages = output / name / "messages.txt"
            logger.info("%s%s", name, f": started, see {messages}" if jobs > 1 else "")
            if jobs > 1:
                messages.parent.mkdir(parents=True, exist_ok=True)
            if devices:
                taken = {places[other] for other in running}
                places[name] = next(place for place in range(jobs) if place not in taken)
                env["CUDA_VISIBLE_DEVICES"] = devices[places[name]]
            with open(messages, "wb") if jobs > 1 else contextlib.nullcontext() as stream:
                running[name] = start(command, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
            if received:
                terminate(running[name])
        return failed + wait_for(running, 0, received)


def records_of(folder: Path, cfg: DictConfig) -> List[Path]:
    """The records of a run: of its stages and its end, of the last updates and the last epochs."""
    ends = stage_ends(cfg.optimization.max_update, cfg.checkpoint.save_interval_updates, cfg.recipe.stages)
    numbers = {"update": cfg.recipe.average, "epoch": cfg.checkpoint.get("keep_last_epochs") or 0}
    averages = [Average(stage, kind, n) for stage in (*ends[:-1], None) for kind, n in numbers.items()]
    files = sorted(folder / f"record{average.suffix}.json" for average in averages)
    return [file for file in files if file.is_file()]


def write_tables(output: Path, names: Iterable[str], cfg: DictConfig) -> None:
    """Of the records of runs, printed and kept as table.md, and of all their averages as averages.md."""

    def publish(page: str, *words: Any) -> None:
        collab("table", *words, "--output", output / page)
        sys.stdout.write((output / page).read_text(encoding="utf-8"))
        sys.stdout.flush()

    folders = [output / name for name in names]
    records = [folder / "record.json" for folder in folders if (folder / "record.json").is_file()]
    if not records:
        raise RecipeError(f"none of these runs is finished in {output}: there is nothing for a table")
    # the first run is what the others are compared with
    compared = records[0].parent == folders[0] and len(records) > 1
    publish("table.md", *records, *(["--baseline", load_run(records[0])["name"]] if compared else []))
    averages = [file for folder in folders for file in records_of(folder, cfg)]
    if len(averages) > len(records):
        sys.stdout.write("\n")
        publish("averages.md", *averages, "--group-by", "heads,key_dim,config.optimization.max_update,averaged")


def submitting(option: str, dry_run: bool) -> List[str]:
    """The words of --submit: a program, which a dry run does without, and its arguments."""
    words = settings.shell_words("--submit", option)
    if not words or not (dry_run or shutil.which(words[0])):
        raise SettingsError(f"--submit must begin with a program that is installed; got '{option}'")
    return words


def sweep(
    recipe: str, cfg: DictConfig, args: argparse.Namespace, passed: List[str], check_run: Callable[[List[str]], Any]
) -> None:
    """Make the runs that settings and options name, each once per seed, and the table of those that are finished.

    Args:
        passed: words for every run.sh.
        check_run: raises an error if a run with these words cannot be made.
    """
    output, program = Path(args.output or ROOT / "runs" / recipe), [str(ROOT / "recipes" / recipe / "run.sh")]
    if args.submit is not None:
        program = [*submitting(args.submit, args.dry_run), str(ROOT / "recipes/slurm/run.sbatch"), recipe]
    chosen = cfg.recipe.runs if args.runs is None else args.runs
    if not chosen:
        raise SettingsError("--runs must name at least one run, such as none:64; got ''")
    for name in (word.partition("=")[0] for word in passed):
        if name in ("model.collaborative_heads", "model.key_dim", "common.seed"):
            raise SettingsError(f"{name} differs between the runs of a sweep; give --runs or --seeds")
    runs: Dict[str, List[str]] = {}
    for number, seed in enumerate(args.seeds or [cfg.common.seed]):
        for heads, key_dim, variant in map(parse, chosen):
            words = ["--heads", heads, "--key-dim", key_dim, *(["--variant", variant] if variant else [])]
            if number == 0:
                check_run([*words, *passed])
            name = run_name(heads, key_dim, variant, seed, cfg.optimization.max_update)
            runs[name] = [*program, *words, "--seed", str(seed), "--output", str(output / name), *passed]
    if args.table:
        write_tables(output, runs, cfg)
        return
    left = {}
    for name, command in runs.items():
        if (output / name / "record.json").is_file():
            logger.info("%s: done before", name)
        else:
            left[name] = command
    if args.dry_run:
        sys.stdout.write("".join(f"{shlex.join(command)}\n" for command in left.values()))
    elif args.submit is not None:
        for name, command in left.items():
            if run_logged(command):
                raise RecipeError(f"{name} could not be submitted")
    else:
        check_output(output)
        failed = make(left, output, args.jobs or 1, cfg.recipe.gpus or 0)
        if len(failed) < len(runs):
            write_tables(output, runs, cfg)
        if failed:
            raise RecipeError(f"not finished: {', '.join(failed)}; the same command resumes from here")

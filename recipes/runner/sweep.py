"""Several runs of a recipe and their table."""

import logging
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq.records.rows import load_run

from .folder import STOPPED, Folder, attend, handing_on, start
from .settings import ROOT, RecipeError
from .training import collab

logger = logging.getLogger("recipe")


def parse(run: str) -> List[str]:
    """HEADS, KEY_DIM and VARIANT, which may be empty, of a run as `runs` of a YAML name it."""
    if not re.fullmatch(r"[a-z_]+:[0-9]+(:[a-z0-9_-]+)?", run):
        raise RecipeError(f"--runs: expected HEADS:KEY_DIM[:VARIANT], got '{run}'")
    heads, key_dim, *variant = run.split(":")
    return [heads, key_dim, *(variant or [""])]


@dataclass
class Sweep:
    """Runs of a recipe, each a process of its run.sh in a folder of its own.

    Args:
        recipe: its name. output: where the folders are. updates: of each run. passed: words for every run.sh.
        jobs: so many at a time on this machine. submit: a command that hands each to a cluster instead.
    """

    recipe: str
    output: Path
    updates: int
    passed: List[str]
    jobs: int = 1
    submit: str = ""
    dry_run: bool = False
    folders: List[Path] = field(default_factory=list)
    failed: List[str] = field(default_factory=list)
    running: "Dict[str, subprocess.Popen[Any]]" = field(default_factory=dict)

    def add(self, run: str, seed: int) -> "tuple[str, List[str]]":
        """A run's name and command."""
        heads, key_dim, variant = parse(run)
        name = f"{heads}-dk{key_dim}{variant and f'-{variant}'}-s{seed}-u{self.updates}"
        self.folders.append(self.output / name)
        words = ["--heads", heads, "--key-dim", key_dim, *(["--variant", variant] if variant else [])]
        words += ["--seed", str(seed), "--output", str(self.output / name), *self.passed]
        if self.submit:
            return name, [*shlex.split(self.submit), str(ROOT / "recipes/slurm/run.sbatch"), self.recipe, *words]
        return name, [str(ROOT / "recipes" / self.recipe / "run.sh"), *words]

    def start(self, name: str, command: List[str]) -> None:
        """Begin a run, or do what its place is taken by."""
        folder = self.output / name
        if Folder(folder).finished("record"):
            logger.info("%s: done before", name)
        elif self.dry_run:
            sys.stdout.write(shlex.join(command) + "\n")
        elif self.submit:
            if attend(command):
                raise RecipeError(f"{name} could not be submitted")
        elif self.jobs == 1:
            logger.info("%s", name)
            status = attend(command)
            if status == STOPPED:
                raise SystemExit(STOPPED)
            if status:
                self.failed.append(name)
        else:
            self.wait_for(self.jobs - 1)
            logger.info("%s: started, see %s/messages.txt", name, folder)
            folder.mkdir(parents=True, exist_ok=True)
            own = {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"}  # ports of their own
            with open(folder / "messages.txt", "wb") as messages:
                streams: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": messages, "stderr": messages}
                self.running[name] = start(command, env=own, **streams)

    def wait_for(self, number: int) -> None:
        """Wait until no more than so many runs are at work; a signal stops them, and all are waited for: they save."""
        with handing_on(list(self.running.values())) as came:
            while len(self.running) > (0 if came else number):
                time.sleep(0.05)
                for name, process in list(self.running.items()):
                    if process.poll() is not None:
                        del self.running[name]
                        if process.returncode:
                            self.failed.append(name)
        if came:
            raise SystemExit(STOPPED)

    def table(self) -> None:
        """Of the records of the runs, printed and kept as table.md, and of all their averages as averages.md."""
        records = [folder / "record.json" for folder in self.folders if (folder / "record.json").is_file()]
        if not records:
            logger.info("no run is finished: no table")
            return
        # the first run is what the others are compared with
        baseline: List[str] = []
        if records[0].parent == self.folders[0] and len(records) > 1:
            baseline = ["--baseline", str(load_run(records[0])["name"])]
        self._publish("table.md", records, baseline)
        pattern = re.compile(r"record(\.u\d+)?(\.epochs\d+)?\.json")
        found = [file for folder in self.folders for file in sorted(folder.glob("record*.json"))]
        averages = [file for file in found if pattern.fullmatch(file.name)]
        if len(averages) > len(records):
            sys.stdout.write("\n")
            grouped = "heads,key_dim,config.optimization.max_update,averaged"
            self._publish("averages.md", averages, ["--group-by", grouped])

    def _publish(self, page: str, records: List[Path], flags: List[str]) -> None:
        collab("table", *records, *flags, "--output", self.output / page)
        sys.stdout.write((self.output / page).read_text(encoding="utf-8"))
        sys.stdout.flush()


def sweep(plan: Sweep, runs: List[str], seeds: List[int], only_table: bool) -> None:
    """Make the runs, each once per seed, and the table of those that are finished."""
    for seed in seeds:
        for run in runs:
            name, command = plan.add(run, seed)
            if not only_table:
                plan.start(name, command)
    plan.wait_for(0)
    if not plan.dry_run and (only_table or not plan.submit):
        plan.table()
    if plan.failed:
        raise RecipeError(f"not finished: {', '.join(plan.failed)}; the same command resumes from here")

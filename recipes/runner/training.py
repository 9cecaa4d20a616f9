"""One run: its name, its folder, its stages; training and averaging."""

import json
import logging
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from omegaconf import DictConfig

from collab_fairseq import checkpoints
from collab_fairseq.records.files import write_text
from fairseq_modern.errors import CheckpointError
from fairseq_modern.fault_tolerance.resuming import Checkpoint, is_valid, latest_valid_checkpoint, read
from fairseq_modern.files import CHECKSUMS, damaged_files, read_checksums

from .folder import keep_settings, kept_settings
from .machine import DECIDED_BY_MACHINE, Machine
from .process import run_logged
from .programs import tool
from .settings import PYTHON, ROOT, TRAINING, RecipeError, flags, identity, stage_ends

logger = logging.getLogger("recipe")


class Average(NamedTuple):
    """The mean of the last checkpoints.

    Attributes:
        stage: the update that the stage of training ends at; None at the end of training.
        kind: "update" if the checkpoints are those of the last updates, "epoch" if they are those of the last epochs,
            "last" if they are those of the last updates, but of another number than the run's own average.
        n: how many checkpoints.
    """

    stage: Optional[int]
    kind: str
    n: int

    @property
    def stage_suffix(self) -> str:
        """Marks the files of a stage, such as `.u100`; empty for the last stage."""
        return "" if self.stage is None else f".u{self.stage}"

    @property
    def suffix(self) -> str:
        """Marks the files of this average; empty for the run's own result."""
        return self.stage_suffix + {"update": "", "epoch": f".epochs{self.n}", "last": f".last{self.n}"}[self.kind]


@dataclass
class RecipeRun:
    """A run of a recipe.

    Args:
        cfg: its settings, all overrides applied. name: unique within a folder of results. output: its folder.
        data: the prepared corpus. corpus: the corpus as downloaded, for the script that prepares it.
        machine: where it is trained. command_line: how it was started, for its record.
        valid: it is evaluated on the validation set.
    """

    cfg: DictConfig
    name: str
    output: Path
    data: Path
    machine: Machine
    command_line: str
    corpus: Optional[str] = None
    valid: bool = False
    kind: str = "update"  # "last" if another average than the run's own is asked for

    def __post_init__(self) -> None:
        self.recipe = self.cfg.recipe
        self.updates: int = self.cfg.optimization.max_update
        self.interval: int = self.cfg.checkpoint.save_interval_updates
        self.epochs: int = self.cfg.checkpoint.get("keep_last_epochs") or 0
        self.checkpoints = self.output / "checkpoints"

    @property
    def ends(self) -> List[int]:
        """The updates after which the run is averaged, the last its end."""
        return stage_ends(self.updates, self.interval, self.recipe.stages)

    def average_at(self, end: int) -> Average:
        """The average of a stage that ends after this update."""
        return Average(None if end == self.updates else end, self.kind, self.recipe.average)

    # --- data and settings ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the data if they are missing."""
        if (self.data / "data-bin").is_dir() and (self.data / "prepared.txt").is_file():
            return
        corpus = [self.recipe.source_option, self.corpus] if self.corpus else []
        if run_logged([ROOT / self.recipe.prepare, "--output", self.data, "--python", PYTHON, *corpus]):
            raise RecipeError("the data could not be prepared")

    def verify_data(self) -> None:
        """Compare the data with their checksums. What has not changed since it was verified is not read again.

        Raises:
            RecipeError: a file is missing or damaged, or there are no checksums.
        """
        stamps = self.output / "verified.json"
        verified: Dict[str, List[int]] = json.loads(stamps.read_text(encoding="utf-8")) if stamps.is_file() else {}
        try:
            damaged = damaged_files(self.data, verified)
        except FileNotFoundError as error:
            raise RecipeError(f"{self.data} has no {CHECKSUMS}; prepare the data again: {self._preparing}") from error
        if damaged:
            raise RecipeError(
                f"{self.data / damaged[0]} is missing or damaged (it differs from {CHECKSUMS}); prepare the data "
                f"again: {self._preparing}"
            )
        write_text(json.dumps(verified, indent=1), stamps)

    @property
    def _preparing(self) -> str:
        return f"{self.recipe.prepare} --output {self.data} --force"

    def keep_settings(self) -> None:
        """The settings that identify this run; the machine it runs on is not among them."""
        try:
            checksums = sorted({*read_checksums(self.data).values()})
        except FileNotFoundError as error:
            raise RecipeError(f"{self.data} has no {CHECKSUMS}; prepare the data again: {self._preparing}") from error
        data = zlib.crc32("\n".join(checksums).encode())
        keep_settings(self.output, {"name": self.name, "data": data, **identity(self.cfg)})

    def join(self, given: bool) -> None:
        """Take name, seed, length and, unless given, average of the run in the folder.

        Another average has its own files.
        """
        existing = kept_settings(self.output)
        if not existing:
            hint = "train.sh makes it; the same options name the same run"
            raise RecipeError(f"there is no run in {self.output} ({hint})")
        self.name, self.cfg.common.seed = existing["name"], existing["common.seed"]
        self.updates = existing["optimization.max_update"]
        self.interval = existing["checkpoint.save_interval_updates"]
        if not given:
            self.recipe.average = existing["recipe.average"]
        elif self.recipe.average != existing["recipe.average"]:
            self.kind = "last"

    # --- training ----------------------------------------------------------------------------------------------------

    def command(self, updates: int) -> List[str]:
        """The command that trains this run up to an update, as it could be typed."""
        cfg = self.cfg.copy()
        cfg.optimization.max_update = updates
        cfg.checkpoint.save_dir = str(self.checkpoints)
        if self.recipe.training_module:
            cfg.common.user_dir = str(ROOT / self.recipe.training_module)
        for name in DECIDED_BY_MACHINE:
            section, _, key = name.partition(".")
            cfg[section].pop(key, None)
        words = [word for section in TRAINING for word in flags(cfg, section)]
        launch, machine = self.machine.launch(), self.machine
        # fairseq's own model, which comes without our --user-dir, is to survive a kill as well
        environment = [f"OMP_NUM_THREADS={machine.threads_each}"]
        environment += [f"FAIRSEQ_MODERN_SURVIVAL={os.environ.get('FAIRSEQ_MODERN_SURVIVAL', 1)}"]
        if launch:
            timeout = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 100)
            environment += [f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={timeout}"]
        train = [tool("fairseq-train"), str(self.data / "data-bin")]
        return ["env", *environment, *launch, *train, *words, *machine.training_flags()]

    def newest(self) -> Optional[Checkpoint]:
        """The undamaged checkpoint that training resumes from."""
        return latest_valid_checkpoint(str(self.checkpoints)) if self.checkpoints.is_dir() else None

    def train(self) -> None:
        """Train in stages, each averaged before the next one removes its checkpoints."""
        for end in self.ends:
            average = self.average_at(end)
            if self.averaged(average).exists():
                logger.info("training: done before%s", f", up to update {end}" if average.stage else "")
                continue
            self.train_stage(average)
            if average.stage:
                self.average(average)

    def train_stage(self, average: Average) -> None:
        """Train up to the end of a stage, from the newest checkpoint if there is one."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        log, usage = self.output / "train.log", self.output / "train.usage.jsonl"
        newest, end = self.newest(), average.stage or self.updates
        if newest and newest.updates >= end:  # fairseq-train would make one update more
            logger.info("training: %s is complete", os.path.basename(newest.path))
            usage.touch()
        else:
            logger.info("training%s", f": resuming from {os.path.basename(newest.path)}" if newest else "")
            if run_logged(self.command(end), log, usage):
                raise RecipeError(f"training failed, see {log}; the same command resumes it once the cause is removed")
        if average.stage:  # its record is made from them
            for file in (log, usage):
                shutil.copy(file, self.output / file.name.replace("train", f"train{average.stage_suffix}", 1))

    def train_as_other_node(self) -> None:
        """Train on a node that is not the first, which does everything else."""
        self.output.mkdir(parents=True, exist_ok=True)
        for end in self.ends:
            newest = self.newest()
            if newest and newest.updates >= end:
                continue
            if run_logged(self.command(end), self.output / f"train.node{self.machine.node_rank}.log"):
                raise RecipeError("training failed on this node")

    # --- averaging ---------------------------------------------------------------------------------------------------

    def averaged(self, average: Average) -> Path:
        """The file of an average."""
        return self.output / f"averaged{average.suffix}.pt"

    def of_epochs(self, average: Average) -> Average:
        """The average of the last epochs' checkpoints at the same point of training."""
        return Average(average.stage, "epoch", self.epochs)

    def average(self, average: Average) -> None:
        """Write an average, and that of the last epochs if the run keeps their checkpoints."""
        wanted = [average]
        if self.epochs and self.kind != "last":
            existing = len(list(self.checkpoints.glob("checkpoint[0-9]*.pt")))
            if existing >= self.epochs:
                wanted.insert(0, self.of_epochs(average))
            else:
                logger.info("averaging: %d epochs so far, their average needs %d", existing, self.epochs)
        for each in wanted:
            marked = each.suffix and f" ({each.suffix})"
            if self.averaged(each).exists():
                logger.info("averaging%s: done before", marked)
                continue
            logger.info("averaging the last %d checkpoints%s", each.n, marked)
            try:
                state, _ = checkpoints.average(self.inputs(each))
            except CheckpointError as error:
                raise RecipeError(f"{error}; {self.recovery(each)}") from error
            checkpoints.save(state, self.averaged(each))

    def inputs(self, average: Average) -> List[str]:
        """The checkpoints to average, newest first.

        Raises:
            CheckpointError: one is missing; its update is named.
        """
        if average.kind == "epoch":
            return checkpoints.select_checkpoints(self.checkpoints, "epoch", average.n)
        existing = {int(path.stem.split("_")[2]): path for path in self.checkpoints.glob("checkpoint_*_*.pt")}
        missing = [update for update in self.updates_of(average) if update not in existing]
        if missing:
            raise CheckpointError(f"{self.checkpoints} lacks the checkpoint of update {missing[0]}")
        return [str(existing[update]) for update in self.updates_of(average)]

    def updates_of(self, average: Average) -> List[int]:
        """The updates whose checkpoints are averaged, newest first."""
        last = (average.stage or self.updates) // self.interval
        return [self.interval * number for number in range(last, last - average.n, -1)]

    def recovery(self, average: Average) -> str:
        """How to repeat the part of training whose checkpoints cannot be averaged: a sentence with a command."""
        usable: List[str] = []
        for update in reversed(self.updates_of(average)):
            files = [str(path) for path in self.checkpoints.glob(f"checkpoint_*_{update}.pt")]
            if not files or not is_valid(files[0]) or read(files[0]) is None:
                break
            usable += files
        others = [str(path) for path in sorted(self.checkpoints.glob("checkpoint*.pt")) if str(path) not in usable]
        return f"to train this part again, run: rm {' '.join(others)} and then the same command"

    def averages(self) -> List[Average]:
        """The averages to translate with: those of stages and epochs that exist, then the run's own."""
        own = self.average_at(self.updates)
        if self.kind == "last":
            return [own]
        stages = [self.average_at(end) for end in self.ends]
        candidates = [each for stage in stages for each in (stage, self.of_epochs(stage))]
        return [*(each for each in candidates if each != own and self.averaged(each).exists()), own]

    # --- evaluation --------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> Dict[str, str]:
        """Split of the data-bin → name of the test set."""
        chosen = self.recipe.valid_tests if self.valid else self.recipe.tests
        return {split: name for split, name in (chosen or {}).items() if name}

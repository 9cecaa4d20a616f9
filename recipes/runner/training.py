"""One run: its name, its folder, its stages; training and averaging."""

import contextlib
import logging
import os
import shutil
import sys
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from omegaconf import DictConfig

from collab_fairseq.cli.main import build_parser
from fairseq_modern.survival.resuming import newest_whole

from .folder import attend, keep_settings, kept_settings
from .machine import Machine
from .settings import PYTHON, ROOT, TRAINING, RecipeError, flags, identity

logger = logging.getLogger("recipe")


def tool(name: str) -> str:
    """A console script of this Python."""
    path = os.path.join(sysconfig.get_path("scripts"), name)
    if not os.access(path, os.X_OK):
        raise RecipeError(
            f"'{PYTHON}' has no {name} ({path} is missing); install the project first (README.md) or name "
            "another --python"
        )
    return path


def collab(*words: Any) -> None:
    """Do what `collab` does with these words, in this process."""
    given = [str(word) for word in words]
    args, typed = build_parser().parse_args(given), sys.argv
    sys.argv = ["collab", *given]  # which records note
    try:
        status = args.run(args)
    finally:
        sys.argv = typed
    if status:
        raise RecipeError(f"collab {words[0]} ended with status {status}")


@dataclass
class Run:
    """A run of a recipe.

    Args:
        cfg: its settings, all laid over. name: what it is, unique within a folder of results. output: its folder.
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
    last: str = ""  # .lastN where another average than the run's own is asked for

    def __post_init__(self) -> None:
        self.recipe = self.cfg.recipe
        self.updates: int = self.cfg.optimization.max_update
        self.interval: int = self.cfg.checkpoint.save_interval_updates
        self.epochs: int = self.cfg.checkpoint.get("keep_last_epochs") or 0
        self.checkpoints = self.output / "checkpoints"

    @property
    def ends(self) -> List[int]:
        """The updates after which the run is averaged, the last its end."""
        count = self.recipe.stages
        parts = [self.updates * n // count // self.interval * self.interval for n in range(1, count)]
        return [*parts, self.updates]

    def at(self, end: int) -> str:
        """What the files of a stage are marked with: nothing for the last, whose average is the run's own."""
        return "" if end == self.updates else f".u{end}"

    def check(self) -> None:
        """Refuse what would otherwise come to light at the end of the training."""
        stages, average, keep = self.recipe.stages, self.recipe.average, self.cfg.checkpoint.keep_interval_updates
        if stages > 1 and self.cfg.lr_scheduler._name == "cosine":
            raise RecipeError(
                f"--stages {stages}: with a learning rate that falls to zero at the end only that can be averaged"
            )
        first = self.ends[0]
        if first // self.interval < average:
            lower = "--average" if stages == 1 else "--average or --stages"
            raise RecipeError(
                f"--average {average}: there are fewer checkpoints, {first // self.interval}, by update {first}, one "
                f"every {self.interval}; lower {lower}, or raise --updates"
            )
        if 0 < keep < average:  # else fairseq keeps all
            raise RecipeError(
                f"--average {average}: only {keep} checkpoints are kept; give "
                f"checkpoint.keep_interval_updates={average}, or a lower --average"
            )

    def prepare(self) -> None:
        """Make the data where they are missing."""
        if (self.data / "data-bin").is_dir() and (self.data / "prepared.txt").is_file():
            return
        given = [self.recipe.source_option, self.corpus] if self.corpus else []
        command = [ROOT / self.recipe.prepare, "--output", self.data, "--python", PYTHON, *given]
        if attend(command):
            raise RecipeError("the data could not be prepared")

    def keep_settings(self) -> None:
        """The settings that make it this run; the machine it runs on is not among them."""
        sums = sorted({line[:64] for line in (self.data / "SHA256SUMS").read_text(encoding="utf-8").splitlines()})
        wanted = {"name": self.name, "data": zlib.crc32("\n".join(sums).encode()), **identity(self.cfg)}
        keep_settings(self.output, wanted)

    def join(self, given: bool) -> None:
        """Take name, seed and, unless given, average of the run that is there. Another one has files of its own."""
        there = kept_settings(self.output)
        if not there:
            told = "train.sh makes it; the same options name the same run"
            raise RecipeError(f"there is no run in {self.output} ({told})")
        self.name, self.cfg.common.seed = there["name"], there["common.seed"]
        if not given:
            self.recipe.average = there["recipe.average"]
        elif self.recipe.average != there["recipe.average"]:
            self.last = f".last{self.recipe.average}"

    # --- training ----------------------------------------------------------------------------------------------------

    def command(self, updates: int) -> List[str]:
        """What trains this run up to so many updates, as it could be typed."""
        cfg = self.cfg.copy()
        cfg.optimization.max_update = updates
        cfg.checkpoint.save_dir = str(self.checkpoints)
        if self.recipe.training_module:
            cfg.common.user_dir = str(ROOT / self.recipe.training_module)
        for section, names in (
            ("common", ("fp16", "bf16", "cpu")), ("dataset", ("max_tokens",)), ("optimization", ("update_freq",)),
            ("distributed_training", ("distributed_world_size", "distributed_backend")),
        ):  # fmt: skip
            for name in names:  # which the machine decides
                cfg[section].pop(name, None)
        words = [word for section in TRAINING for word in flags(cfg, section)]
        launch, machine = self.machine.launch(), self.machine
        # fairseq's own model, which comes without our --user-dir, is to survive a kill as well
        told = [f"OMP_NUM_THREADS={machine.threads_each}"]
        told += [f"FAIRSEQ_MODERN_SURVIVAL={os.environ.get('FAIRSEQ_MODERN_SURVIVAL', 1)}"]
        if launch:
            told += [f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={os.environ.get('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', 100)}"]
        train = [tool("fairseq-train"), str(self.data / "data-bin")]
        return ["env", *told, *launch, *train, *words, *machine.training_flags()]

    def newest(self) -> Tuple[str, int]:
        """The undamaged checkpoint that the training is resumed from, and its updates; nothing where there is none."""
        found = newest_whole(str(self.checkpoints)) if self.checkpoints.is_dir() else None
        return (os.path.basename(found.path), found.updates) if found else ("", 0)

    def train(self) -> None:
        """In its stages, each averaged before the next one removes its checkpoints."""
        for end in self.ends:
            self.train_stage(end)
            if self.at(end):
                self.average(self.at(end))

    def train_stage(self, end: int) -> None:
        """Up to so many updates, from the newest checkpoint where there is one."""
        at, log, usage = self.at(end), self.output / "train.log", self.output / "train.usage.jsonl"
        if self.averaged(at).exists():
            logger.info("training: done before%s", at and f", up to update {end}")
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        newest, updates = self.newest()
        if updates >= end:  # fairseq-train would make one update more where a run was ended after its last checkpoint
            logger.info("training: %s is complete", newest)
            usage.touch()  # a killed run has no line in it
        else:
            logger.info("training%s", newest and f": resuming from {newest}")
            measure = [PYTHON, "-m", "collab_fairseq.records.measure", usage]
            if attend([*measure, *self.command(end)], log):
                raise RecipeError(f"training failed, see {log}; the same command resumes it once the cause is removed")
        if at:  # what its record is made of is kept as it is now
            for file in (log, usage):
                shutil.copy(file, self.output / file.name.replace("train", f"train{at}", 1))

    def train_as_other_node(self) -> None:
        """On a node that is not the first, which does everything else."""
        self.output.mkdir(parents=True, exist_ok=True)
        for end in self.ends:
            if self.newest()[1] < end and attend(
                self.command(end), self.output / f"train.node{self.machine.node_rank}.log"
            ):
                raise RecipeError("training failed on this node")

    # --- averaging ---------------------------------------------------------------------------------------------------

    def averaged(self, name: str) -> Path:
        """The average with this mark."""
        return self.output / f"averaged{name}.pt"

    def average(self, at: str) -> None:
        """The last checkpoints → averaged.pt, and those of the last epochs → averaged.epochsN.pt."""
        wanted = {at: ("update", self.recipe.average)}
        if self.epochs and not self.last:
            there = len(list(self.checkpoints.glob("checkpoint[0-9]*.pt")))
            if there >= self.epochs:
                wanted = {f"{at}.epochs{self.epochs}": ("epoch", self.epochs), **wanted}
            else:
                logger.info("averaging: %d epochs so far, %d are needed for an average of theirs", there, self.epochs)
        for name, (kind, number) in wanted.items():
            if self.averaged(name).exists():
                logger.info("averaging%s: done before", name and f" ({name})")
                continue
            logger.info("averaging the last %d checkpoints%s", number, name and f" ({name})")
            words = ["--inputs", self.checkpoints, f"--num-{kind}-checkpoints", number, "--output", self.averaged(name)]
            with contextlib.redirect_stdout(sys.stderr):
                collab("average", *words)

    def averages(self) -> List[str]:
        """The averages to translate: those of stages and epochs that are there, then the run's own."""
        if self.last:
            return [self.last]
        names = [name for end in self.ends for name in (self.at(end), f"{self.at(end)}.epochs{self.epochs}")]
        return [*(name for name in names if name and self.averaged(name).exists()), ""]

    # --- evaluation --------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> Dict[str, str]:
        """Split of the data-bin → name of the test set."""
        given = self.recipe.valid_tests if self.valid else self.recipe.tests
        return {split: name for split, name in (given or {}).items() if name}

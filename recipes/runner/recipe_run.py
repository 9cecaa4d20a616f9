"""One run of a recipe: its settings, its folder, its stages and the averages of their checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from omegaconf import DictConfig

from fairseq_modern.errors import UserError

from .folder import fingerprint, kept_settings
from .machine import Machine
from .settings import identity, stage_ends, test_sets


def run_name(heads: str, key_dim: Any, variant: Optional[str], seed: int, updates: int) -> str:
    """Name of a run and of its folder. Empty parts are left out."""
    parts = [heads, key_dim and f"dk{key_dim}", variant, f"s{seed}", f"u{updates}"]
    return "-".join(part for part in parts if part)


class Average(NamedTuple):
    """The mean of the last checkpoints of a stage."""

    stage: Optional[int]  # update at which the stage ends; None for the last stage
    kind: str  # "update": update checkpoints; "epoch": epoch checkpoints; "last": update checkpoints, with --average
    n: int  # number of checkpoints

    @property
    def stage_suffix(self) -> str:
        """Part of the file names of a stage, such as `.u100`; empty for the last stage."""
        return "" if self.stage is None else f".u{self.stage}"

    @property
    def suffix(self) -> str:
        """Part of the file names of this average; empty for the main result of the run."""
        kinds = {"update": "", "epoch": f".epochs{self.n}", "last": f".last{self.n}"}
        return self.stage_suffix + kinds[self.kind]


@dataclass
class RecipeRun:
    """A run of a recipe."""

    cfg: DictConfig  # with all overrides
    name: str  # unique in a folder of records
    output: Path  # folder of the run
    data: Path  # folder of the prepared corpus
    machine: Machine
    command_line: str  # the command that started the run, for its record
    kind: str = "update"  # of its averages; "last" if --average differs from that of the run in the folder

    def __post_init__(self) -> None:
        self.recipe = self.cfg.recipe
        self.checkpoints = self.output / "checkpoints"

    def identity(self) -> Dict[str, Any]:
        """What identifies the run in its folder: name, data and settings."""
        return {"name": self.name, "data": fingerprint(self.data), **identity(self.cfg)}

    @property
    def updates(self) -> int:
        return int(self.cfg.optimization.max_update)

    @property
    def interval(self) -> int:
        """Updates between two checkpoints."""
        return int(self.cfg.checkpoint.save_interval_updates)

    @property
    def epochs(self) -> int:
        """Number of epoch checkpoints that are averaged; 0 if the run keeps none."""
        return max(0, self.cfg.checkpoint.get("keep_last_epochs") or 0)  # -1: fairseq keeps all

    @property
    def test_sets(self) -> Dict[str, str]:
        """Split of the data-bin → name of the test set."""
        return test_sets(self.cfg, self.recipe.valid)

    def stages(self) -> List[Average]:
        """The average at the end of each stage."""
        return [self._average(end) for end in stage_ends(self.cfg)]

    def final_average(self) -> Average:
        """The average at the end of the run: its main result."""
        return self._average(self.updates)

    def _average(self, end: int) -> Average:
        return Average(None if end == self.updates else end, self.kind, self.recipe.average)

    def epoch_average(self, average: Average) -> Average:
        """The average of the last epoch checkpoints at the end of the same stage."""
        return average._replace(kind="epoch", n=self.epochs)

    def end(self, average: Average) -> int:
        """The update at which the stage of an average ends."""
        return average.stage or self.updates

    def average_file(self, average: Average) -> Path:
        """The file of an average."""
        return self.output / f"averaged{average.suffix}.pt"

    def finished_averages(self) -> List[Average]:
        """The existing averages of stages and epochs, then the average at the end of the run."""
        last = self.final_average()
        if self.kind == "last":
            return [last]
        averages = [average for stage in self.stages() for average in (stage, self.epoch_average(stage))]
        return [*(each for each in averages if each != last and self.average_file(each).exists()), last]

    def continue_in_folder(self, other_average: bool) -> None:
        """Take name, seed and length from the run in the folder.

        Args:
            other_average: keep the present `recipe.average`. If it differs from that of the run, its average and
                results have separate files.
        """
        existing = kept_settings(self.output)
        if not existing:
            raise UserError(
                f"there is no run in {self.output}; the step train makes it, and the same options select the same run"
            )
        self.name, self.cfg.common.seed = existing["name"], existing["common.seed"]
        self.cfg.optimization.max_update = existing["optimization.max_update"]
        self.cfg.checkpoint.save_interval_updates = existing["checkpoint.save_interval_updates"]
        self.recipe.training_module = existing.get("recipe.training_module")
        self.cfg.model.attention_from = existing.get("model.attention_from")
        if not other_average:
            self.recipe.average = existing["recipe.average"]
        elif self.recipe.average != existing["recipe.average"]:
            self.kind = "last"

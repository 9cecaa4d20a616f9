"""Trainings of one or several processes, each forked from the warm parent: as from the command line, but quick."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

from tests import warm
from tests.common import ROOT, free_port


def train(jobs: List[Dict[str, Any]], timeout: float = 300) -> List[Dict[str, Any]]:
    """Run jobs one after the other, with survival switched on unless their `env` says otherwise.

    Args:
        jobs: each with `folder`, where checkpoints go; `flags` of fairseq-train; and where wanted `processes` (1 unless
            it says so), `env` (THIS_RANK is set besides) and `copy`, a folder that this one begins as a copy of.
        timeout: seconds for a process.

    Returns:
        For each job `statuses` and `outputs`, of each of its processes.
    """
    return [_train(timeout=timeout, **job) for job in jobs]


def _train(folder, flags, timeout, processes=1, env=None, copy=None):
    if copy is not None:
        shutil.copytree(copy, folder)
    folder.mkdir(exist_ok=True)
    command = [warm.start() / "fairseq-train", *flags, "--save-dir", folder, "--distributed-world-size", processes]
    command += ["--cpu", "--distributed-backend", "gloo", "--num-workers", 0, "--no-progress-bar"]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "FAIRSEQ_MODERN_SURVIVAL": "1", **(env or {})}
    if processes > 1:
        common.update(WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    ranks = []
    for rank in range(processes):
        own = {"THIS_RANK": str(rank), **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {})}
        with open(folder / f"log.{rank}", "w") as log:
            ranks.append(
                subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env={**common, **own}, cwd=ROOT)
            )
    statuses = [process.wait(timeout) for process in ranks]
    return {"statuses": statuses, "outputs": [(folder / f"log.{rank}").read_text() for rank in range(processes)]}


def user_dir(folder: Path, code: str) -> Path:
    """A --user-dir with this code."""
    folder.mkdir()
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    return folder


def training_config(folder: Path, **checkpoint: Any) -> Any:
    """fairseq's default configuration with this --save-dir and these settings of checkpoints."""
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    cfg = OmegaConf.structured(FairseqConfig)
    cfg.checkpoint.update(save_dir=str(folder), **checkpoint)
    return cfg

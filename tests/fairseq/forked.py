"""Training runs of one or several processes, forked by the server of warm.py: as from the command line, but quick."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch

from tests import warm
from tests.common import ROOT, free_port


def train(
    folder: Path,
    flags: List[Any],
    processes: int = 1,
    env: Optional[Dict[str, str]] = None,
    copy: Optional[Path] = None,
) -> Dict[str, Any]:
    """Run fairseq-train, with fault tolerance switched on.

    Args:
        folder: where checkpoints go. flags: of fairseq-train. processes: how many.
        env: more variables of each process, which also has THIS_RANK.
        copy: a folder that `folder` begins as a copy of.

    Returns:
        `statuses` and `outputs` of the processes.
    """
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
        names = ("THIS_RANK", "RANK", "LOCAL_RANK") if processes > 1 else ("THIS_RANK",)
        environment = {**common, **dict.fromkeys(names, str(rank))}
        with open(folder / f"log.{rank}", "w") as log:
            ranks.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=environment, cwd=ROOT))
    statuses = [process.wait(300) for process in ranks]
    return {"statuses": statuses, "outputs": [(folder / f"log.{rank}").read_text() for rank in range(processes)]}


def wait_for(found: Callable[[], Any], process: subprocess.Popen, log: Optional[Path] = None) -> None:
    """Wait until something is found; fail, with the end of the log, if the process ends before or takes too long."""
    end = time.monotonic() + 300
    while not found():
        assert process.poll() is None and time.monotonic() < end, log and log.read_text()[-3000:]  # noqa: PT018
        time.sleep(0.005)


def descendants(parent: int) -> Dict[int, int]:
    """Process id → process group of the running processes below a process."""
    rows = map(str.split, subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], text=True).splitlines())
    running = [(int(pid), int(ppid), int(pgid)) for pid, ppid, pgid, state in rows if not state.startswith("Z")]
    found = {parent: 0}
    while new := {pid: pgid for pid, ppid, pgid in running if ppid in found and pid not in found}:
        found.update(new)
    del found[parent]
    return found


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


def flip_a_bit(path: Path) -> None:
    """Damage a checkpoint that holds a tensor of sevens."""
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((10,), 7.0).numpy().tobytes())] ^= 1
    path.write_bytes(data)

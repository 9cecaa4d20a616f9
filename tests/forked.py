"""Training runs of one or several processes, forked by the server of warm.py; helpers for tests of fault tolerance."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections import OrderedDict
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
    """Run fairseq-train with fault tolerance; return the `statuses` and `outputs` of its processes.

    Args:
        folder: where checkpoints are saved.
        env: environment variables of each process, in addition to its rank, THIS_RANK.
        copy: initial content of `folder`.
    """
    if copy is not None:
        shutil.copytree(copy, folder)
    folder.mkdir(exist_ok=True)
    command = [warm.start() / "fairseq-train", *flags, "--save-dir", folder, "--distributed-world-size", processes]
    command += ["--cpu", "--distributed-backend", "gloo", "--num-workers", 0, "--no-progress-bar"]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "FAIRSEQ_MODERN_FAULT_TOLERANCE": "1", **(env or {})}
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


def wait_for(condition: Callable[[], Any], process: subprocess.Popen, log: Optional[Path] = None) -> None:
    """Wait until a condition holds; fail, with the end of the log, if the process ends or takes too long."""
    end = time.monotonic() + 300
    while not condition():
        in_time = process.poll() is None and time.monotonic() < end
        assert in_time, log.read_text()[-3000:] if log else ""
        time.sleep(0.001)  # recipes save for a few milliseconds only


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_killed(function: Callable[[], Any]) -> None:
    """Call a function, which must kill its process, in a child process."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def user_dir(folder: Path, code: str) -> Path:
    """Create a --user-dir with this code."""
    folder.mkdir()
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    return folder


def training_config(folder: Path) -> Any:
    """Return fairseq's default configuration with this --save-dir."""
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    cfg = OmegaConf.structured(FairseqConfig)
    cfg.checkpoint.save_dir = str(folder)
    return cfg


def write_checkpoint(
    path: Path, updates: int, cfg: Any = None, score: Optional[float] = None, best: Optional[float] = None
) -> Path:
    """Write a checkpoint with the structure of fairseq's; `cfg` is the configuration of its run."""
    from omegaconf import OmegaConf

    from fairseq_modern.fault_tolerance.command import command_of

    state = {
        "model": OrderedDict(weight=torch.full((1000,), 7.0)),
        "cfg": cfg and OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"state": {}},
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": score, "best": best},
    }
    if cfg is not None:
        state["extra_state"]["command"] = command_of(cfg)
    torch.save(state, path)
    return path


def flip_a_bit(path: Path) -> None:
    """Damage a checkpoint that contains a tensor of sevens."""
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((10,), 7.0).numpy().tobytes())] ^= 1
    path.write_bytes(data)

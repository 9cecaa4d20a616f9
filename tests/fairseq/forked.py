"""Trainings in processes that are forked from one which has imported fairseq: as from the command line, but quick."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

from tests.common import ROOT, free_port

_DRIVER = """
import json, os, shutil, sys
sys.argv = ["fairseq-train"]
import fairseq_cli.train

def work(job, rank):
    os.environ.update(job.get("env", {}), THIS_RANK=str(rank))
    if job["processes"] > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["processes"]),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]))
    log = os.open(f"{job['folder']}/log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.argv = job["command"]
    status = 1
    try:
        fairseq_cli.train.cli_main()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)

results = []
for job in json.load(sys.stdin):
    if "copy" in job:
        shutil.copytree(job["copy"], job["folder"])
    os.makedirs(job["folder"], exist_ok=True)
    sys.stderr.flush()
    ranks = {}
    for rank in range(job["processes"]):
        pid = os.fork()
        if pid == 0:
            work(job, rank)
        ranks[pid] = rank
    statuses = [None] * len(ranks)
    while None in statuses:
        pid, status = os.wait()
        statuses[ranks[pid]] = os.waitstatus_to_exitcode(status)
    outputs = [open(f"{job['folder']}/log.{rank}").read() for rank in range(job["processes"])]
    results.append({"statuses": statuses, "outputs": outputs})
print(json.dumps(results))
"""


def train(jobs: List[Dict[str, Any]], timeout: float = 900) -> List[Dict[str, Any]]:
    """Run jobs one after the other, with survival switched on unless their `env` says otherwise.

    Args:
        jobs: each with `folder`, where checkpoints go; `flags` of fairseq-train; and where wanted `processes` (1 unless
            it says so), `env` (THIS_RANK is set besides) and `copy`, a folder that this one begins as a copy of.
        timeout: seconds for all.

    Returns:
        For each job `statuses` and `outputs`, of each of its processes.
    """
    sent = []
    for job in jobs:
        number = job.get("processes", 1)
        command = ["fairseq-train", *job["flags"], "--save-dir", job["folder"], "--distributed-world-size", number]
        command += ["--cpu", "--distributed-backend", "gloo", "--num-workers", 0, "--no-progress-bar"]
        sent.append({**job, "processes": number, "port": free_port(), "command": [str(part) for part in command]})
        del sent[-1]["flags"]
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], input=json.dumps(sent, default=str), capture_output=True, text=True,
        timeout=timeout, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "FAIRSEQ_MODERN_SURVIVAL": "1"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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

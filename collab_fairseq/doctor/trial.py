"""What is started: `probe.py`, and five updates of fairseq-train on a made-up corpus."""

import json
import logging
import math
import os
import random
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Dict, List

from .checks import Facts, Finding, precision

UPDATES = 5
#: seconds after which something hangs; a slow file system can take minutes over the first import of torch
PATIENCE = 600.0
#: what a surrounding torchrun would have fairseq join
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

logger = logging.getLogger(__name__)


class Failure(Exception):
    """A command that failed; the message is the last line that it printed."""


def run(*words: object) -> str:
    """What a command prints, its messages first; raises Failure."""
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    try:
        done = subprocess.run(
            [str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, env=environment,
            encoding="utf-8", errors="replace", timeout=PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(str(error)) from error
    lines = [line for line in (done.stderr + done.stdout).split("\n") if line.strip()]
    if done.returncode:
        logger.info("the end of its output:\n%s", "\n".join(f"  | {line}" for line in lines[-20:]))
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise Failure(f"{Path(str(words[0])).name} ended with {ended}: {lines[-1].strip() if lines else 'no message'}")
    return "\n".join(lines)


def ask(folder: str) -> Dict[str, Facts]:
    """What probe.py finds of hook, torch and user_dir, which is ``folder``; ``error`` where one fails or it crashes."""
    try:
        last = run(sys.executable, Path(__file__).with_name("probe.py"), folder).split("\n")[-1]
    except Failure as failure:
        return {name: {"error": str(failure)} for name in ("hook", "torch", "user_dir")}
    facts: Dict[str, Facts] = json.loads(last)
    return facts


def trial(gpus: List[Facts], user_dir: str, folder: Path) -> Finding:
    """Binarise a made-up corpus, make five updates on all GPUs or the CPU, validate and save in `folder`."""
    chance = random.Random(1)
    for part, number in (("train", 200), ("valid", 20)):
        text = "".join(" ".join(chance.choices("abcdefghij", k=chance.randint(3, 9))) + "\n" for _ in range(number))
        for side in ("src", "tgt"):
            (folder / f"{part}.{side}").write_text(text, encoding="utf-8")
    scripts, last = Path(sysconfig.get_path("scripts")), folder / "checkpoints" / "checkpoint_last.pt"
    try:
        run(
            scripts / "fairseq-preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
            "--trainpref", folder / "train", "--validpref", folder / "valid", "--destdir", folder / "data-bin",
        )  # fmt: skip
        log = run(
            scripts / "fairseq-train", folder / "data-bin", "--user-dir", user_dir, "--arch", "transformer_collab_tiny",
            "--key-dim", 32, "--share-all-embeddings", "--optimizer", "adam", "--lr", 0.001, "--max-tokens", 200,
            "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--max-update", UPDATES,
            "--save-dir", last.parent, "--no-epoch-checkpoints", "--num-workers", 0, "--seed", 1,
            "--log-format", "json", "--log-interval", 1,
            *([precision(gpus)] if gpus else ["--cpu", "--distributed-world-size", 1]),
        )  # fmt: skip
    except Failure as failure:
        return Finding("trial run", "fail", str(failure), "fix what the end of its output names, or give --no-trial")
    losses = [float(loss) for loss in re.findall(r'"loss": "(\S+?)"', log)]
    if len(losses) != UPDATES or not all(map(math.isfinite, losses)) or not last.exists():
        text = f"losses {losses}, expected {UPDATES} finite numbers and a checkpoint"
        return Finding("trial run", "fail", text, "run fairseq-train by hand on a small corpus")
    where = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}, {precision(gpus)[2:]}" if gpus else "the CPU"
    text = f"{UPDATES} updates on {where}, validated and saved; loss {losses[0]:.2f} to {losses[-1]:.2f}"
    return Finding("trial run", "ok", text)

"""What `collab doctor` starts: the probe, and five updates of fairseq-train on a made-up corpus."""

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from collab_fairseq.cli.doctor_checks import Facts, Finding, precision
from collab_fairseq.reporting.train_log import read_train_log

PROBE = Path(__file__).with_name("doctor_probe.py")
STAGES = ("hook", "torch", "fairseq", "user_dir", "model")
UPDATES = 5
#: seconds after which something hangs; a slow file system can take minutes over the first import of torch
PATIENCE = 600.0
#: what a surrounding torchrun would have fairseq join
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(command: Sequence[object], **options: object) -> Tuple[int, str, str]:
    """Exit status, output and errors of a command that never outlives us; its status is negative after a signal."""
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, text=True, errors="replace", start_new_session=True, **options,  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        errors += f"\nno end after {PATIENCE:.0f} s"
    return process.returncode, output, errors


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "no message")


def probe(user_dir: str, arch: str, types: int) -> Tuple[Dict[str, Facts], str]:
    """What doctor_probe.py finds, stage by stage, with an `error` for those that it did not reach; and its messages."""
    status, output, errors = run([sys.executable, PROBE, user_dir, arch, types])
    found: Dict[str, Facts] = {}
    for line in output.splitlines():
        facts = json.loads(line)
        found[facts.pop("stage")] = facts
    reason = f"Python was ended by signal {-status}" if status < 0 else f"Python ended with status {status}"
    for name in STAGES:
        if name not in found:
            found[name] = {"error": f"{reason}: {last_line(errors)}"}
            reason = "not reached"
    return found, errors


def write_corpus(folder: Path) -> None:
    """Made-up sentences and the same backwards, as train and valid in .src and .tgt."""
    chance = random.Random(1)
    for part, number in (("train", 200), ("valid", 20)):
        lines = [[f"w{chance.randrange(30)}" for _ in range(chance.randint(3, 9))] for _ in range(number)]
        (folder / f"{part}.src").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        (folder / f"{part}.tgt").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines), encoding="utf-8")


def device_flags(cards: List[Facts]) -> List[str]:
    """All cards in the precision that fits them, or the CPU."""
    return [precision(cards)] if cards else ["--cpu", "--distributed-world-size", "1"]


def trial(cards: List[Facts], user_dir: str, folder: Path) -> Tuple[Finding, str]:
    """Binarise, train, validate and save in `folder`; also what the tools printed."""
    scripts = Path(sysconfig.get_path("scripts"))
    write_corpus(folder)
    preprocess = [
        scripts / "fairseq-preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "valid", "--destdir", folder / "data-bin",
    ]  # fmt: skip
    train = [
        scripts / "fairseq-train", folder / "data-bin", "--user-dir", user_dir, "--arch", "transformer_collab_tiny",
        "--key-dim", 32, "--share-all-embeddings", "--optimizer", "adam", "--lr", 0.001, "--max-tokens", 200,
        "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--max-update", UPDATES,
        "--save-dir", folder / "checkpoints", "--no-epoch-checkpoints", "--num-workers", 0, "--seed", 1,
        "--log-format", "json", "--log-interval", 1, *device_flags(cards),
    ]  # fmt: skip
    messages = ""
    for command in (preprocess, train):
        try:
            status, output, errors = run(command, cwd=folder)
        except OSError as error:
            status, output, errors = 127, "", str(error)
        messages = output + errors
        if status:
            advice = "the end of its output is above; mend what it names, or leave this out with --no-trial"
            name = Path(str(command[0])).name
            return Finding("trial run", "fail", f"{name}: {last_line(errors or output)}", advice), messages
    return judge(messages, (folder / "checkpoints" / "checkpoint_last.pt").exists(), cards, folder), messages


def judge(messages: str, saved: bool, cards: List[Facts], folder: Path) -> Finding:
    """From the log of a training that ended well: are all updates there, with losses that are numbers?"""
    log = folder / "train.log"
    log.write_text(messages, encoding="utf-8")
    points = read_train_log(log)["curves"]["train"]
    losses = [point.get("loss") for point in points]  # absent where it is no number
    if not losses or points[-1]["updates"] != UPDATES or not saved:
        text = f"ended after {points[-1]['updates'] if points else 0} of {UPDATES} updates"
        return Finding("trial run", "fail", text + ("" if saved else ", no checkpoint"), "see its output above")
    if None in losses:
        return Finding("trial run", "fail", f"losses {losses}, expected numbers", "see its output above")
    where = f"{len(cards)} GPU{'s' * (len(cards) > 1)}, {precision(cards)[2:]}" if cards else "the CPU"
    text = f"{UPDATES} updates on {where}, validated and saved; loss {losses[0]:.2f} to {losses[-1]:.2f}"
    return Finding("trial run", "ok", text)

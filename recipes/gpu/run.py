"""Half an hour of one GPU, in three calls: truth, speed, learning."""

import argparse
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

from runner.cli import Parser, absolute, number, show_messages
from runner.machine import cards, choose_device
from runner.settings import PYTHON, ROOT, USER_DIR
from runner.training import tool

from fairseq_modern import processor

logger = logging.getLogger("recipe")

ABOUT = """What waits for a GPU, in three calls of less than ten minutes each:

  truth       8 min: probe.py, what the card and torch can do; the tests on the card; 150 updates of a base model in
              every precision
  speed       9 min: collab bench train, layer and decode in bfloat16 and float16, and compiled
  learning    9 min and what the others have left: the trainings of recipes/curve, as many at once as fit"""
ENDING = """The same command resumes what was cut off; finished steps are skipped. OUTPUT holds page.md (what ran and
what did not), records/ (commit these), logs/ and the trainings."""
#: call -> minutes
SHARE = {"truth": 8, "speed": 9, "learning": 9}
FAST = ["--criterion", "label_smoothed_cross_entropy_chunked", "--optimizer", "fused_adam"]
#: seconds that the page takes
PAGE = 20


def run_for(seconds: float, command: List[str], log: Path) -> int:
    """A command's status; 124 where it was ended after so many seconds, as `timeout` does."""
    with open(log, "ab") as stream:
        stream.write(f"{shlex.join(command)}\n".encode())
        stream.flush()
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return 124
    finally:  # whatever ends this program ends what it has started
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Card:
    """One GPU, the programs that use it, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.output = args, Path(args.output)
        self.started, self.deadline, self.steps = time.monotonic(), 0.0, []
        # the recipes would share a batch among all cards
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        self.device = choose_device(args.device, cards().number)
        self.types = ["bfloat16", "float16"] if self.device == "gpu" else ["float32"]
        self.name = "cuda" if self.device == "gpu" else "cpu"

    def left(self) -> float:
        return self.deadline - PAGE - (time.monotonic() - self.started)

    def step(self, name: str, seconds: float, *command: Any) -> None:
        """A command for at most so long; what is cut off is resumed next time."""
        self.steps.append(name)
        log, limit = self.output / "logs" / f"{name}.log", min(seconds, self.left())
        if self.state(name) == "finished" or limit < 5:
            return
        logger.info("%s: at most %.0f s, see logs/%s.log", name, limit, name)
        begun = time.monotonic()
        try:
            status = run_for(limit, [str(word) for word in command], log)
        except OSError as error:
            log.write_text(f"{error}\n", encoding="utf-8")
            status = 127
        # a training that is asked to stop saves, and ends with 75
        state = {0: "finished", 75: "cut off", 124: "cut off"}.get(status, f"failed with status {status}")
        log.with_suffix(".state").write_text(state, encoding="utf-8")
        logger.info("%s: %s after %.0f s", name, state, time.monotonic() - begun)

    def state(self, name: str) -> str:
        """How a step ended."""
        kept = self.output / "logs" / f"{name}.state"
        return kept.read_text(encoding="utf-8") if kept.exists() else "not begun"

    # --- the calls ---------------------------------------------------------------------------------------------------

    def base(self, name: str, *flags: str) -> None:
        """150 updates of a base model; its speed and losses are in the log."""
        place = ["--distributed-world-size", "1", *([] if self.device == "gpu" else ["--cpu"])]
        self.step(
            f"base-{name}", 45, tool("fairseq-train"), f"{self.args.data}/data-bin", "--user-dir",
            USER_DIR, "--arch", "transformer_collab", "--key-dim", 128, "--share-all-embeddings",
            "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", 0.0005, "--lr-scheduler", "inverse_sqrt",
            "--warmup-updates", 150, "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1,
            "--max-tokens", 3584, "--max-update", 150, "--seed", 1, "--no-save", "--disable-validation",
            "--log-format", "json", "--log-interval", 25, *place, *flags,
        )  # fmt: skip

    def bench(self, what: str, name: str, kind: str, *flags: str) -> None:
        """Rows of collab bench, each kept as soon as it is measured."""
        self.step(
            f"bench-{what}-{name}", 90, tool("collab"), "bench", what, "--device", self.name, "--dtype", kind,
            "--seconds", 3, "--json", self.output / "records" / f"bench-{what}-{name}.json", *flags,
        )  # fmt: skip

    def truth(self) -> None:
        args = self.args
        if not Path(args.data, "data-bin").is_dir():
            source = ["--source", args.source] if args.source else []
            script = ROOT / "data_prep" / "multi30k.sh"
            self.step("data", 200, script, "--output", args.data, *source, "--python", PYTHON)
        self.step("probe", 90, PYTHON, ROOT / "recipes" / "gpu" / "probe.py", "--device", self.name)
        tests = ["-m", "not slow", "-k", "cuda", ROOT / "tests" / "unit", ROOT / "tests" / "fairseq"]
        self.step("tests", 150, PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        half = ["--bf16"] if self.device == "gpu" else []
        self.base("adam", *half)
        self.base("fast", *half, *FAST)
        for precision in ("fp16", "amp") if self.device == "gpu" else ():
            self.base(precision, f"--{precision}", *FAST)
        self.base("large", *half, *FAST, "--max-tokens", "28672")

    def speed(self) -> None:
        for kind in self.types:
            self.bench("train", kind, kind)
            self.bench("layer", kind, kind, "--rows", "*/64x32/dk128/*", "--rows", "*/4x512/dk128/*")
            self.bench("decode", kind, kind, "--rows", "*dk128*")
        self.bench("train", "compiled", self.types[0], "--compile", "--rows", "*/tiny/*")

    def learning(self) -> None:
        """Which alone has the machine, for all the time that is left."""
        args = self.args
        fit = cards().memory // 3 if self.device == "gpu" else 12
        jobs = args.jobs or max(1, min(12, processor.usable_cores() - 2, fit))
        flags = ["--data", args.data, "--device", self.device, "--threads", 1, "--python", PYTHON]
        flags += ["--seeds", args.seeds, "--jobs", jobs, "--output", self.output / "runs" / "curve"]
        self.step("curve", self.deadline, ROOT / "recipes" / "curve" / "sweep.sh", *flags)

    # --- the page ----------------------------------------------------------------------------------------------------

    def show(self, *words: Any) -> str:
        """A table of collab's, or nothing where it cannot be made."""
        command = [tool("collab"), *(str(word) for word in words)]
        with open(self.output / "logs" / "page.log", "ab") as log:
            return f"\n{subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False).stdout}"

    def page(self) -> str:
        """What ran, what did not, and the tables of the records, which are gathered."""
        import torch

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else processor.name()
        text, records = f"# {name}\n\n", self.output / "records"
        for step in self.steps:
            log = self.output / "logs" / f"{step}.log"
            said = log.read_text(errors="replace") if log.exists() else ""
            told = "".join(re.findall('"loss": "[^"]*".*"wps": "[^"]*"', said)[-1:])
            text += f"- {step}: {self.state(step)} {told}\n"
        for file in sorted(self.output.glob("runs/*/*/record.json")):
            shutil.copy(file, records / f"{file.parts[-3]}-{file.parts[-2]}.json")
        curve = sorted(records.glob("curve-*.json"))
        text += self.show("table", *curve) if curve else ""
        for kind in (*self.types, "compiled"):
            found = sorted(records.glob(f"bench-*-{kind}.json"))
            text += self.show("bench", "table", *found) if found else ""
        (self.output / "page.md").write_text(text, encoding="utf-8")
        return text


def main() -> None:
    parser = Parser(
        "recipes/gpu/run.sh", description=ABOUT, epilog=ENDING, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    text = "truth, speed, learning, or all in this order (default: all)"
    add("--call", metavar="NAME", default="all", choices=(*SHARE, "all"), help=text)
    add("--minutes", metavar="R", type=number, help="stop in time for this (default: those of the call)")
    text = "Multi30k as data_prep/multi30k.sh made it (default: data/multi30k; made where it does not exist)"
    add("--data", metavar="DIR", type=absolute, default=ROOT / "data" / "multi30k", help=text)
    add("--source", metavar="DIR", type=absolute, help="the corpus as downloaded, for that script")
    add("--seeds", metavar="N,N,...", default="1", help="of the trainings of learning (default: 1)")
    text = "trainings at a time (default: cores less two, one for 3 GiB of the card, at most 12)"
    add("--jobs", metavar="N", type=number, help=text)
    add("--device", metavar="NAME", default="auto", choices=("auto", "gpu", "cpu"), help="(default: auto)")
    add("--output", metavar="DIR", type=absolute, default=ROOT / "runs" / "gpu", help="(default: runs/gpu)")
    text = "the first option of all: install these wheels into FOLDER/venv, which has the machine's packages besides"
    add("--wheels", metavar="FOLDER", help=text)
    args = parser.parse_args()
    if args.wheels:
        parser.error("--wheels must be the first option")
    show_messages("gpu")
    calls = list(SHARE) if args.call == "all" else [args.call]
    whole = 60 * sum(SHARE[call] for call in calls)
    seconds = whole if args.minutes is None else 60 * args.minutes
    card = Card(args)
    for folder in ("logs", "records"):
        (card.output / folder).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for count, call in enumerate(calls, start=1):  # each gets its share, whatever those before have left
            card.deadline = seconds * 60 * sum(SHARE[name] for name in calls[:count]) / whole
            getattr(card, call)()
    finally:
        sys.stdout.write(card.page())

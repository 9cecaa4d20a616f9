"""Half an hour of one GPU, in three calls: truth, speed, learning. Needs nothing but Python, and installs the rest."""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, NoReturn

ROOT = Path(__file__).resolve().parents[2]
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


def die(text: str) -> NoReturn:
    sys.exit(f"recipes/gpu/run.sh: error: {text}")


def say(text: str) -> None:
    sys.stderr.write(f"gpu: {text}\n")


def run_for(seconds: float, command: List[str], log: Path) -> int:
    """A command's status; 124 where it was ended after so many seconds, as `timeout` does."""
    with open(log, "ab") as stream:
        stream.write(f"{shlex.join(command)}\n".encode())
        stream.flush()
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    ended = False
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        ended = True
    finally:  # whatever ends this program ends what it has started
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return 124 if ended else process.returncode


class Card:
    """One GPU, the programs that use it, and the time that is left."""

    def __init__(self, args: argparse.Namespace, python: str) -> None:
        self.args, self.python, self.output = args, python, args.output
        self.started, self.deadline, self.steps = time.monotonic(), 0.0, []
        self.scripts = self.ask("import sysconfig; print(sysconfig.get_path('scripts'))")
        for tool in ("fairseq-train", "collab"):
            if not os.access(f"{self.scripts}/{tool}", os.X_OK):
                die(f"'{python}' has no {tool}; install the project first (README.md) or name another --python")
        self.device = args.device
        if self.device == "auto":
            self.device = "gpu" if self.ask("import torch; print(torch.cuda.is_available())") == "True" else "cpu"
        if self.device == "gpu":
            os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # cuDNN makes a plan for every new shape of a batch
        self.types = ["bfloat16", "float16"] if self.device == "gpu" else ["float32"]
        self.name = "cuda" if self.device == "gpu" else "cpu"

    def ask(self, code: str) -> str:
        """What a line of Python prints."""
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            die(f"'{self.python}' fails: {done.stderr.strip().rpartition(chr(10))[2] or code}")
        return done.stdout.strip()

    def left(self) -> float:
        return self.deadline - PAGE - (time.monotonic() - self.started)

    def step(self, name: str, seconds: float, *command: Any) -> None:
        """A command for at most so long; what is cut off is resumed next time."""
        self.steps.append(name)
        done, log = self.output / ".done" / name, self.output / "logs" / f"{name}.log"
        limit = min(seconds, self.left())
        if done.exists() or limit < 5:
            return
        say(f"{name}: at most {limit:.0f} s, see logs/{name}.log")
        begun = time.monotonic()
        try:
            status = run_for(limit, [str(word) for word in command], log)
        except OSError as error:
            log.write_text(f"{error}\n", encoding="utf-8")
            status = 127
        # a training that is asked to stop saves, and ends with 75
        state = {0: "finished", 75: "cut off", 124: "cut off"}.get(status, f"failed with status {status}")
        log.with_suffix(".state").write_text(state, encoding="utf-8")
        if status == 0:
            done.parent.mkdir(exist_ok=True)
            done.touch()
        say(f"{name}: {state} after {time.monotonic() - begun:.0f} s")

    # --- the calls ---------------------------------------------------------------------------------------------------

    def base(self, name: str, *flags: str) -> None:
        """150 updates of a base model; its speed and losses are in the log."""
        place = ["--distributed-world-size", "1", *([] if self.device == "gpu" else ["--cpu"])]
        self.step(
            f"base-{name}", 45, f"{self.scripts}/fairseq-train", self.args.data / "data-bin", "--user-dir",
            ROOT / "collab_fairseq", "--arch", "transformer_collab", "--key-dim", 128, "--share-all-embeddings",
            "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", 0.0005, "--lr-scheduler", "inverse_sqrt",
            "--warmup-updates", 150, "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1,
            "--max-tokens", 3584, "--max-update", 150, "--seed", 1, "--no-save", "--disable-validation",
            "--log-format", "json", "--log-interval", 25, *place, *flags,
        )  # fmt: skip

    def bench(self, what: str, name: str, kind: str, *flags: str) -> None:
        """Rows of collab bench, each kept as soon as it is measured."""
        self.step(
            f"bench-{what}-{name}", 90, f"{self.scripts}/collab", "bench", what, "--device", self.name, "--dtype", kind,
            "--seconds", 3, "--json", self.output / "records" / f"bench-{what}-{name}.json", *flags,
        )  # fmt: skip

    def truth(self) -> None:
        args = self.args
        if not (args.data / "data-bin").is_dir():
            source = ["--source", args.source] if args.source else []
            script = ROOT / "data_prep" / "multi30k.sh"
            self.step("data", 200, script, "--output", args.data, *source, "--python", self.python)
        self.step("probe", 90, self.python, ROOT / "recipes" / "gpu" / "probe.py", "--device", self.name)
        tests = ["-m", "not slow", "-k", "cuda", ROOT / "tests" / "unit", ROOT / "tests" / "fairseq"]
        self.step("tests", 150, self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
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
        jobs = args.jobs or self.ask(
            "import os, torch; fit = torch.cuda.get_device_properties(0).total_memory // (3 << 30) "
            f"if '{self.device}' == 'gpu' else 12; print(max(1, min(12, len(os.sched_getaffinity(0)) - 2, fit)))"
        )
        flags = ["--data", args.data, "--device", self.device, "--threads", 1, "--python", self.python]
        flags += ["--seeds", args.seeds, "--jobs", jobs, "--output", self.output / "runs" / "curve"]
        self.step("curve", self.deadline, ROOT / "recipes" / "curve" / "sweep.sh", *flags)

    # --- the page ----------------------------------------------------------------------------------------------------

    def show(self, *words: Any) -> str:
        """A table of collab's, or nothing where it cannot be made."""
        command = [f"{self.scripts}/collab", *(str(word) for word in words)]
        with open(self.output / "logs" / "page.log", "ab") as log:
            return f"\n{subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False).stdout}"

    def page(self) -> str:
        """What ran, what did not, and the tables of the records, which are gathered."""
        name = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'a CPU')"
        text, records = f"# {self.ask(name)}\n\n", self.output / "records"
        for step in self.steps:
            state, log = (self.output / "logs" / f"{step}{end}" for end in (".state", ".log"))
            said = log.read_text(errors="replace") if log.exists() else ""
            told = "".join(re.findall('"loss": "[^"]*".*"wps": "[^"]*"', said)[-1:])
            text += f"- {step}: {state.read_text() if state.exists() else 'not begun'} {told}\n"
        for file in sorted(self.output.glob("runs/*/*/record.json")):
            shutil.copy(file, records / f"{file.parts[-3]}-{file.parts[-2]}.json")
        curve = sorted(records.glob("curve-*.json"))
        text += self.show("table", *curve) if curve else ""
        for kind in (*self.types, "compiled"):
            found = sorted(records.glob(f"bench-*-{kind}.json"))
            text += self.show("bench", "table", *found) if found else ""
        (self.output / "page.md").write_text(text, encoding="utf-8")
        return text


def install(wheels: Path, output: Path, python: str) -> str:
    """The Python of OUTPUT/venv, which has the wheels and, of the machine's packages, what they lack."""
    if not sorted(wheels.rglob("*.whl")):
        die(f"--wheels: there are no wheels in {wheels}")
    own, done = output / "venv" / "bin" / "python", output / ".done" / "install"
    if not done.exists():
        say("installing the wheels")
        shutil.rmtree(output / "venv", ignore_errors=True)
        # with pip it would need ensurepip
        subprocess.run([python, "-m", "venv", "--without-pip", output / "venv"], check=True)
        # not --system-site-packages: the machine's Python may be of a virtual environment itself
        code = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
        asked = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
        if asked.returncode:
            die(f"'{python}' has no torch")
        (folder,) = (output / "venv" / "lib").glob("python3*/site-packages")
        (folder / "machine.pth").write_text(asked.stdout, encoding="utf-8")
        pip = [python, "-m", "pip", "--python", own, "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, *wheels.glob("*.whl")], check=True)
        done.parent.mkdir(exist_ok=True)
        done.touch()
    os.environ["PYTHONPATH"] = str(ROOT)  # this checkout, whatever the wheels were made from
    return str(own)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="recipes/gpu/run.sh", description=ABOUT, epilog=ENDING, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.error = lambda message: die(f"{message} (see --help)")  # type: ignore[method-assign]
    add = parser.add_argument
    add("--call", metavar="NAME", default="all", help="truth, speed, learning, or all in this order (default: all)")
    add("--minutes", metavar="R", type=int, help="stop in time for this (default: those of the call)")
    text = "without internet: a folder of wheels (docs/install.md) to install from, into OUTPUT/venv; torch and what "
    add("--wheels", metavar="DIR", type=Path, help=text + "else is missing there are those of the machine")
    text = "Multi30k as data_prep/multi30k.sh made it (default: data/multi30k; made where it does not exist)"
    add("--data", metavar="DIR", type=Path, default=ROOT / "data" / "multi30k", help=text)
    add("--source", metavar="DIR", type=Path, help="the corpus as downloaded, for that script")
    add("--seeds", metavar="N,N,...", default="1", help="of the trainings of learning (default: 1)")
    text = "trainings at a time (default: cores less two, one for 3 GiB of the card, at most 12)"
    add("--jobs", metavar="N", type=int, help=text)
    add("--device", metavar="NAME", default="auto", choices=("auto", "gpu", "cpu"), help="(default: auto)")
    add("--output", metavar="DIR", type=Path, default=ROOT / "runs" / "gpu", help="(default: runs/gpu)")
    text = "Python with the project installed, or with torch where --wheels is given (default: $PYTHON, else python)"
    add("--python", metavar="PROGRAM", default=os.environ.get("PYTHON") or sys.executable, help=text)
    args, unknown = parser.parse_known_args()
    if unknown:
        parser.error(f"unknown argument '{unknown[0]}'")
    if args.call not in (*SHARE, "all"):
        die(f"--call must be truth, speed, learning or all, got '{args.call}'")
    python = shutil.which(args.python)
    if not python:
        die(f"no Python '{args.python}'; name one with --python")
    args.python = os.path.abspath(python)
    for name in ("wheels", "data", "source", "output"):  # steps run in other folders
        setattr(args, name, getattr(args, name) and getattr(args, name).absolute())
    return args


def main() -> None:
    args = parse()
    calls = list(SHARE) if args.call == "all" else [args.call]
    whole = 60 * sum(SHARE[call] for call in calls)
    seconds = whole if args.minutes is None else 60 * args.minutes
    for folder in ("logs", "records"):
        (args.output / folder).mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # the recipes would share a batch among all cards
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    card = Card(args, install(args.wheels, args.output, args.python) if args.wheels else args.python)
    card.started = started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for number, call in enumerate(calls, start=1):  # each gets its share, whatever those before have left
            card.deadline = seconds * 60 * sum(SHARE[name] for name in calls[:number]) / whole
            getattr(card, call)()
    finally:
        sys.stdout.write(card.page())


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        die(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

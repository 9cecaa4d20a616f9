"""Every measurement of the study of a small BERT, one after the other.

    python -m recipes glue sequence --model data/all-MiniLM-L6-v2 --list      # names and commands of the steps
    python -m recipes glue sequence --model data/all-MiniLM-L6-v2             # all steps
    python -m recipes glue sequence --model data/all-MiniLM-L6-v2 speed decomposition    # times, on a quiet core

Each step is a command that resumes: the same command continues an interrupted sequence. A step that fails does not stop
the others. With --publish, the records of finished steps are copied to a folder, under their final names.
"""

import argparse
import json
import logging
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from collab_fairseq.files import write_bytes
from fairseq_modern.errors import UserError
from recipes import ROOT
from recipes.glue.tasks import GLUE, TEXTS, fetch

logger = logging.getLogger("sequence")
#: tasks whose models the head analyses use, as in Michel et al. (2019); with the first seed
ANALYSED = ("mrpc", "cola")
#: steps that measure time
TIMED = ("speed", "decomposition")


def steps(args: argparse.Namespace) -> Dict[str, List[str]]:
    """Name → command, in order: the first seed, what depends on it, the other seeds, and measurements of time."""
    folder = args.output / args.model.name
    module = [sys.executable, "-m"]
    model = ["--model", args.model, "--data", args.data]
    tasks, (first, *others) = args.tasks.split(","), args.seeds.split(",")
    heads = [*module, "collab_fairseq.cli.main", "heads"]
    found: Dict[str, List[Any]] = {}
    found["redundancy"] = [*heads, "redundancy", args.model, "--json", folder / f"{args.model.name}.redundancy.json"]

    def tune(seed: str) -> None:
        for task in tasks:
            options = ["--tasks", task, "--key-dims", args.key_dims, "--seed", seed, "--discard", "--device", "cpu"]
            options += ["--epochs", args.epochs] if args.epochs else []
            options += ["--output", folder / f"seed{seed}"]
            found[f"{task}-s{seed}"] = [*module, "recipes", "glue", *model, *options]

    tune(first)
    for task in [task for task in ANALYSED if task in tasks]:
        tuned = folder / f"seed{first}" / task / "standard"
        records = {name: folder / f"{args.model.name}-{task}.{name}.json" for name in ("importance", "ablate", "prune")}
        validation, train = (args.data / task / f"{split}.jsonl" for split in ("validation", "train"))
        for name, more in {
            "importance": ["--text", train],
            "ablate": ["--text", validation],
            "prune": ["--text", validation, "--importance", records["importance"], "--random-orders", 3],
        }.items():
            words = ["--fields", ",".join(GLUE[task].fields), "--device", "cpu", "--json", records[name]]
            found[f"{name}-{task}"] = [*heads, name, tuned, *more, *words]
    embeddings = folder / "embeddings"
    words = [*module, "recipes", "glue", "embeddings", *model, "--output", embeddings, "--steps", args.distill_steps]
    found["embeddings"] = [*words, "--no-speed"]
    for seed in others:
        tune(seed)
    found["speed"] = words
    files = ["--calibration", embeddings / "calibration.txt", "--evaluate", args.data / "stsb"]
    record = folder / "decomposition.json"
    found["decomposition"] = [*module, "recipes", "reparam", "decomposition", record, "--model", args.model, *files]
    return {name: list(map(str, command)) for name, command in found.items()}


def tasks_of(step: str) -> Sequence[str]:
    """The tasks that a step reads."""
    if step in ("embeddings", "speed"):
        return TEXTS
    return ["stsb"] if step == "decomposition" else [task for task in GLUE if task in step.split("-")]


def fetch_tasks(chosen: Sequence[str], data: Path) -> None:
    """Download what the steps read. Steps that lack a task will fail, without stopping the others."""
    for task in dict.fromkeys(task for step in chosen for task in tasks_of(step)):
        try:
            fetch(task, data)
        except UserError as error:
            failing = ", ".join(step for step in chosen if task in tasks_of(step))
            logger.error("%s; these steps need it and will fail: %s", error, failing)


def publish(folder: Path, target: Path) -> None:
    """Copy the records to `target`: as NAME.json of the record, head analyses under the name of their file."""
    paths = [*folder.glob("seed*/*/record.json"), *folder.glob("*.json"), *folder.glob("embeddings/*.json")]
    if not paths:
        raise UserError(f"{folder} has no records")
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(paths):
        content = path.read_bytes()
        record = json.loads(content)
        if record["parts"]:
            name = path.name if record["kind"] == "heads" else f"{record['name'].removeprefix('glue-')}.json"
            write_bytes(content, target / name)
            logger.info("%s: %d parts", target / name, len(record["parts"]))


def stop(number: int, _: Any) -> None:
    """End the running step, too."""
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("names", nargs="*", metavar="STEP", help=f"steps to run (default: all but {' and '.join(TIMED)})")
    add("--model", type=Path, required=True, metavar="DIR", help="folder of an encoder, such as that of minilm.py")
    add("--data", type=Path, default=ROOT / "data/glue", metavar="DIR", help="GLUE tasks (default: data/glue)")
    add("--output", type=Path, default=ROOT / "runs/glue", metavar="DIR", help="default: runs/glue")
    text = "tasks (default: %(default)s)"
    add("--tasks", default="stsb,mrpc,cola,rte", metavar="NAME,…", help=text)
    add("--seeds", default="1,2,3", metavar="N,…", help="seeds (default: %(default)s)")
    add("--key-dims", default="384,192,128,64", metavar="N,…", help="key dimensions (default: %(default)s)")
    add("--epochs", type=float, help="epochs of each fine-tuning (default: those of run.py)")
    add("--distill-steps", type=int, default=1000, metavar="N", help="steps of distillation (default: %(default)s)")
    add("--list", action="store_true", help="only print the commands")
    add("--publish", type=Path, metavar="DIR", help="only copy the records to DIR")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="sequence: %(message)s")
    args.model, args.data, args.output = args.model.absolute(), args.data.absolute(), args.output.absolute()
    commands = steps(args)
    unknown = sorted({*args.names} - {*commands})
    if unknown:
        raise UserError(f"steps must be among {', '.join(commands)}; got {', '.join(unknown)}")
    chosen = args.names or [name for name in commands if name not in TIMED]
    if args.publish:
        publish(args.output / args.model.name, args.publish)
        return 0
    if args.list:
        sys.stdout.write("".join(f"{name}: {shlex.join(commands[name])}\n" for name in commands))
        return 0
    signal.signal(signal.SIGTERM, stop)
    (args.output / args.model.name).mkdir(parents=True, exist_ok=True)
    fetch_tasks(chosen, args.data)
    failed, began = [], time.monotonic()
    for number, name in enumerate(chosen, 1):
        minutes = (time.monotonic() - began) / 60
        logger.info("step %d of %d, %s, %.1f min since the start", number, len(chosen), name, minutes)
        # subprocess.run ends the step if this process is interrupted
        if subprocess.run(commands[name], stdout=subprocess.DEVNULL, cwd=ROOT).returncode:
            failed.append(name)
    logger.info("finished in %.1f min", (time.monotonic() - began) / 60)
    if failed:
        raise UserError(f"these steps failed: {', '.join(failed)}; the same command continues them")
    return 0

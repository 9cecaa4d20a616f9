"""Tell whether this machine can run a recipe, and what to do where it cannot.

    collab doctor
    collab doctor --data data/multi30k/data-bin --output /scratch/runs --checkpoints 12
    collab doctor --no-trial --json doctor.json

Looks at Python, packages, torch and its build, cards and the precision that fits them, what processes talk through,
fairseq and the start-up hook, --user-dir, the console scripts, disk space and data; then binarises a made-up corpus and
makes five updates on it. Each line is ok, warn or fail, with what to do below it; the exit status is 1 where one fails.
"""

import argparse
import logging
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Iterator

import collab_fairseq
from collab_fairseq.cli import doctor_checks as checks
from collab_fairseq.cli import doctor_trial as trials

HELP = "can this machine run a recipe?"
#: those that --keep-interval-updates 5 leaves, last, best, a new one and its copy
_CHECKPOINTS = 9
#: types of the joined dictionary of the paper's data
_TYPES = 32768

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a recipe is going to ask of the machine."""
    parser.add_argument("--data", metavar="DATA_BIN", help="also check this folder of fairseq-preprocess")
    parser.add_argument(
        "--output", default=".", metavar="DIR", help="where checkpoints will go; need not exist (default: here)"
    )
    parser.add_argument(
        "--checkpoints",
        type=_number,
        default=_CHECKPOINTS,
        metavar="N",
        help="how many must find room there at once (default: %(default)s: 5 kept, last, best, a new one and its copy)",
    )
    parser.add_argument(
        "--arch", default="transformer_collab", help="whose size they have, at its defaults (default: %(default)s)"
    )
    parser.add_argument(
        "--parameters",
        type=_number,
        metavar="N",
        help="their size in parameters, where you know better (default: counted for --arch with the dictionary of "
        f"--data, or {_TYPES:,} types)",
    )
    parser.add_argument("--no-trial", action="store_true", help="leave the trial run out")
    parser.add_argument("--json", metavar="FILE", help="also write the findings to FILE")


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


class UsageError(ValueError):
    """A file that could not be written in the end."""

    user_error = True


def findings(args: argparse.Namespace) -> Iterator[checks.Finding]:
    """All checks, those first whose failing makes others fail."""
    try:
        about = metadata.metadata("collab_fairseq")
        yield checks.python(sys.version_info[:3], about["Requires-Python"])
        yield checks.packages(metadata.requires("collab_fairseq") or [], metadata.version)
    except metadata.PackageNotFoundError:
        yield checks.Finding("packages", "fail", "this project is not installed", "pip install . (see README.md)")
    logger.info("importing torch and fairseq")
    user_dir = os.path.dirname(os.path.abspath(collab_fairseq.__file__))
    types = (checks.dictionary_size(args.data) if args.data else None) or _TYPES
    facts, messages = trials.probe(user_dir, args.arch, types)
    cards = facts["torch"].get("cards", [])
    yield checks.torch(facts["torch"])
    yield from checks.cards(facts["torch"], driver=os.path.exists("/proc/driver/nvidia/version"))
    yield checks.communication(facts["torch"])
    yield checks.hook(facts["hook"])
    yield checks.fairseq(facts["fairseq"])
    yield checks.user_dir(facts["user_dir"], args.arch)
    yield checks.scripts()
    yield checks.disk(args.output, args.parameters or facts["model"].get("parameters"), args.checkpoints)
    if args.data:
        yield from checks.data(args.data)
    if any("error" in facts[name] for name in ("torch", "fairseq", "user_dir")):
        _show_end(messages)
        if not args.no_trial:
            yield checks.Finding("trial run", "warn", "not tried", checks.MEND)
    elif not args.no_trial:
        logger.info("trial run: %d updates", trials.UPDATES)
        with tempfile.TemporaryDirectory(prefix="collab-doctor-") as folder:
            finding, messages = trials.trial(cards, user_dir, Path(folder))
        if finding.status != "ok":
            _show_end(messages)
        yield finding


def _show_end(messages: str) -> None:
    lines = [line for line in messages.split("\n") if line.strip()]
    sys.stderr.write("".join(f"  | {line}\n" for line in lines[-20:]))


def run(args: argparse.Namespace) -> int:
    """Print a line for each finding as it is made; 1 where any fails."""
    from collab_fairseq.reporting.files import write_json

    if args.json and not Path(args.json).absolute().parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no folder {Path(args.json).absolute().parent}")
    found = []
    for finding in findings(args):
        found.append(finding)
        sys.stdout.write(f"{finding.status:<5} {finding.name:<10} {finding.text}\n")
        if finding.advice:
            sys.stdout.write(f"{'':<16} -> {finding.advice}\n")
        sys.stdout.flush()
    counts = {status: sum(finding.status == status for finding in found) for status in ("ok", "warn", "fail")}
    able = not counts["fail"]
    verdict = "this machine can run a recipe" if able else "this machine cannot run a recipe yet"
    sys.stdout.write(f"\n{verdict}: {', '.join(f'{number} {status}' for status, number in counts.items())}\n")
    if args.json:
        write_json({"able": able, "findings": [finding._asdict() for finding in found]}, args.json)
    return 0 if able else 1

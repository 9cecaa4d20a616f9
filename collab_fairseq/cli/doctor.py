"""Tell whether this machine can run a recipe, and what to do where it cannot.

    collab doctor
    collab doctor --data data/multi30k/data-bin
    collab doctor --no-trial --json doctor.json

Looks at Python, packages, fairseq, torch, GPUs and the precision that fits them, the start-up hook, --user-dir and
data; then binarises a made-up corpus and makes five updates on it. Each line is ok, warn or fail, with what to do below
it; the exit status is 1 where one fails. Whether the disk has room, a training says before it begins.
"""

import argparse
import sys

from collab_fairseq import doctor
from collab_fairseq.records.files import check_targets, write_json

HELP = "can this machine run a recipe?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DATA_BIN", help="also check this folder of fairseq-preprocess")
    parser.add_argument("--no-trial", action="store_true", help="leave the trial run out")
    parser.add_argument("--json", metavar="FILE", help="also write the findings to FILE")


def run(args: argparse.Namespace) -> int:
    check_targets(args.json)
    found = []
    for finding in doctor.examine(args.data, updates=not args.no_trial):
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

"""Check whether this machine is ready for a recipe.

    collab doctor
    collab doctor --data data/multi30k/data-bin --json doctor.json

Checks Python, packages, fairseq, torch, GPUs and their precision, the C++ compiler, the repository (a wheel is the
library only), data and free disk space. Each check prints ok, warn or fail, with advice below. The exit status is 1 if
a check fails. A trial run is `make demo`.
"""

import argparse
import sys

from collab_fairseq import doctor
from collab_fairseq.files import check_writable, write_json

HELP = "check whether this machine is ready for a recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DATA_BIN", help="also check this output folder of fairseq-preprocess")
    parser.add_argument("--json", metavar="FILE", help="also write the findings to FILE")


def run(args: argparse.Namespace) -> int:
    check_writable(args.json)
    findings = []
    for finding in doctor.examine(args.data):
        findings.append(finding)
        sys.stdout.write(f"{finding.status:<5} {finding.name:<10} {finding.text}\n")
        if finding.advice:
            sys.stdout.write(f"{'':<16} -> {finding.advice}\n")
        sys.stdout.flush()
    counts = {status: sum(finding.status == status for finding in findings) for status in ("ok", "warn", "fail")}
    able = not counts["fail"]
    verdict = "this machine can run a recipe" if able else "this machine cannot run a recipe yet"
    summary = ", ".join(f"{number} {status}" for status, number in counts.items())
    sys.stdout.write(f"\n{verdict}: {summary}\n")
    if args.json:
        write_json({"able": able, "findings": [finding._asdict() for finding in findings]}, args.json)
    return 0 if able else 1

"""Time of the decomposition in the shape of BERT-base: this version, an earlier one, and the paper's method.

    git worktree add ../before COMMIT && python -m recipes reparam fit_speed fit.json --before ../before

Layers of 12 standard heads, width 768, with random weights, are decomposed to 256 shared key dimensions. The methods
take turns in one run, each in its own process. Needs quiet cores. Without --before, prints the table of a record.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

from collab_fairseq.cli.options import command, numbers
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record, load
from recipes import ROOT

WIDTH, HEADS, RANK = 768, 12, 256
PROGRAM = f"""
import json, sys, time, torch
from collab_fairseq.attention.factors import ScoreWeights, relative_error, standard_heads
from collab_fairseq.reparam import fit_layers
torch.manual_seed(0)
method, layers, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
heads = [standard_heads(*(0.02 * torch.randn({WIDTH}, {WIDTH}) for _ in "qk"), {HEADS}) for _ in range(layers)]
if method == "parafac":
    import tensorly.decomposition
    from recipes.reparam.study import parafac
began = time.perf_counter()
if method == "parafac":
    errors = [relative_error(each, parafac(each, {RANK}, 1)) for each in heads]
else:
    sources = {{str(n): ScoreWeights(each, 0.125) for n, each in enumerate(heads)}}
    errors = [fit.error for fit in fit_layers(sources, {RANK}, progress=lambda *_: None, seed=1).values()]
print(json.dumps({{"seconds": time.perf_counter() - began, "errors": errors}}))
"""


def measure(method: str, checkout: Path, layers: int, threads: int) -> Dict[str, Any]:
    """Seconds and relative errors of the layers."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", PROGRAM, method, str(layers), str(threads)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True, cwd=checkout)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(parts: Dict[str, Any]) -> str:
    """Medians and ranges of the seconds, relative to the version before."""
    rows = [["method", "threads", "seconds", "relative", "error of the first layer"]]
    for name, runs in parts.items():
        method, _, threads = name.partition("/")
        seconds = [run["seconds"] for run in runs]
        base = statistics.median(run["seconds"] for run in parts[f"before/{threads}"])
        middle = statistics.median(seconds)
        text = f"{middle:.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
        rows.append([method, threads, text, f"{middle / base:.2f}", f"{runs[0]['errors'][0]:.6f}"])
    return pages.table(rows, numbers=True) + "\n"


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The table of the record; measures it first with --before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("record", type=Path, metavar="RECORD", help="the record, JSON")
    add("--before", type=Path, metavar="DIR", help="checkout of the version to compare with")
    add("--layers", type=int, default=12, metavar="N", help="layers (default: %(default)s, as in BERT-base)")
    add("--repeats", type=int, default=3, metavar="N", help="repetitions of ours (default: %(default)s); parafac: one")
    add("--threads", type=numbers, default="1,2", metavar="N,…", help="numbers of threads (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.before:
        measure_all(args)
    return table(load(args.record, "study", "fit")["parts"])


def measure_all(args: argparse.Namespace) -> None:
    """Measure all methods, and write the record."""
    words = ["git", "rev-parse", "HEAD"]
    before = subprocess.run(words, cwd=args.before, check=True, capture_output=True, text=True).stdout.strip()
    settings = {"layers": args.layers, "width": WIDTH, "heads": HEADS, "rank": RANK, "before": before}
    line = command("python -m recipes reparam fit_speed")
    record = Record("study", "fit", line, settings, args.record, fixed=("hardware",))
    checkouts = {"before": args.before.resolve(), "after": ROOT, "parafac": ROOT}
    for threads in args.threads:
        runs: Dict[str, Any] = {name: [] for name in checkouts}
        for repeat in range(args.repeats):
            for name, checkout in checkouts.items():
                if name != "parafac" or repeat == 0:
                    runs[name].append(measure(name, checkout, args.layers, threads))
        for name, measured in runs.items():
            record.parts[f"{name}/{threads}"] = measured
        record.save()

#!/usr/bin/env python3
"""Decomposing heads: our solver beside TensorLy's parafac, which the paper uses, in one process on one CPU thread.

Measures, in this order; each is a part of the record, and one that is there already is not measured again:
  layers     all layers of a model one after the other: CPU seconds and the peak memory of the process
  race       CPU seconds until our solver is where TensorLy is after all its iterations
  errors     of both at several ranks (study.py has those of a trained model)

TensorLy gets the dense float32 tensor, a random start (as in the paper's code) and its PyTorch backend. CPU time, not
wall time, is compared, since other programs may run. Needs `pip install 'collab_fairseq[reparam]'`.
"""

import argparse
import importlib.metadata
import logging
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from parafac import parafac

from collab_fairseq.records.record import Record
from collab_fairseq.reparam import HeadFactors, ScoreWeights, decompose, fit_layers, standard_heads

logger = logging.getLogger("benchmark")

KINDS = ("independent", "shared")
TOLERANCE = 1e-30  # TensorLy is to make all iterations


def generated_heads(kind: str, heads: int, width: int, seed: int) -> HeadFactors:
    """Standard heads in which every dimension is weaker than the one before it.

    Args:
        kind: ``independent``, or ``shared``: half of the variance of all heads lies in a common half of the dimensions.
        heads, width: H and E; every head has E / H dimensions.
    """
    random = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random)

    strength = torch.exp(-3 * torch.linspace(0, 1, width // heads)).repeat(heads)[:, None]
    weights = []
    for _ in range(2):
        own = draw(width, width)
        if kind == "shared":
            own = (own + draw(width, width // 2) @ draw(width // 2, width) * (width // 2) ** -0.5) * 0.5**0.5
        weights.append(own * width**-0.5)
    return standard_heads(strength * weights[0], weights[1], heads)


def cpu_seconds(action: Callable[[], Any]) -> Tuple[float, Any]:
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


def measure_layers(args: argparse.Namespace) -> Dict[str, Any]:
    layers = [generated_heads("shared", args.heads, args.width, seed) for seed in range(args.layers)]
    scale = (args.width / args.heads) ** -0.5
    sources = {f"layer {number}": ScoreWeights(heads, scale) for number, heads in enumerate(layers)}
    seconds, fits = cpu_seconds(lambda: fit_layers(sources, args.rank))
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "layers": args.layers, "key_dim": args.rank, "cpu_seconds": seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "errors": [fit.error for fit in fits.values()], "sweeps": [fit.sweeps for fit in fits.values()],
    }  # fmt: skip


def measure_race(args: argparse.Namespace, kind: str, seed: int) -> Dict[str, Any]:
    heads, rank = generated_heads(kind, args.heads, args.width, seed), args.race_rank
    theirs, (_, errors) = cpu_seconds(
        lambda: parafac(heads, rank, seed, iterations=args.iterations, tolerance=TOLERANCE)
    )
    ours, found = cpu_seconds(lambda: decompose(heads, rank, seed=seed, sweeps=1000, target=errors[-1]))
    logger.info(
        "race, %s heads, seed %d: TensorLy %.5f after %.1f s; ours %.5f after %.2f s",
        kind, seed, errors[-1], theirs, found.error, ours,
    )  # fmt: skip
    return {
        "heads": kind, "seed": seed, "key_dim": rank, "ratio": theirs / ours,
        "tensorly": {"iterations": len(errors), "error": errors[-1], "cpu_seconds": theirs},
        "ours": {"error": found.error, "cpu_seconds": ours, "sweeps": found.sweeps, "start": found.start},
    }  # fmt: skip


def measure_errors(args: argparse.Namespace, kind: str, number: int) -> List[Dict[str, Any]]:
    heads, found = generated_heads(kind, *args.small, number), []
    for part in (3 / 4, 1 / 2, 1 / 3, 1 / 4):
        rank = round(heads.rank * part)
        for seed in args.seeds:
            fit = decompose(heads, rank, seed=seed)
            theirs = parafac(heads, rank, seed, iterations=args.iterations, tolerance=TOLERANCE)[1][-1]
            entry = {"heads": f"{kind}, seed {number}", "key_dim": rank, "seed": seed, "start": fit.start}
            found.append({**entry, "ours": fit.error, "tensorly": theirs})
    worst = max(entry["ours"] - entry["tensorly"] for entry in found)
    logger.info("errors, %s heads, seed %d: ours − TensorLy ≤ %.5f", kind, number, worst)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, metavar="FILE", help="the record; one that is there is continued")
    for name, default, what in (
        ("heads", 12, "of the large layers"), ("width", 768, "of the large layers"), ("layers", 12, "of the model"),
        ("rank", 384, "of `layers`"), ("race-rank", 256, "of `race`"),
        ("iterations", 100, "of TensorLy"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    parser.add_argument("--small", type=int, nargs=2, default=[8, 256], metavar=("HEADS", "WIDTH"),
                        help="of the layers of `errors` (default: 8 256)")  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        tensorly = importlib.metadata.version("tensorly")
    except importlib.metadata.PackageNotFoundError:
        parser.exit(1, "TensorLy is not installed: pip install 'collab_fairseq[reparam]'\n")
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    record = Record(
        "study", "solver", shlex.join(["recipes/reparam/benchmark.py", *sys.argv[1:]]),
        {**settings, "tensorly": tensorly}, args.output, threads=1, repository=Path(__file__).parent,
        fixed=("commit", "hardware", "versions"),
    )  # fmt: skip
    record.part("layers", lambda: measure_layers(args))  # first: what comes later needs more memory
    both = [(kind, seed) for kind in KINDS for seed in args.seeds]
    record.part("race", lambda: [measure_race(args, *which) for which in both])
    record.part("errors", lambda: [entry for which in both for entry in measure_errors(args, *which)])
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Decomposing heads: our solver beside TensorLy's parafac, which the paper uses, in one process on one CPU thread.

Measures, in this order; each is a part of the record, and one that is there already is not measured again:
  layers     all layers of a model one after the other: CPU seconds and the peak memory of the process
  full_rank_error  the error where nothing has to be left out
  sweeps     CPU seconds per sweep of both, by turns
  race       CPU seconds until our solver is where TensorLy is after all its iterations
  errors     of both at several ranks, on generated heads and, with --checkpoint, on those of a trained model

TensorLy gets the dense float32 tensor, a random start (as in the paper's code) and its PyTorch backend. CPU time, not
wall time, is compared, since other programs may run. Needs `pip install 'collab_fairseq[reparam]'`.
"""

import argparse
import importlib.metadata
import logging
import resource
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from collab_fairseq.checkpoints import load_with_model
from collab_fairseq.heads.redundancy import read_weights
from collab_fairseq.records.record import Record
from collab_fairseq.reparam import HeadFactors, ScoreWeights, decompose, fit_layers, standard_heads

logger = logging.getLogger("benchmark")

KINDS = ("independent", "shared")


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


def trained_heads(path: str) -> Iterator[Tuple[str, HeadFactors]]:
    """Name and heads of every attention of a fairseq transformer."""
    for name, weights in read_weights(load_with_model(path)).items():
        yield name, HeadFactors(weights.query, weights.key, weights.mixing).to(torch.float32)


def cpu_seconds(action: Callable[[], Any]) -> Tuple[float, Any]:
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


def tensorly_errors(heads: HeadFactors, rank: int, iterations: int, seed: int) -> List[float]:
    """Relative errors of TensorLy after each iteration."""
    import tensorly
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")
    dense = torch.einsum("hk,kd,ke->hde", *(heads.mixing, heads.query, heads.key))
    _, errors = parafac(
        dense, rank, n_iter_max=iterations, init="random", tol=1e-30, random_state=seed, return_errors=True
    )
    return [float(error) for error in errors]


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


def measure_sweeps(args: argparse.Namespace, heads: HeadFactors) -> Dict[str, Any]:
    ours, theirs = [], []
    tensorly_errors(heads, 1, 1, 0)  # what only a first call costs
    for turn in range(args.rounds):
        seconds, _ = cpu_seconds(lambda: tensorly_errors(heads, args.rank, 2, 0))
        theirs.append(seconds / 2)
        seconds, found = cpu_seconds(lambda: decompose(heads, args.rank, starts=["random"], sweeps=40, tolerance=0.0))
        ours.append(seconds / found.sweeps)
        logger.info("sweeps, turn %d of %d: ours %.4f s, TensorLy %.3f s", turn + 1, args.rounds, ours[-1], theirs[-1])
    ratio = statistics.median(theirs) / statistics.median(ours)
    return {"key_dim": args.rank, "ours_cpu_seconds": ours, "tensorly_cpu_seconds": theirs, "ratio_of_medians": ratio}


def measure_race(args: argparse.Namespace, kind: str, seed: int) -> Dict[str, Any]:
    heads, rank = generated_heads(kind, args.heads, args.width, seed), args.race_rank
    theirs, errors = cpu_seconds(lambda: tensorly_errors(heads, rank, args.iterations, seed))
    ours, found = cpu_seconds(lambda: decompose(heads, rank, seed=seed, sweeps=1000, target=errors[-1]))
    whole, best = cpu_seconds(lambda: decompose(heads, rank, seed=seed))
    logger.info(
        "race, %s heads, seed %d: TensorLy %.5f after %.1f s; ours %.5f after %.2f s, %.5f after %.2f s",
        kind, seed, errors[-1], theirs, found.error, ours, best.error, whole,
    )  # fmt: skip
    both = {
        name: {"error": fit.error, "cpu_seconds": spent, "sweeps": fit.sweeps, "start": fit.start}
        for name, fit, spent in (("ours_to_that_error", found, ours), ("ours_in_the_end", best, whole))
    }
    both["ours_to_that_error"]["reached"] = found.error <= errors[-1] + 1e-6
    tensorly = {"iterations": len(errors), "error": errors[-1], "cpu_seconds": theirs}
    return {"heads": kind, "seed": seed, "key_dim": rank, "tensorly": tensorly, **both, "ratio": theirs / ours}


def measure_errors(args: argparse.Namespace) -> List[Dict[str, Any]]:
    heads, width = args.small
    sources = [
        (f"{kind}, seed {seed}", generated_heads(kind, heads, width, seed))
        for kind in KINDS for seed in args.seeds
    ]  # fmt: skip
    if args.checkpoint:
        sources += list(trained_heads(args.checkpoint))
    found: List[Dict[str, Any]] = []
    for number, (name, source) in enumerate(sources):
        for part in (3 / 4, 1 / 2, 1 / 3, 1 / 4):
            rank = round(source.rank * part)
            for seed in args.seeds:
                fit = decompose(source, rank, seed=seed)
                theirs = tensorly_errors(source, rank, args.iterations, seed)[-1]
                entry = {"heads": name, "key_dim": rank, "seed": seed, "start": fit.start}
                found.append({**entry, "ours": fit.error, "tensorly": theirs})
        worst = max(entry["ours"] - entry["tensorly"] for entry in found if entry["heads"] == name)
        logger.info("errors (%d of %d), %s: ours − TensorLy ≤ %.5f", number + 1, len(sources), name, worst)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, metavar="FILE", help="the record; one that is there is continued")
    parser.add_argument("--checkpoint", metavar="FILE", help="fairseq transformer whose heads are decomposed, too")
    for name, default, what in (
        ("heads", 12, "of the large layers"), ("width", 768, "of the large layers"), ("layers", 12, "of the model"),
        ("rank", 384, "of `layers` and `sweeps`"), ("race-rank", 256, "of `race`"),
        ("iterations", 100, "of TensorLy"), ("rounds", 5, "turns of `sweeps`"),
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
    large = generated_heads("shared", args.heads, args.width, 0)
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    settings.update(checkpoint=args.checkpoint and Path(args.checkpoint).name, tensorly=tensorly)
    record = Record(
        "study", "solver", shlex.join(["recipes/reparam/benchmark.py", *sys.argv[1:]]), settings, args.output,
        threads=1, repository=Path(__file__).parent, fixed=("commit", "hardware", "versions"),
    )  # fmt: skip
    record.part("layers", lambda: measure_layers(args))  # first: what comes later needs more memory
    record.part("full_rank_error", lambda: decompose(large, large.rank).error)
    record.part("sweeps", lambda: measure_sweeps(args, large))
    record.part("race", lambda: [measure_race(args, kind, seed) for kind in KINDS for seed in args.seeds])
    record.part("errors", lambda: measure_errors(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Scores and losses of runs on their test sets, and intervals over runs."""

import hashlib
import json
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from collab_fairseq.records.columns import DASH, METRICS
from collab_fairseq.records.rows import TrainingRecord
from collab_fairseq.scoring.significance import Interval, over_seeds

#: all test sets with a loss as one, weighted by tokens
ALL = "all tests"


def list_test_sets(runs: Sequence[TrainingRecord], metric: str = METRICS["sacrebleu"]) -> List[str]:
    """All test sets of the runs, sorted by name.

    For NLL also validation sets, and `ALL` if there are several tests and every run with losses has all of them.
    """
    if metric != METRICS["nll"]:
        return sorted({test for run in runs for test in run["scores"]})
    measured = [set(run["losses"]) for run in runs if run.get("losses")]
    names = sorted(set().union(*measured))
    tests = {name for name in names if not name.startswith("valid")}
    return [*names, ALL] if len(tests) > 1 and all(tests <= each for each in measured) else names


def evaluation(run: TrainingRecord, test: str, metric: str) -> Dict[str, Any]:
    """Scores of a test set with sentence statistics, as in `scoring.evaluation.Evaluation`; also for NLL."""
    if metric != METRICS["nll"]:
        return run["scores"].get(test) or {"scores": []}
    losses = sorted((run.get("losses") or {}).items())
    sets = [loss for name, loss in losses if name == test or (test == ALL and not name.startswith("valid"))]
    if not sets:
        return {"scores": []}
    tokens = [loss["tokens"] for loss in sets]
    mean = sum(loss["nll_loss"] * loss["tokens"] for loss in sets) / sum(tokens)
    corpus = hashlib.sha256(json.dumps([run["data"], tokens], sort_keys=True).encode()).hexdigest()
    complete = all(loss.get("sentences") for loss in sets)
    rows = {metric: "; ".join(loss["sentences"] for loss in sets)} if complete else {}
    statistics = {"references_sha256": corpus, "rows": rows}
    return {"scores": [{"metric": metric, "score": mean}], "sentence_statistics": statistics}


def score(run: TrainingRecord, test: str, metric: str) -> Optional[float]:
    """The score of a test set, or None."""
    entries = evaluation(run, test, metric)["scores"]
    return next((float(entry["score"]) for entry in entries if entry["metric"] == metric), None)


def over_runs(*sides: Sequence[TrainingRecord], test: str, metric: str) -> Tuple[Interval, bool]:
    """`over_seeds` for runs: one row, or two rows for the interval of their difference."""
    names = [f"{run['name']} ({test})" for side in sides for run in side]
    scored = [[evaluation(run, test, metric) for run in side] for side in sides]
    return over_seeds(*scored, metric=metric, names=names)


def interval_cell(
    runs: Sequence[TrainingRecord], test: str, name: str, seeds_only: Set[str], base: Sequence[TrainingRecord] = ()
) -> str:
    """A cell `mean [low, high]` over the seeds; for a single seed the number only.

    Args:
        runs: one per seed.
        name: of the metric, a key of `METRICS`.
        seeds_only: receives the metric if its interval is over the seeds only.
        base: runs of the same seeds; the cell is then the difference from them, with a star if the interval excludes 0.
    """
    metric, decimals, sign = METRICS[name], 3 if name == "nll" else 2, "+" if base else ""
    pairs = [
        pair
        for pair in zip(*([runs, base] if base else [runs]), strict=True)
        if all(score(run, test, metric) is not None for run in pair)
    ]
    if not pairs:
        return DASH
    sides = list(zip(*pairs, strict=True))
    limits, with_sentences = over_runs(*sides, test=test, metric=metric)
    shown = limits.text(decimals, sign)
    if len(pairs) == 1:
        shown = shown.partition(" ")[0]
    else:
        seeds_only.update([] if with_sentences else [metric])
        if base and limits.low * limits.high > 0:
            shown += " *"
    return shown if len(pairs) == len(runs) else f"{shown} (of {len(pairs)})"

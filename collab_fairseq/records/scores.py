"""What the runs of a table scored on their test sets, and the intervals of rows of them."""

import hashlib
import json
from typing import Any, Dict, List, Optional, Sequence, Set

from collab_fairseq.records.columns import DASH, METRICS
from collab_fairseq.records.rows import TrainingRecord
from collab_fairseq.scoring.significance import over_seeds

#: all test sets that a loss is of, as one, weighted by tokens
ALL = "all tests"


def test_sets(runs: Sequence[TrainingRecord], metric: str = METRICS["sacrebleu"]) -> List[str]:  # noqa: PT028  (no test)
    """All sets that runs were scored on, in order of their names; of nll validation sets, too, and `ALL` of several."""
    if metric != METRICS["nll"]:
        return sorted({test for run in runs for test in run["scores"]})
    found = sorted({test for run in runs for test in run.get("losses") or ()})
    return [*found, ALL] if sum(not test.startswith("valid") for test in found) > 1 else found


def evaluation(run: TrainingRecord, test: str, metric: str) -> Dict[str, Any]:
    """The scores of a test set, with their sentence statistics, as `scoring.Evaluation`; of a loss in the same form."""
    if metric != METRICS["nll"]:
        return run["scores"].get(test) or {"scores": []}
    losses = sorted((run.get("losses") or {}).items())
    sets = [found for name, found in losses if name == test or (test == ALL and not name.startswith("valid"))]
    if not sets:
        return {"scores": []}
    mean = sum(found["nll_loss"] * found["tokens"] for found in sets) / sum(found["tokens"] for found in sets)
    known = all(found.get("sentences") for found in sets)
    corpus = hashlib.sha256(
        json.dumps([run["data"], [found["tokens"] for found in sets]], sort_keys=True).encode()
    ).hexdigest()
    rows = {"nll": "; ".join(found["sentences"] for found in sets)} if known else {}
    statistics = {"references_sha256": corpus, "rows": rows}
    return {"scores": [{"metric": "nll", "score": mean}], "sentence_statistics": statistics}


def score(run: TrainingRecord, test: str, metric: str) -> Optional[float]:
    """A score of a test set; None where the run has none."""
    entries = evaluation(run, test, metric)["scores"]
    return next((float(entry["score"]) for entry in entries if entry["metric"] == metric), None)


def interval(
    runs: Sequence[TrainingRecord], test: str, name: str, alone: Set[str], base: Sequence[TrainingRecord] = ()
) -> str:
    """`mean [low, high]` over the seeds of a metric or, with runs of the same seeds, of the difference from these.

    Of one seed it is the number alone; where 0 is outside the interval of a difference, a star follows. Metrics whose
    interval is over the seeds alone, since the records have no statistics of the sentences, are added to ``alone``.
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
    names = [f"{run['name']} ({test})" for side in sides for run in side]
    scored = [[evaluation(run, test, metric) for run in side] for side in sides]
    found, sentences = over_seeds(*scored, metric=metric, names=names)
    shown, low, high = (f"{number:{sign}.{decimals}f}" for number in found)
    if len(pairs) > 1:
        alone.update([] if sentences else [metric])
        shown += f" [{low}, {high}]" + " *" * bool(base and found.low * found.high > 0)
    return shown if len(pairs) == len(runs) else f"{shown} (of {len(pairs)})"

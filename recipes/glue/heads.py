"""Tables of head analyses from records of `collab heads`, all of the same analysis: redundancy, ablate or prune.

    python -m recipes glue heads results/glue/*.ablate.json

A record is NAME.ANALYSIS.json. `python -m recipes heads figures` draws the figures.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

from collab_fairseq.heads import ablation, pruning, redundancy
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import number_text
from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError
from recipes.glue.table import existing
from recipes.heads.figures import model_name

SPLIT = "text"
#: curve of all heads by importance
BY_IMPORTANCE = "encoder_cross_decoder"


def ablations(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Michel et al. (2019), sections 3.2 and 3.3: a row per model."""
    header = ["model", "accuracy, all heads", "constant prediction", "differences without a head", "p < 0.05 (better)"]
    rows = [[*header, "best single head of each layer"]]
    for name, parts in records.items():
        whole, without = parts[f"whole/{SPLIT}"], ablation.results(parts, SPLIT, "without")
        changed = ablation.significant(without)
        differences = [result["difference"] for result in without.values()]
        better = sum(without[head]["difference"] > 0 for head in changed)
        best: Dict[str, float] = {}
        for head, result in ablation.results(parts, SPLIT, "only").items():
            layer = head.rpartition(":")[0]
            best[layer] = max(result["difference"], best.get(layer, result["difference"]))
        row = [name, f"{whole['score']:.1f}", f"{whole['constant']:.1f}"]
        row.append(" to ".join(_signed(value) for value in (min(differences), max(differences))))
        row.append(f"{len(changed)} of {len(without)} ({better})")
        rows.append([*row, " ".join(map(_signed, best.values()))])
    note = (
        "Accuracy on the validation set, in points; p values of McNemar's exact test for each head alone. Last column: "
        "difference if the layer, from the first to the last, has only its best head."
    )
    return f"{pages.table(rows, numbers=True)}\n\n{note}\n"


def prunings(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Michel et al. (2019), section 4.2: a row per percentage of pruned heads."""
    header = ["heads pruned"]
    cells: Dict[int, List[str]] = {percent: [f"{percent} %"] for percent in pruning.PERCENTAGES}
    for name, parts in records.items():
        curves = pruning.pruning_points(parts)
        random = [points for curve, points in curves.items() if curve.startswith(pruning.RANDOM)]
        header += [f"{name}: by importance", "p", f"{len(random)} random orders"]
        for percent, row in cells.items():
            score = curves[BY_IMPORTANCE][percent]["tests"][SPLIT]
            others = [points[percent]["tests"][SPLIT]["accuracy"] for points in random]
            row += [f"{score['accuracy']:.1f}", f"{score['p_value']:.3f}"]
            row.append(f"{statistics.mean(others):.1f} ({min(others):.1f}–{max(others):.1f})" if others else "–")
    levels = ", ".join(f"{name} {parts[f'whole/{SPLIT}']['constant']:.1f}" for name, parts in records.items())
    note = (
        "Accuracy on the validation set in %, without training between steps; p: McNemar's exact test against all "
        f"heads. Random orders: mean and range. Constant prediction: {levels}."
    )
    return f"{pages.table([header, *cells.values()], numbers=True)}\n\n{note}\n"


TABLES: Dict[str, Callable[[Mapping[str, Mapping[str, Any]]], str]] = {
    "ablate": ablations,
    "prune": prunings,
    "redundancy": lambda records: "\n".join(map(redundancy.report, records.values())),
}


def _signed(value: float) -> str:
    return ("+" if round(value, 1) > 0 else "") + number_text(value, 1)


def table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of records by name of the model."""
    if not any(record["parts"] for record in records.values()):
        return "This has not been measured yet.\n"
    (analysis,) = {record["name"] for record in records.values()}
    return TABLES[analysis]({name: record["parts"] for name, record in records.items()})


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The table that the command prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORD")
    records: Dict[str, Any] = {}
    for path in existing(parser.parse_args(arguments).records):
        record = load(path, "heads")
        name = model_name(path, record)
        if name in records:
            raise UserError(f"records must have different names; got {name} twice")
        records[name] = record
    return table(records)

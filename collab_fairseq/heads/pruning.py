"""Pruning curves: BLEU and loss as the least important heads are masked.

Michel, Levy, Neubig (2019), https://arxiv.org/abs/1905.10650, sections 4.2 and 5. Of N heads at the chosen sites, the
⌈N·i/10⌉ least important ones are masked, for i = 0..9, without training between steps.
"""

import logging
import math
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import LETTERS, Heads, describe, parse_heads
from collab_fairseq.modules.settings import SITES
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import drawing, look, other_look
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, loss

from .ablation import TestSet, compare, evaluate, with_all_heads
from .attention_hooks import masked
from .figures import SITE_TITLES, names_of_tests

logger = logging.getLogger(__name__)

PERCENTAGES = tuple(range(0, 100, 10))
LEGEND_COLUMNS = 4
#: percentage of heads masked → result
Points = Dict[int, Dict[str, Any]]


def by_ascending_importance(importance: Mapping[str, float], sites: Sequence[str]) -> List[str]:
    """Heads (``E:1:3``, …) at the sites, the least important first; ties keep the order of the model."""
    return sorted((head for head in importance if LETTERS[head[0]] in sites), key=importance.__getitem__)


def least_important(order: Sequence[str], percent: float) -> Heads:
    """The first ``percent`` of the heads, rounded up."""
    # without rounding, binary fractions can turn 30 % of 10 heads into 4
    number = math.ceil(round(len(order) * percent / 100, 9))
    return parse_heads(" ".join(order[:number]))


def prune(
    trained: TrainedModel,
    importance: Mapping[str, float],
    record: Record,
    name: str,
    *,
    sites: Sequence[str],
    tests: Sequence[TestSet],
    loss_split: str,
    percentages: Sequence[int] = PERCENTAGES,
) -> None:
    """Add ``NAME/PERCENT`` to the record: masked ``heads``, heads ``left``, losses, and ``tests`` by split.

    Args:
        importance: head → importance. loss_split: split on which the loss is computed.
    """
    order = by_ascending_importance(importance, sites)

    def measure(heads: Heads) -> Dict[str, Any]:
        with masked(attention_layers(trained.model), heads):
            mean = loss(trained, loss_split, max_tokens=tests[0].search.get("max_tokens", 4000))
        scores = {}
        for test in tests:
            baseline = with_all_heads(trained, test, record)
            system = evaluate(trained, test, heads) if heads else baseline
            scores[test.split] = compare(system, baseline)
        left = len(order) - sum(map(len, heads.values()))
        losses = {"loss": mean.loss, "nll_loss": mean.nll_loss}
        return {"heads": describe(heads), "left": left, **losses, "tests": scores}

    for percent in percentages:
        part = record.part(f"{name}/{percent}", partial(measure, least_important(order, percent)))
        scores = ", ".join(f"{split} {test['bleu']:.2f}" for split, test in part["tests"].items())
        logger.info("%s, %d %%, %d heads left: BLEU %s", name, percent, part["left"], scores)


def pruning_points(parts: Mapping[str, Any]) -> Dict[str, Points]:
    """Name → results in ascending order of the percentage, for all curves of a record."""
    curves: Dict[str, Points] = {}
    for key, result in parts.items():
        name, _, percent = key.rpartition("/")
        if percent.isdigit():
            curves.setdefault(name, {})[int(percent)] = result
    return {name: dict(sorted(points.items())) for name, points in curves.items()}


def report(parts: Mapping[str, Any], names: Sequence[str], splits: Sequence[str]) -> str:
    """Markdown table with a row for each name and percentage."""
    rows = [["curve", "pruned", "heads left", "loss"]]
    for split in splits:
        rows[0] += [f"BLEU {split}", "p"]
    curves = pruning_points(parts)
    for name in names:
        for percent, point in curves[name].items():
            row = [name, f"{percent} %", str(point["left"]), f"{point['loss']:.3f}"]
            for split in splits:
                score = point["tests"][split]
                row += [f"{score['bleu']:.2f}", f"{score['p_value']:.3f}"]
            rows.append(row)
    return pages.table(rows) + "\n"


def draw(record: Mapping[str, Any], path: PathLike, model: str, compared: Sequence[Mapping[str, Any]] = ()) -> None:
    """BLEU on each test set and the loss, against the percentage of heads pruned.

    Args:
        model: its name, for the title. compared: records whose figures use the same axes.
    """
    curves = pruning_points(record["parts"])
    all_curves = [points for other in (record, *compared) for points in pruning_points(other["parts"]).values()]
    names = names_of_tests(record["settings"])
    splits = list(next(iter(all_curves[0].values()))["tests"])
    rankings = {"normalised": "importance normalised per layer", "raw": "raw importance"}
    ranking = rankings[record["settings"]["ranking"]]
    description = (
        f"Heads are masked in order of {ranking}, least important first, without training between "
        "steps; one seed, no intervals. BLEU: higher is better; loss: lower is better."
    )
    sentences = {test["split"]: test["sentences"] for test in record["settings"]["tests"]}
    if any(sentences.values()):
        numbers = ", ".join(f"{number} of {names[split]}" for split, number in sentences.items())
        description += f" BLEU is computed on the first sentences only: {numbers}."
    subset = record["settings"]["loss"]
    loss = "validation loss, bits" if subset == "valid" else f"loss on {subset}, bits"
    legend_rows = math.ceil(len(curves) / LEGEND_COLUMNS)
    with drawing(path, 2.5 + 0.18 * legend_rows, f"Pruning, {model}", description) as figure:
        axes = figure.subplots(1, len(splits) + 1, squeeze=False)[0]
        for axis, split in zip(axes, [*splits, None], strict=True):
            for number, (name, points) in enumerate(curves.items()):
                axis.plot(list(points), _values(points, split), label=_label(name), **_look(name, number))
            with_split = [points for points in all_curves if split in (None, *next(iter(points.values()))["tests"])]
            values = [value for points in with_split for value in _values(points, split)]
            margin = 0.05 * (max(values) - min(values)) or 1.0
            axis.set_ylim(min(values) - margin, max(values) + margin)
            axis.set_title(loss if split is None else f"BLEU, {names.get(split, split)}")
            axis.set_xlabel("heads pruned (%)")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=min(len(curves), LEGEND_COLUMNS))


def _values(points: Points, split: Optional[str]) -> List[float]:
    """BLEU on a test split, or the loss (None)."""
    return [point["loss"] if split is None else point["tests"][split]["bleu"] for point in points.values()]


def _label(name: str) -> str:
    """Legend of a curve named ``encoder_cross`` or ``checkpoint.pt/encoder_cross``."""
    checkpoint, _, group = name.rpartition("/")
    sites = [SITE_TITLES[site] for site in SITES if site in group.split("_")]
    label = "all heads" if len(sites) == len(SITES) else f"only {' and '.join(sites)}"
    return f"{checkpoint}: {label}" if checkpoint else label


def _look(name: str, number: int) -> Dict[str, str]:
    """Fixed colours for sites; other colours for checkpoints."""
    checkpoint, _, group = name.rpartition("/")
    if checkpoint:
        return other_look(number)
    return look(group if group in SITES else "all")

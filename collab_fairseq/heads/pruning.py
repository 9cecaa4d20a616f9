"""Pruning curves: score and loss as the least important heads are masked.

Michel, Levy, Neubig (2019), https://arxiv.org/abs/1905.10650, sections 4.2 and 5. Of N heads at the chosen sites, the
⌈N·i/10⌉ least important ones are masked, for i = 0..9, without training between steps. Random orders are a control.
"""

import logging
import math
import random
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence

from collab_fairseq.attention import SITES
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.head_names import LETTERS, Heads, describe, parse_heads
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, drawing, legend_columns, legend_height, look, other_look, rows_of
from collab_fairseq.records.record import Record
from fairseq_modern.errors import UserError

from .ablation import Evaluated, metric
from .attention_hooks import masked
from .figures import SITE_TITLES, names_of_tests

logger = logging.getLogger(__name__)

PERCENTAGES = tuple(range(0, 100, 10))
LEGEND_COLUMNS = 4
#: percentage of heads masked → result
Points = Dict[int, Dict[str, Any]]
#: start of the names of curves in random order
RANDOM = "random-"


def by_ascending_importance(importance: Mapping[str, float], sites: Sequence[str]) -> List[str]:
    """Heads (``E:1:3``, …) at the sites, the least important first; ties keep the order of the model."""
    return sorted((head for head in importance if LETTERS[head[0]] in sites), key=importance.__getitem__)


def least_important(order: Sequence[str], percent: float) -> Heads:
    """The first ``percent`` of the heads, rounded up."""
    # without rounding, binary fractions can turn 30 % of 10 heads into 4
    number = math.ceil(round(len(order) * percent / 100, 9))
    return parse_heads(" ".join(order[:number]))


def random_orders(heads: Sequence[str], number: int) -> Dict[str, List[str]]:
    """``random-1``, … → the heads in random order, with the number as seed."""
    return {f"{RANDOM}{seed}": random.Random(seed).sample(sorted(heads), len(heads)) for seed in range(1, number + 1)}


def prune(record: Record, orders: Mapping[str, Sequence[str]], model: Evaluated, prefix: str = "") -> None:
    """Add ``NAME/PERCENT`` to the record for every order: masked ``heads``, heads ``left``, losses and ``tests``.

    Args:
        orders: NAME → heads (``E:1:3``, …); the first ones are masked first.
        prefix: of the names of all parts.

    Raises:
        UserError: the record has a result of this name without other heads.
    """
    baselines = model.with_all_heads(record, prefix)

    def measure(order: Sequence[str], heads: Heads) -> Dict[str, Any]:
        part: Dict[str, Any] = {"heads": describe(heads), "left": len(order) - sum(map(len, heads.values()))}
        with masked(model.layers, heads):
            part.update(model.loss(), tests={})
            for split, baseline in baselines.items():
                part["tests"][split] = model.compare(model.tests[split]() if heads else baseline, baseline)
        return part

    for name, order in orders.items():
        for percent in PERCENTAGES:
            heads = least_important(order, percent)
            part = record.part(f"{prefix}{name}/{percent}", partial(measure, order, heads))
            if part["heads"] != describe(heads):  # random orders of other sites have the same names
                raise UserError(
                    f"{prefix}{name}/{percent} of the record must be without {describe(heads)}; got {part['heads']}: "
                    "repeat its --sites, or give another --json"
                )
            scores = ", ".join(f"{split} {_score(test):.2f}" for split, test in part["tests"].items())
            logger.info("%s, %d %%, %d heads left: %s", prefix + name, percent, part["left"], scores)


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
    curves = pruning_points(parts)
    first = next(iter(curves[names[0]].values()))
    for split in splits:
        rows[0] += [f"{metric(first['tests'][split])} {split}", "p"]
    for name in names:
        for percent, point in curves[name].items():
            row = [name, f"{percent} %", str(point["left"]), f"{point['loss']:.3f}"]
            for split in splits:
                score = point["tests"][split]
                row += [f"{_score(score):.2f}", f"{score['p_value']:.3f}"]
            rows.append(row)
    return pages.table(rows) + "\n"


def draw(record: Mapping[str, Any], path: PathLike, model: str, compared: Sequence[Mapping[str, Any]] = ()) -> None:
    """The score on each test set and the loss, against the percentage of heads pruned.

    ``model``: its name, for the title; ``compared``: records whose figures use the same axes.
    """
    curves = pruning_points(record["parts"])
    all_curves = [points for other in (record, *compared) for points in pruning_points(other["parts"]).values()]
    names = names_of_tests(record["settings"])
    tests = next(iter(all_curves[0].values()))["tests"]
    splits, name_of_score = list(tests), metric(next(iter(tests.values())))
    rankings = {"normalised": "importance normalised per layer", "raw": "raw importance"}
    ranking = rankings[record["settings"]["ranking"]]
    description = (
        f"Heads are masked in order of {ranking}, least important first, without training between "
        f"steps; one seed, no intervals. {name_of_score[0].upper()}{name_of_score[1:]}: higher is better; "
        "loss: lower is better."
    )
    constant = {split: record["parts"].get(f"whole/{split}", {}).get("constant") for split in splits}
    constant = {split: level for split, level in constant.items() if level is not None}
    sentences = {test["split"]: test["sentences"] for test in record["settings"].get("tests", ())}
    if any(sentences.values()):
        numbers = ", ".join(f"{number} of {names[split]}" for split, number in sentences.items())
        description += f" BLEU is computed on the first sentences only: {numbers}."
    subset = record["settings"]["loss"]
    loss = "validation loss, bits" if subset == "valid" else f"loss on {names.get(subset, subset)}, bits"
    by_importance = ", by importance" if any(RANDOM in curve for curve in curves) else ""
    legend = {name: _label(name, by_importance) for name in curves}
    labels = {label for label in legend.values() if label} | {"constant prediction" for _ in constant}
    columns = legend_columns(path, min(len(labels), LEGEND_COLUMNS))
    rows = rows_of(path, len(splits) + 1)
    panel = 2.4 if rows == 1 else 1.9  # inches
    with_legend = labels != {"all heads"}
    height = panel * rows + 0.1 + (legend_height(len(labels), columns) if with_legend else 0)
    with drawing(path, height, f"Pruning, {model}", description) as figure:
        grid = figure.subplots(rows, (len(splits) + 1) // rows, squeeze=False, sharex=True)
        axes = grid.flatten()
        for axis, split in zip(axes, [*splits, None], strict=True):
            for number, (name, points) in enumerate(curves.items()):
                axis.plot(list(points), _values(points, split), label=legend[name], **_look(name, number))
            with_split = [points for points in all_curves if split in (None, *next(iter(points.values()))["tests"])]
            values = [value for points in with_split for value in _values(points, split)]
            level = constant.get(split or "")
            if level is not None:
                values = [*values, level]
                axis.axhline(level, color=COLOURS["reference"], linestyle=":", label="constant prediction")
            margin = 0.05 * (max(values) - min(values)) or 1.0
            axis.set_ylim(min(values) - margin, max(values) + margin)
            axis.set_title(loss if split is None else f"{name_of_score}, {names.get(split, split)}")
        for axis in grid[-1]:
            axis.set_xlabel("heads pruned (%)")
        if with_legend:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=columns)


def _score(comparison: Mapping[str, Any]) -> float:
    return float(comparison["accuracy" if metric(comparison) == "accuracy" else "bleu"])


def _values(points: Points, split: Optional[str]) -> List[float]:
    """The score on a test split, or the loss (None)."""
    return [point["loss"] if split is None else _score(point["tests"][split]) for point in points.values()]


def _label(name: str, by_importance: str) -> Optional[str]:
    """Legend of a curve named ``encoder_cross``, ``checkpoint.pt/encoder_cross`` or ``random-1``.

    One for all random orders; ``by_importance`` ends that of all heads.
    """
    checkpoint, _, group = name.rpartition("/")
    if group.startswith(RANDOM):
        text = f"{checkpoint}: in random order" if checkpoint else "in random order"
        return text if group == f"{RANDOM}1" else None
    sites = [SITE_TITLES[site] for site in SITES if site in group.split("_")]
    label = f"all heads{by_importance}" if len(sites) == len(SITES) else f"only {' and '.join(sites)}"
    return f"{checkpoint}: {label}" if checkpoint else label


def _look(name: str, number: int) -> Dict[str, str]:
    """Fixed colours for sites; other colours for checkpoints; grey for random orders."""
    checkpoint, _, group = name.rpartition("/")
    if group.startswith(RANDOM):
        return {"color": COLOURS["reference"], "linestyle": "--"}
    if checkpoint:
        return other_look(number)
    return look(group if group in SITES else "all")

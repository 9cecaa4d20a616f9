"""Pruning ever more heads in the order of their importance (Michel, Levy, Neubig 2019, sections 4.2 and 5).

Of N heads at the chosen sites the ⌈N·i/10⌉ least important ones are masked, i = 0..9, and the model is scored.
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

from .ablation import TestSet, compare, evaluate, whole_model
from .attention_hooks import masked
from .figures import SITE_TITLES, test_names

logger = logging.getLogger(__name__)

PERCENTAGES = tuple(range(0, 100, 10))
_LEGEND_COLUMNS = 4


def ascending(importance: Mapping[str, float], sites: Sequence[str]) -> List[str]:
    """Heads (``E:1:3``, …) at the sites from the least to the most important; equal ones in the order of the model."""
    return sorted((head for head in importance if LETTERS[head[0]] in sites), key=importance.__getitem__)


def least(order: Sequence[str], percent: float) -> Heads:
    """The first ``percent`` of the heads, rounded up."""
    # 30 % of 10 are 3, although 10 · 30 / 100 in binary may come out a little larger
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
    """Fill the record: ``NAME/PERCENT`` with ``heads`` (masked), ``left``, ``loss``, and ``tests`` by split.

    Args:
        importance: head → importance. loss_split: where the loss is taken.
    """
    order = ascending(importance, sites)

    def measure(heads: Heads) -> Dict[str, Any]:
        with masked(attention_layers(trained.model), heads):
            mean = loss(trained, loss_split, max_tokens=tests[0].search.get("max_tokens", 4000))
        scores = {}
        for test in tests:
            whole = whole_model(trained, test, record)
            scores[test.split] = compare(evaluate(trained, test, heads) if heads else whole, whole)
        left = len(order) - sum(map(len, heads.values()))
        losses = {"loss": mean.loss, "nll_loss": mean.nll_loss}
        return {"heads": describe(heads), "left": left, **losses, "tests": scores}

    for percent in percentages:
        part = record.part(f"{name}/{percent}", partial(measure, least(order, percent)))
        scores = ", ".join(f"{split} {test['bleu']:.2f}" for split, test in part["tests"].items())
        logger.info("%s, %d %%, %d heads left: BLEU %s", name, percent, part["left"], scores)


def pruning_points(parts: Mapping[str, Any], name: str) -> Dict[int, Dict[str, Any]]:
    """Percentage → result, from the smallest on."""
    points = {}
    for key, value in parts.items():
        percent = key.removeprefix(f"{name}/")
        if percent.isdigit():
            points[int(percent)] = value
    return dict(sorted(points.items()))


def report(parts: Mapping[str, Any], names: Sequence[str], splits: Sequence[str]) -> str:
    """A table in Markdown: a row for each name and percentage."""
    rows = [["curve", "pruned", "heads left", "loss"]]
    for split in splits:
        rows[0] += [f"BLEU {split}", "p"]
    for name in names:
        for percent, point in pruning_points(parts, name).items():
            row = [name, f"{percent} %", str(point["left"]), f"{point['loss']:.3f}"]
            for split in splits:
                score = point["tests"][split]
                row += [f"{score['bleu']:.2f}", f"{score['p_value']:.3f}"]
            rows.append(row)
    return pages.table(rows) + "\n"


def draw(record: Mapping[str, Any], path: PathLike, model: str, compared: Sequence[Mapping[str, Any]] = ()) -> None:
    """BLEU of each test set, and the loss, against the share of heads pruned.

    Args:
        record: with settings and parts. model: its name, in the title. compared: records whose figures have the same
            axes.

    Raises:
        UserError: see :func:`.drawing`.
    """
    found = curves(record["parts"])
    names = test_names(record["settings"])
    splits = list(next(iter(next(iter(found.values())).values()))["tests"])
    rankings = {"normalised": "importance normalised in the layer", "raw": "importance that is not normalised"}
    ranking = rankings[record["settings"]["ranking"]]
    description = (
        f"Heads are masked in the order of their {ranking}, the least important first, without training between steps; "
        "one seed, no intervals. BLEU: higher is better; loss: lower is better."
    )
    lines = -(-len(found) // _LEGEND_COLUMNS)
    with drawing(path, 2.5 + 0.18 * lines, f"Pruning, {model}", description) as figure:
        axes = figure.subplots(1, len(splits) + 1, squeeze=False)[0]
        for axis, split in zip(axes, [*splits, None], strict=True):
            for number, (name, points) in enumerate(found.items()):
                axis.plot(list(points), _values(points, split), label=_label(name), **_look(name, number))
            every = [curve for each in (record, *compared) for curve in curves(each["parts"]).values()]
            values = [value for points in every for value in _values(points, split)]
            margin = 0.05 * (max(values) - min(values)) or 1.0
            axis.set_ylim(min(values) - margin, max(values) + margin)
            axis.set_title("validation loss, bits" if split is None else f"BLEU, {names.get(split, split)}")
            axis.set_xlabel("heads pruned (%)")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=min(len(found), _LEGEND_COLUMNS))


def curves(parts: Mapping[str, Any]) -> Dict[str, Dict[int, Dict[str, Any]]]:
    """Name → percentage → result, of all curves in a record."""
    names = dict.fromkeys(key.rpartition("/")[0] for key in parts if key.rpartition("/")[2].isdigit())
    return {name: pruning_points(parts, name) for name in names}


def _values(points: Mapping[int, Mapping[str, Any]], split: Optional[str]) -> List[float]:
    """BLEU on a test split, or the loss (None)."""
    return [point["loss"] if split is None else point["tests"][split]["bleu"] for point in points.values()]


def _label(name: str) -> str:
    """``checkpoint/encoder_cross`` in words."""
    checkpoint, _, group = name.rpartition("/")
    sites = [SITE_TITLES[site] for site in SITES if site in group.split("_")]
    words = "all heads" if len(sites) == len(SITES) else f"only {' and '.join(sites)}"
    return f"{checkpoint}: {words}" if checkpoint else words


def _look(name: str, number: int) -> Dict[str, str]:
    """A fixed colour for each site; checkpoints have no fixed ones."""
    checkpoint, _, group = name.rpartition("/")
    if checkpoint:
        return other_look(number)
    return look(group if group in SITES else "all")

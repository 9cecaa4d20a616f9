"""Pruning ever more heads in the order of their importance (Michel, Levy, Neubig 2019, sections 4.2 and 5).

Of N heads at the chosen sites the ⌈N·i/10⌉ least important ones are masked, i = 0..9, and the model is scored.
"""

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import LETTERS, Heads, describe, parse_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, loss

from .ablation import whole_model
from .evaluation import Search, TestSet, as_json, compare, evaluate
from .figures import drawing
from .taps import masked

PERCENTAGES = tuple(range(0, 100, 10))

#: called with the percentage, the heads masked and what came of it
Progress = Callable[[str, int, Heads, Dict[str, Any]], None]


def ascending(importance: Mapping[str, float], sites: Sequence[str]) -> List[str]:
    """Heads (``E:1:3``, …) at the sites from the least to the most important; equal ones in the order of the model."""
    chosen = tuple(f"{letter}:" for letter, site in LETTERS.items() if site in sites)
    heads = [head for head in importance if head.startswith(chosen)]
    return sorted(heads, key=lambda head: importance[head])


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
    loss_split: Optional[str],
    percentages: Sequence[int] = PERCENTAGES,
    search: Search = Search(),  # noqa: B008  (frozen)
    progress: Optional[Progress] = None,
) -> None:
    """Fill the record: ``NAME/PERCENT`` with ``heads`` (masked), ``left``, ``loss``, and ``tests`` by split.

    Args:
        importance: head → importance.
        loss_split: where the loss is taken; None: nowhere.
        progress: see :data:`Progress`.
    """
    layers = attention_layers(trained.model)
    order = ascending(importance, sites)
    for percent in percentages:
        heads = least(order, percent)

        def measure(heads: Heads = heads) -> Dict[str, Any]:
            found: Dict[str, Any] = {"heads": describe(heads), "left": len(order) - sum(map(len, heads.values()))}
            if loss_split is not None:
                with masked(layers, heads):
                    measured = loss(trained, loss_split, max_tokens=search.max_tokens)
                found.update(loss=measured.loss, nll_loss=measured.nll_loss)
            found["tests"] = {}
            for test in tests:
                whole = whole_model(trained, test, record, search)
                result = evaluate(trained, test, search, heads) if heads else whole
                found["tests"][test.split] = as_json(compare(result, whole), result.score)
            return found

        part = record.part(f"{name}/{percent}", measure)
        if progress is not None:
            progress(name, percent, heads, part)


def curve(parts: Mapping[str, Any], name: str) -> Dict[int, Dict[str, Any]]:
    """Percentage → result, from the smallest on."""
    prefix = f"{name}/"
    found = {key.removeprefix(prefix): value for key, value in parts.items() if key.startswith(prefix)}
    return {int(percent): found[percent] for percent in sorted(filter(str.isdigit, found), key=int)}


def curve_rows(parts: Mapping[str, Any], names: Sequence[str], splits: Sequence[str]) -> List[List[str]]:
    """A row for each name and percentage below a header."""
    rows = [["sites", "pruned", "heads left", "loss", *(c for split in splits for c in (f"BLEU {split}", "p"))]]
    for name in names:
        for percent, found in curve(parts, name).items():
            cells = [found["tests"][split] for split in splits]
            scores = [c for cell in cells for c in (f"{cell['bleu']:.2f}", f"{cell['p_value']:.3f}")]
            rows.append([name, f"{percent} %", str(found["left"]), f"{found['loss']:.3f}", *scores])
    return rows


def profile_rows(parts: Mapping[str, Any], names: Sequence[str], split: str) -> List[List[str]]:
    """BLEU of each checkpoint at each percentage, below a header; the parts are those of :func:`draw_profile`."""
    rows = [["checkpoint", "updates", *(f"{percent} %" for percent in PERCENTAGES)]]
    for name in names:
        scores = [f"{found['tests'][split]['bleu']:.2f}" for found in curve(parts, f"{name}/pruned").values()]
        rows.append([name, str(parts[f"{name}/updates"]), *scores])
    return rows


def draw_curves(parts: Mapping[str, Any], names: Sequence[str], splits: Sequence[str], path: PathLike) -> None:
    """BLEU of each test set, and the loss where it was taken, against the share of heads pruned, a line per name.

    Raises:
        PlotError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    from collab_fairseq.records.drawing import COLOURS, MARKS

    panels: List[Tuple[str, Callable[[Mapping[str, Any]], float]]] = [
        (f"BLEU, {split}", lambda found, split=split: found["tests"][split]["bleu"])  # type: ignore[misc]
        for split in splits
    ]
    if all("loss" in found for found in curve(parts, names[0]).values()):
        panels.append(("loss (base 2)", lambda found: found["loss"]))
    with drawing(path, (3.4 * len(panels), 3.0)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (label, value) in zip(axes, panels, strict=True):
            for number, name in enumerate(names):
                points = curve(parts, name)
                look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}
                axis.plot(list(points), [value(found) for found in points.values()], label=name, **look)
            axis.set_ylabel(label)
            axis.set_xlabel("heads pruned (%)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def draw_profile(parts: Mapping[str, Any], names: Sequence[str], split: str, path: PathLike) -> None:
    """BLEU relative to the unpruned model at every checkpoint, a line per share of heads pruned.

    Args:
        names: of the checkpoints; the parts have ``NAME/updates`` and the curve ``NAME/pruned``.

    Raises:
        PlotError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    from matplotlib import colormaps

    with drawing(path, (5.6, 3.4)) as figure:
        axis = figure.subplots()
        places = [parts[f"{name}/updates"] for name in names]
        for percent in sorted(set(curve(parts, f"{names[0]}/pruned")) - {0}):
            ratios = []
            for name in names:
                found = curve(parts, f"{name}/pruned")
                whole = found[0]["tests"][split]["bleu"]
                ratios.append(found[percent]["tests"][split]["bleu"] / whole if whole > 0 else float("nan"))
            axis.plot(places, ratios, marker="o", color=colormaps["viridis"](percent / 100), label=f"{percent} %")
        axis.set_xlabel("updates")
        axis.set_ylabel(f"BLEU / BLEU of all heads, {split}")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", title="pruned")

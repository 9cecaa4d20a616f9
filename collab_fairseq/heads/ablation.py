"""BLEU without some heads: without one, and with one alone in its layer (Michel, Levy, Neubig 2019, section 3)."""

import logging
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import Heads, head_name, in_model
from collab_fairseq.modules.settings import SITES
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import RawScore
from collab_fairseq.scoring.significance import paired_bootstrap
from collab_fairseq.scoring.sufficient_statistics import load
from collab_fairseq.translation import TrainedModel, score

from . import HeadsError
from .figures import DIVERGING, draw_grids
from .attention_hooks import counts, masked

logger = logging.getLogger(__name__)

#: mode → title of its figure. ``without``: that head is masked; ``only``: all others of its layer are
MODES = {"without": "without the head", "only": "only that head"}
#: differences with a p below are called significant, as in the paper
SIGNIFICANT = 0.05


class TestSet(NamedTuple):
    """A split of the data-bin, the file of its raw references, and how it is translated.

    Attributes:
        search: ``beam``, ``lenpen``, ``max_tokens``, ``sentences``: see :func:`collab_fairseq.translation.score`.
    """

    split: str
    references: PathLike
    search: Mapping[str, Any]


def evaluate(
    trained: TrainedModel, test: TestSet, without: Optional[Mapping[str, Sequence[int]]] = None
) -> Dict[str, Any]:
    """:func:`result` of the model without the heads named.

    Raises:
        ScoringError: another number of references than sentences.
    """
    with masked(attention_layers(trained.model), without or {}):
        return result(score(trained, test.split, test.references, **test.search))


def result(scored: RawScore) -> Dict[str, Any]:
    """``score`` (sacreBLEU), ``signature`` and ``statistics``, as records have them."""
    return {"score": scored.bleu.score, "signature": scored.bleu.signature, "statistics": scored.statistics}


def whole_model(trained: TrainedModel, test: TestSet, record: Record) -> Dict[str, Any]:
    """:func:`evaluate` with all heads, ``whole/SPLIT`` in the record."""
    return record.part(f"whole/{test.split}", lambda: evaluate(trained, test))  # type: ignore[no-any-return]


def compare(system: Mapping[str, Any], whole: Mapping[str, Any]) -> Dict[str, Any]:
    """``bleu``, ``difference`` to the whole model and ``p_value`` of the paired bootstrap, of two results."""
    rows, baseline = (load(found["statistics"], "sacreBLEU") for found in (system, whole))
    found = paired_bootstrap(rows, baseline)
    return {"bleu": system["score"], "difference": found.difference, "p_value": found.p_value}


def conditions(numbers: Mapping[str, int], mode: str, sites: Sequence[str] = SITES) -> Dict[str, Heads]:
    """Head → the heads to mask, for every head at the sites; ``only`` leaves out layers of a single head."""
    found: Dict[str, Heads] = {}
    for place, number in numbers.items():
        if place.split(".")[0] not in sites or (mode == "only" and number == 1):
            continue
        for head in range(number):
            others = tuple(other for other in range(number) if other != head)
            found[head_name(place, head)] = {place: (head,) if mode == "without" else others}
    return found


def ablate(trained: TrainedModel, tests: Sequence[TestSet], record: Record, **options: Any) -> None:
    """Fill the record: ``whole/SPLIT``, and ``SPLIT/MODE/HEAD`` with ``bleu``, ``difference`` and ``p_value``.

    ``options``: of :func:`measure_all`.
    """
    for test in tests:
        whole = whole_model(trained, test, record)

        def measure(heads: Heads, test: TestSet = test, whole: Mapping[str, Any] = whole) -> Dict[str, Any]:
            return compare(evaluate(trained, test, heads), whole)

        measure_all(record, test.split, counts(attention_layers(trained.model)), measure, **options)


def measure_all(
    record: Record,
    split: str,
    numbers: Mapping[str, int],
    measure: Callable[[Heads], Dict[str, Any]],
    *,
    modes: Sequence[str] = tuple(MODES),
    sites: Sequence[str] = SITES,
) -> None:
    """Fill the record with ``SPLIT/MODE/HEAD``: what ``measure`` says of a model without the heads that it is given.

    Args:
        numbers: place → number of its heads. modes: among :data:`MODES`. sites: whose heads.

    Raises:
        HeadsError: there is nothing to mask.
    """
    asked = {mode: conditions(numbers, mode, sites) for mode in modes}
    if not any(asked.values()):
        raise HeadsError("no layer has a second head, so that there is nothing to mask for a head alone")
    for mode, masks in asked.items():
        for head, heads in masks.items():
            found = record.part(f"{split}/{mode}/{head}", partial(measure, heads))
            told = f"{found['difference']:+.2f} {metric(found)}, p = {found['p_value']:.3f}"
            logger.info("%s %s %s: %s", split, mode, head, told)


def splits(parts: Mapping[str, Any]) -> List[str]:
    """The test sets that were scored with all heads."""
    return [key.removeprefix("whole/") for key in parts if key.startswith("whole/") and key != "whole/loss"]


def results(parts: Mapping[str, Any], split: str, mode: str) -> Dict[str, Dict[str, Any]]:
    """Head → its result, of one split and mode, in the order of the model."""
    prefix = f"{split}/{mode}/"
    heads = [key.removeprefix(prefix) for key in parts if key.startswith(prefix)]
    return {head: parts[prefix + head] for head in sorted(heads, key=in_model)}


def correlation(parts: Mapping[str, Any], splits: Sequence[str], mode: str) -> Dict[str, float]:
    """Pearson's r of the heads' differences on two test sets: of each site's heads (by letter) and of ``all``."""
    first, second = (results(parts, split, mode) for split in splits)
    found = {}
    for name in ("all", *dict.fromkeys(head[0] for head in first)):
        heads = [head for head in first if name in ("all", head[0])]
        pairs = numpy.array([[side[head]["difference"] for head in heads] for side in (first, second)])
        if len(heads) > 2 and (pairs.std(axis=1) > 0).all():
            found[name] = float(numpy.corrcoef(pairs)[0, 1])
    return found


def significant(found: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Heads whose difference has a p below :data:`SIGNIFICANT`."""
    return [head for head, result in found.items() if result["p_value"] < SIGNIFICANT]


def metric(found: Mapping[str, Any]) -> str:
    """What the differences of a result are in."""
    return "accuracy" if "accuracy" in found else "BLEU"


def report(parts: Mapping[str, Any], splits: Sequence[str], mode: str) -> str:
    """A table of all heads in Markdown, and sentences on each test set."""
    found = {split: results(parts, split, mode) for split in splits}
    rows = [["head" if mode == "without" else "only head", *(c for split in splits for c in (split, "p"))]]
    for head in found[splits[0]]:
        cells = [found[split][head] for split in splits]
        rows.append([head, *(c for cell in cells for c in (f"{cell['difference']:+.2f}", f"{cell['p_value']:.3f}"))])
    text = pages.table(rows) + "\n"
    for split in splits:
        names, scores = significant(found[split]), metric(next(iter(found[split].values()), {}))
        better = sum(found[split][head]["difference"] > 0 for head in names)
        text += (
            f"\n{split}: {scores} {parts[f'whole/{split}']['score']:.2f} with all heads; {len(names)} of "
            f"{len(found[split])} differences have p < {SIGNIFICANT}, {better} of them improve it\n"
        )
    if len(splits) == 2:
        values = correlation(parts, splits, mode)
        text += f"correlation of the two: {', '.join(f'{k} {v:.2f}' for k, v in values.items())}\n"
    return text + "\n"


def draw(parts: Mapping[str, Any], split: str, modes: Sequence[str], path: PathLike) -> None:
    """The differences as heat maps; a star: significant. Raises PlotError as :func:`.drawing` does."""
    found = {mode: results(parts, split, mode) for mode in modes}
    panels = {MODES[mode]: {head: r["difference"] for head, r in heads.items()} for mode, heads in found.items()}
    largest = max((abs(value) for values in panels.values() for value in values.values()), default=1.0)
    label = f"difference in {metric(next(iter(found[modes[0]].values()), {}))}, {split}"
    marked = [significant(heads) for heads in found.values()]
    draw_grids(panels, path, label=label, limits=(-largest, largest), colours=DIVERGING, form=".1f", marked=marked)

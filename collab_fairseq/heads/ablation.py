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
from fairseq_modern.errors import UserError

from .attention_hooks import Layers, counts, masked
from .figures import Column, draw_grids, test_names

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
        UserError: another number of references than sentences.
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
    rows, baseline = (load(result["statistics"], "sacreBLEU") for result in (system, whole))
    comparison = paired_bootstrap(rows, baseline)
    return {"bleu": system["score"], "difference": comparison.difference, "p_value": comparison.p_value}


def conditions(numbers: Mapping[str, int], mode: str, sites: Sequence[str] = SITES) -> Dict[str, Heads]:
    """Head → the heads to mask, for every head at the sites; ``only`` leaves out layers of a single head."""
    to_mask: Dict[str, Heads] = {}
    for layer_id, number in numbers.items():
        if layer_id.split(".")[0] not in sites or (mode == "only" and number == 1):
            continue
        for head in range(number):
            others = tuple(other for other in range(number) if other != head)
            to_mask[head_name(layer_id, head)] = {layer_id: (head,) if mode == "without" else others}
    return to_mask


def ablate(trained: TrainedModel, tests: Sequence[TestSet], record: Record, **options: Any) -> None:
    """Fill the record with :func:`ablate_split` of every test set; ``options``: of that."""
    for test in tests:
        ablate_split(
            record, test.split, attention_layers(trained.model), partial(evaluate, trained, test), compare, **options
        )


def ablate_split(
    record: Record,
    split: str,
    layers: Layers,
    evaluate: Callable[[], Dict[str, Any]],
    compare: Callable[[Dict[str, Any], Dict[str, Any]], Dict[str, Any]],
    *,
    modes: Sequence[str] = tuple(MODES),
    sites: Sequence[str] = SITES,
) -> None:
    """Fill the record: ``whole/SPLIT``, and ``SPLIT/MODE/HEAD`` with ``difference``, ``p_value`` and a score.

    Args:
        layers: of the model, whatever library runs it.
        evaluate: computes the result of the model as it is. compare: two results, the second with all heads.
        modes: among :data:`MODES`. sites: whose heads.

    Raises:
        UserError: there is nothing to mask.
    """
    masks = {mode: conditions(counts(layers), mode, sites) for mode in modes}
    if not any(masks.values()):
        raise UserError("no layer has a second head, so that there is nothing to mask for a head alone")
    whole = record.part(f"whole/{split}", evaluate)

    def measure(heads: Heads) -> Dict[str, Any]:
        with masked(layers, heads):
            return compare(evaluate(), whole)

    for mode in modes:
        for head, heads in masks[mode].items():
            part = record.part(f"{split}/{mode}/{head}", partial(measure, heads))
            difference = f"{part['difference']:+.2f} {metric(part)}, p = {part['p_value']:.3f}"
            logger.info("%s %s %s: %s", split, mode, head, difference)


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
    values = {}
    for name in ("all", *dict.fromkeys(head[0] for head in first)):
        heads = [head for head in first if name in ("all", head[0])]
        pairs = numpy.array([[side[head]["difference"] for head in heads] for side in (first, second)])
        if len(heads) > 2 and (pairs.std(axis=1) > 0).all():
            values[name] = float(numpy.corrcoef(pairs)[0, 1])
    return values


def significant(differences: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Heads whose difference has a p below :data:`SIGNIFICANT`."""
    return [head for head, result in differences.items() if result["p_value"] < SIGNIFICANT]


def metric(result: Mapping[str, Any]) -> str:
    """What the differences of a result are in."""
    return "accuracy" if "accuracy" in result else "BLEU"


def report(parts: Mapping[str, Any], splits: Sequence[str], mode: str) -> str:
    """A table of all heads in Markdown, and sentences on each test set."""
    differences = {split: results(parts, split, mode) for split in splits}
    rows = [["head" if mode == "without" else "only head"]]
    for split in splits:
        rows[0] += [split, "p"]
    for head in differences[splits[0]]:
        row = [head]
        for split in splits:
            cell = differences[split][head]
            row += [f"{cell['difference']:+.2f}", f"{cell['p_value']:.3f}"]
        rows.append(row)
    text = pages.table(rows) + "\n"
    for split in splits:
        heads = significant(differences[split])
        scores = metric(next(iter(differences[split].values()), {}))
        better = sum(differences[split][head]["difference"] > 0 for head in heads)
        text += (
            f"\n{split}: {scores} {parts[f'whole/{split}']['score']:.2f} with all heads; {len(heads)} of "
            f"{len(differences[split])} differences have p < {SIGNIFICANT}, {better} of them improve it\n"
        )
    if len(splits) == 2:
        values = correlation(parts, splits, mode)
        text += f"correlation of the two: {', '.join(f'{k} {v:.2f}' for k, v in values.items())}\n"
    return text + "\n"


def draw(record: Mapping[str, Any], path: PathLike, model: str, compared: Sequence[Mapping[str, Any]] = ()) -> None:
    """The differences on the first test set as heat maps; a frame: significant.

    Args:
        record: with settings and parts. model: its name, in the title. compared: records whose figures have the same
            scales.

    Raises:
        UserError: see :func:`.drawing`.
    """
    parts, (split, *_) = record["parts"], splits(record["parts"])
    columns: List[Column] = []
    for mode, title in MODES.items():
        heads = results(parts, split, mode)
        if heads:
            of_all = [results(each["parts"], splits(each["parts"])[0], mode) for each in (record, *compared)]
            largest = max(abs(result["difference"]) for heads in of_all for result in heads.values()) or 1.0
            differences = {head: result["difference"] for head, result in heads.items()}
            label = f"difference in {metric(next(iter(heads.values())))}, {title}"
            columns.append(Column(label, differences, largest, significant(heads), signed=True))
    name = test_names(record["settings"]).get(split, split)
    description = (
        f"Differences from the model with all heads on {name}; above 0: better without. Frames: p < {SIGNIFICANT} for "
        "this head alone, one seed. The two colour scales differ."
    )
    draw_grids(columns, path, f"Ablation of single heads, {model}", description)

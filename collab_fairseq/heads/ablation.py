"""Ablation of heads: BLEU without each head, or with only that head in its layer.

Michel, Levy, Neubig (2019), https://arxiv.org/abs/1905.10650, section 3. Masking head h sets its multiplier ξ_h to 0.
"""

import logging
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy

from collab_fairseq.attention import SITES
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.head_names import Heads, head_name, model_order
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import RawScore
from collab_fairseq.scoring.significance import paired_bootstrap
from collab_fairseq.scoring.sufficient_statistics import load
from collab_fairseq.translation import TrainedModel, loss, score
from fairseq_modern.errors import UserError

from .attention_hooks import Layers, head_counts, masked
from .figures import Column, draw_grids, names_of_tests, panels_of

logger = logging.getLogger(__name__)

#: mode → its heading in figures. ``without`` masks the head, ``only`` masks all other heads of its layer
MODES = {"without": "without the head", "only": "only that head in its layer"}
#: differences with a smaller p value are called significant, as in the paper
SIGNIFICANT = 0.05


class Evaluated(NamedTuple):
    """A model whose heads can be masked, and how it is measured in its present state.

    Attributes:
        layers: layer_id → attention. tests: split → computes the result. loss: computes ``loss``, in bits.
        compare: compares a result with the result of all heads: ``difference``, ``p_value`` and a score.
    """

    layers: Layers
    tests: Mapping[str, Callable[[], Dict[str, Any]]]
    compare: Callable[[Mapping[str, Any], Mapping[str, Any]], Dict[str, Any]]
    loss: Callable[[], Dict[str, float]]

    def with_all_heads(self, record: Record, prefix: str = "") -> Dict[str, Any]:
        """Split → its result, which is ``whole/SPLIT`` in the record, after a prefix."""
        return {split: record.part(f"{prefix}whole/{split}", evaluate) for split, evaluate in self.tests.items()}


class TestSet(NamedTuple):
    """A split of the data-bin, its raw references, and the search.

    Attributes:
        search: ``beam``, ``lenpen``, ``max_tokens``, ``sentences``, as in :func:`collab_fairseq.translation.score`.
    """

    split: str
    references: PathLike
    search: Mapping[str, Any]


def evaluate(trained: TrainedModel, test: TestSet) -> Dict[str, Any]:
    """:func:`bleu_result` of the model in its present state."""
    return bleu_result(score(trained, test.split, test.references, **test.search))


def bleu_result(scored: RawScore) -> Dict[str, Any]:
    """``score`` (sacreBLEU), ``signature`` and the sentence ``statistics``, as stored in records."""
    return {"score": scored.bleu.score, "signature": scored.bleu.signature, "statistics": scored.statistics}


def evaluated(trained: TrainedModel, tests: Sequence[TestSet], loss_split: str = "valid") -> Evaluated:
    """A fairseq model with its BLEU on the test sets, and its loss on a split."""

    def losses() -> Dict[str, float]:
        mean = loss(trained, loss_split, max_tokens=tests[0].search.get("max_tokens", 4000))
        return {"loss": mean.loss, "nll_loss": mean.nll_loss}

    evaluations = {test.split: partial(evaluate, trained, test) for test in tests}
    return Evaluated(attention_layers(trained.model), evaluations, compare, losses)


def compare(system: Mapping[str, Any], baseline: Mapping[str, Any]) -> Dict[str, Any]:
    """``bleu``, ``difference`` to the baseline, and ``p_value`` of the paired bootstrap, of two results."""
    statistics = load(system["statistics"], "sacreBLEU")
    comparison = paired_bootstrap(statistics, load(baseline["statistics"], "sacreBLEU"))
    return {"bleu": system["score"], "difference": comparison.difference, "p_value": comparison.p_value}


def heads_to_mask(counts: Mapping[str, int], mode: str, sites: Sequence[str] = SITES) -> Dict[str, Heads]:
    """Head → heads to mask, of layers with these ``counts`` of heads; ``only`` skips layers with a single head."""
    to_mask: Dict[str, Heads] = {}
    for layer_id, count in counts.items():
        if layer_id.split(".")[0] not in sites or (mode == "only" and count == 1):
            continue
        for head in range(count):
            others = tuple(other for other in range(count) if other != head)
            to_mask[head_name(layer_id, head)] = {layer_id: (head,) if mode == "without" else others}
    return to_mask


def ablate(
    record: Record, model: Evaluated, *, modes: Sequence[str] = tuple(MODES), sites: Sequence[str] = SITES
) -> None:
    """Add ``whole/SPLIT`` and, for every mode and head, ``SPLIT/MODE/HEAD`` to the record, for every test set."""
    masks = {mode: heads_to_mask(head_counts(model.layers), mode, sites) for mode in modes}
    if not any(masks.values()):
        raise UserError("all layers have a single head: --mode only has no heads to mask")

    def measure(split: str, baseline: Dict[str, Any], heads: Heads) -> Dict[str, Any]:
        with masked(model.layers, heads):
            return model.compare(model.tests[split](), baseline)

    for split, baseline in model.with_all_heads(record).items():
        for mode in modes:
            for head, heads in masks[mode].items():
                part = record.part(f"{split}/{mode}/{head}", partial(measure, split, baseline, heads))
                difference = f"{part['difference']:+.2f} {metric(part)}, p = {part['p_value']:.3f}"
                logger.info("%s %s %s: %s", split, mode, head, difference)


def splits(parts: Mapping[str, Any]) -> List[str]:
    """The test sets in a record."""
    return [key.removeprefix("whole/") for key in parts if key.startswith("whole/") and key != "whole/loss"]


def results(parts: Mapping[str, Any], split: str, mode: str) -> Dict[str, Dict[str, Any]]:
    """Head → result on a split in a mode, in the order of the model."""
    prefix = f"{split}/{mode}/"
    heads = [key.removeprefix(prefix) for key in parts if key.startswith(prefix)]
    return {head: parts[prefix + head] for head in sorted(heads, key=model_order)}


def correlation(parts: Mapping[str, Any], splits: Sequence[str], mode: str) -> Dict[str, float]:
    """Pearson's r of the differences on two test sets, over the heads of each site (by letter) and of ``all``.

    Only heads with results on both test sets count.
    """
    first, second = (results(parts, split, mode) for split in splits)
    values = {}
    for name in ("all", *dict.fromkeys(head[0] for head in first)):
        heads = [head for head in first if head in second and name in ("all", head[0])]
        pairs = numpy.array([[side[head]["difference"] for head in heads] for side in (first, second)])
        if len(heads) > 2 and (pairs.std(axis=1) > 0).all():
            values[name] = float(numpy.corrcoef(pairs)[0, 1])
    return values


def significant(differences: Mapping[str, Mapping[str, Any]]) -> List[str]:
    return [head for head, result in differences.items() if result["p_value"] < SIGNIFICANT]


def metric(result: Mapping[str, Any]) -> str:
    return "accuracy" if "accuracy" in result else "BLEU"


def report(parts: Mapping[str, Any], splits: Sequence[str], mode: str) -> str:
    """Markdown table of all heads, a summary of each test set, and the correlation of two test sets.

    A test set lacks heads if the analysis was interrupted before it and resumed at fewer sites.
    """
    differences = {split: results(parts, split, mode) for split in splits}
    rows = [["head" if mode == "without" else "only head"]]
    for split in splits:
        rows[0] += [split, "p"]
    measured = {head for heads in differences.values() for head in heads}
    if not measured:  # every layer has a single head
        return ""
    for head in sorted(measured, key=model_order):
        row = [head]
        for split in splits:
            result = differences[split].get(head)
            row += [f"{result['difference']:+.2f}", f"{result['p_value']:.3f}"] if result else ["–", "–"]
        rows.append(row)
    lines = [pages.table(rows), ""]
    for split, heads in differences.items():
        changed = significant(heads)
        name = metric(next(iter(heads.values()), {}))
        score = parts[f"whole/{split}"]["score"]
        better = sum(heads[head]["difference"] > 0 for head in changed)
        lines.append(
            f"- {split}: {name} {score:.2f} with all heads; {len(changed)} of {len(heads)} differences have "
            f"p < {SIGNIFICANT}, {better} of them positive"
        )
    if len(splits) == 2:
        values = correlation(parts, splits, mode)
        shown = ", ".join(f"{name} {r:.2f}" for name, r in values.items())
        lines.append(f"- correlation of the differences on the two sets (Pearson): {shown}")
    return "\n".join(lines) + "\n\n"


def draw(record: Mapping[str, Any], path: PathLike, model: str, compared: Sequence[Mapping[str, Any]] = ()) -> None:
    """Heat maps of the differences on the first test set; significant ones have a frame.

    ``model``: its name, for the title; ``compared``: records whose figures use the same scales.
    """
    split = splits(record["parts"])[0]
    columns: List[Column] = []
    for mode, heading in MODES.items():
        heads = results(record["parts"], split, mode)
        if not heads:
            continue
        differences = {head: result["difference"] for head, result in heads.items()}
        largest = max(_largest_difference(other["parts"], mode) for other in (record, *compared)) or 1.0
        label = f"difference in {metric(next(iter(heads.values())))}"
        columns.append(Column(heading, label, panels_of(differences, significant(heads)), largest, signed=True))
    name = names_of_tests(record["settings"]).get(split, split)
    description = (
        f"Differences from the model with all heads on {name}; above 0: better than with all heads. "
        f"Framed: p < {SIGNIFICANT} for this head alone, one seed."
    )
    if len(columns) > 1:
        description += " The two colour scales differ."
    draw_grids(columns, path, f"Ablation of single heads, {model}", description)


def _largest_difference(parts: Mapping[str, Any], mode: str) -> float:
    heads = results(parts, splits(parts)[0], mode)
    return max((abs(result["difference"]) for result in heads.values()), default=0.0)

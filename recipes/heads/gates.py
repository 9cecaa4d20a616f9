"""Training with stochastic gates at several penalties: loss on valid and BLEU without the closed heads."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from collab_fairseq import checkpoints, translation
from collab_fairseq.heads import ablation, removal
from collab_fairseq.heads.ablation import TestSet, compare, evaluate
from collab_fairseq.heads.figures import names_of_tests
from collab_fairseq.modules.head_names import LETTERS
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, SMALL, drawing, look, rows_of
from collab_fairseq.records.record import Record

logger = logging.getLogger("recipe")


def score(
    source: translation.TrainedModel,
    tests: Sequence[TestSet],
    record: Record,
    penalties: Sequence[str],
    train: Callable[[str], Path],
) -> None:
    """Add the source model, and for each penalty λ the gates and the model without closed heads, to the record.

    `train` trains the source model with a penalty that the record lacks, and returns the last checkpoint.
    """
    baselines = ablation.evaluated(source, tests).with_all_heads(record)
    record.part("whole/loss", lambda: translation.loss(source, "valid").loss)

    def measure(penalty: str) -> Dict[str, Any]:
        gated = train(penalty)
        state = checkpoints.load(gated)
        result = removal.remove_closed_heads(state, empty_layers=True)
        finalised = gated.with_name("finalised.pt")
        checkpoints.save(result.state, finalised)
        data, device = source.cfg.task.data, str(source.device)
        smaller = translation.load_model(finalised, data, device=device, seed=source.seed)
        smaller = replace(smaller, criterion=source.criterion)  # training with gates has label smoothing
        return {
            "checkpoint": checkpoints.file_setting(gated),
            "gates": {head: gate._asdict() for head, gate in removal.read_gates(state).items()},
            "attention_parameters": [result.parameters_before, result.parameters_after],
            "loss": translation.loss(smaller, "valid").loss,
            "tests": {test.split: compare(evaluate(smaller, test), baselines[test.split]) for test in tests},
        }

    for penalty in penalties:
        logger.info("gates, penalty %s", penalty)
        record.part(penalty, partial(measure, penalty))


def penalties_of(parts: Dict[str, Any]) -> List[str]:
    """The penalties in the record, in ascending order."""
    return sorted((key for key in parts if "/" not in key), key=float)


def report(parts: Dict[str, Any]) -> str:
    """Markdown table with a row for the source model and for every penalty."""
    splits = ablation.splits(parts)
    header = ["λ", "heads left: encoder", "encoder–decoder", "decoder", "loss"]
    before = ["before", "all", "all", "all", f"{parts['whole/loss']:.3f}"]
    for split in splits:
        header += [f"BLEU {split}", "p"]
        before += [f"{parts[f'whole/{split}']['score']:.2f}", ""]
    rows = [header, before]
    for penalty in penalties_of(parts):
        part = parts[penalty]
        row = [penalty]
        for letter in LETTERS:
            is_open = [gate["is_open"] for head, gate in part["gates"].items() if head.startswith(letter)]
            row.append(f"{sum(is_open)} of {len(is_open)}" if is_open else "all")
        row.append(f"{part['loss']:.3f}")
        for split in splits:
            test = part["tests"][split]
            row += [f"{test['bleu']:.2f}", f"{test['p_value']:.3f}"]
        rows.append(row)
    return pages.table(rows) + "\n"


def draw(record: Dict[str, Any], path: Path) -> None:
    """BLEU on every test set against the number of open heads."""
    parts, names = record["parts"], names_of_tests(record["settings"])
    splits = ablation.splits(parts)
    description = "Points: the model after training with gates, penalty λ, one seed, no intervals. Higher is better."
    rows = rows_of(path, len(splits))
    with drawing(path, 2.8 * rows, "BLEU without the heads whose gates are closed", description) as figure:
        axes = figure.subplots(rows, len(splits) // rows, squeeze=False).flatten()
        for axis, split in zip(axes, splits, strict=True):
            for penalty in penalties_of(parts):
                heads_left = sum(gate["is_open"] for gate in parts[penalty]["gates"].values())
                point = (heads_left, parts[penalty]["tests"][split]["bleu"])
                axis.plot(*point, **look("all"))
                axis.annotate(f"λ = {penalty}", point, xytext=(4, 4), textcoords="offset points", fontsize=SMALL)
            before = parts[f"whole/{split}"]["score"]
            axis.axhline(before, color=COLOURS["reference"], linestyle=":", label="before")
            axis.margins(0.2)
            axis.set_xlabel("heads left")
            axis.set_title(f"BLEU, {names.get(split, split)}")
            axis.legend(loc="lower right")

"""Score what training with gates leaves: loss on valid and BLEU of the model without closed heads."""

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli import heads_options as shared
from collab_fairseq.heads import ablation, removal
from collab_fairseq.heads.ablation import compare, evaluate, whole_model
from collab_fairseq.heads.figures import test_names
from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, SMALL, drawing, look


def score(args: argparse.Namespace, penalty: str, updates: int, train: Callable[[], Path]) -> str:
    """Add ``penalty`` to the record: gates, loss, and each test set's BLEU and difference to the model without gates.

    Args:
        args: of `collab heads ablate`, with the checkpoint that training begins with.
        penalty: λ. updates: of the training run.
        train: trains with gates, unless the record has the penalty; returns the last checkpoint.

    Returns:
        The table of all penalties in the record, in Markdown; their figure is drawn.
    """
    tests, source = shared.read_tests(args), shared.load(args)
    settings = {**shared.test_settings(args, source), "updates": updates}
    record = shared.make_record(args, "gates", settings, source.device, program="recipes/heads/run.sh")
    whole = {test.split: whole_model(source, test, record) for test in tests}
    record.part("whole/loss", lambda: translation.loss(source, "valid").loss)

    def measure() -> Dict[str, Any]:
        trained = train()
        state = checkpoints.load(trained)
        result = removal.finalise(state, empty_layers=True)
        finalised = trained.with_name("finalised.pt")
        checkpoints.save(result.state, finalised)
        smaller = shared.load(args, str(finalised))
        return {
            "checkpoint": checkpoints.file_setting(trained),
            "gates": {head: gate._asdict() for head, gate in removal.read_gates(state).items()},
            "attention_parameters": [result.parameters_before, result.parameters_after],
            "loss": translation.loss(smaller, "valid").loss,
            "tests": {test.split: compare(evaluate(smaller, test), whole[test.split]) for test in tests},
        }

    record.part(penalty, measure)
    draw(record.content, args.figure)
    return report(record.parts)


def penalties(parts: Dict[str, Any]) -> List[str]:
    """The penalties in the record, the smallest first."""
    return sorted((key for key in parts if "/" not in key), key=float)


def report(parts: Dict[str, Any]) -> str:
    """A row for the model without gates and for every penalty."""
    splits = ablation.splits(parts)
    header = ["λ", "heads left: encoder", "encoder–decoder", "decoder", "loss"]
    before = ["before", "all", "all", "all", f"{parts['whole/loss']:.3f}"]
    for split in splits:
        header += [f"BLEU {split}", "p"]
        before += [f"{parts[f'whole/{split}']['score']:.2f}", ""]
    rows = [header, before]
    for penalty in penalties(parts):
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


def draw(record: Dict[str, Any], path: str) -> None:
    """BLEU of every test set against the heads left."""
    parts, names = record["parts"], test_names(record["settings"])
    splits = ablation.splits(parts)
    description = "Points: the model after training with gates, penalty λ, one seed, no intervals. Higher is better."
    with drawing(path, 2.8, "BLEU without the heads that gates have closed", description) as figure:
        for axis, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
            for penalty in penalties(parts):
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

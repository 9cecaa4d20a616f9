"""Score what a training with gates has left: loss on valid and BLEU of the model without closed heads.

Adds them to the record, which has those of the model that the training began with; prints the record's table, and draws
BLEU against the heads left.
"""

import argparse
from pathlib import Path
from typing import Any, Dict

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli import heads_options as shared
from collab_fairseq.heads import ablation, removal
from collab_fairseq.heads.ablation import compare, evaluate, whole_model
from collab_fairseq.modules.heads import LETTERS
from collab_fairseq.records.drawing import COLOURS, MARKS, drawing
from collab_fairseq.records.record import load


def score(args: argparse.Namespace, model: str, penalty: str, updates: int) -> None:
    """Add ``penalty`` to the record: gates, loss, and each test set's BLEU and difference to the model as it was.

    Args:
        args: of `collab heads ablate`, the checkpoint being the last of the training. model: what that began with.
        penalty: λ. updates: of the training.
    """
    tests, source = shared.read_tests(args), shared.load(args, model)
    settings = {"checkpoint": checkpoints.file_setting(model), **shared.test_settings(args, source)}
    settings["updates"] = updates
    record = shared.make_record(args, "gates", settings, source.device, program="recipes/heads/run.sh")
    whole = {test.split: whole_model(source, test, record) for test in tests}
    record.part("whole/loss", lambda: translation.loss(source, "valid").loss)

    def measure() -> Dict[str, Any]:
        state, finalised = checkpoints.load(args.checkpoint), Path(args.checkpoint).with_name("finalised.pt")
        result = removal.finalise(state, empty_layers=True)
        checkpoints.save(result.state, finalised)
        left = shared.load(args, str(finalised))
        return {
            "checkpoint": checkpoints.file_setting(args.checkpoint),
            "gates": {head: gate._asdict() for head, gate in removal.read_gates(state).items()},
            "attention_parameters": [result.parameters_before, result.parameters_after],
            "loss": translation.loss(left, "valid").loss,
            "tests": {test.split: compare(evaluate(left, test), whole[test.split]) for test in tests},
        }

    record.part(penalty, measure)
    show(args.json, args.figure)


def show(path: str, figure_path: str) -> None:
    """A row and a point for every λ, and the model as it was."""
    parts = load(path, "heads", "gates")["parts"]
    splits, penalties = ablation.splits(parts), sorted((key for key in parts if "/" not in key), key=float)
    scored = [c for split in splits for c in (f"BLEU {split}", "p")]
    whole = [c for split in splits for c in (f"{parts[f'whole/{split}']['score']:.2f}", "")]
    rows = [["λ", "heads left: encoder", "encoder–decoder", "decoder", "loss", *scored],
            ["before", "all", "all", "all", f"{parts['whole/loss']:.3f}", *whole]]  # fmt: skip
    for penalty in penalties:
        found, left = parts[penalty], []
        for letter in LETTERS:
            own = [gate["is_open"] for head, gate in found["gates"].items() if head.startswith(letter)]
            left.append(f"{sum(own)} of {len(own)}" if own else "all")
        cells = [c for s in splits for c in (f"{found['tests'][s]['bleu']:.2f}", f"{found['tests'][s]['p_value']:.3f}")]
        rows.append([penalty, *left, f"{found['loss']:.3f}", *cells])
    shared.show_table(rows)
    with drawing(figure_path, (3.4 * len(splits), 3.0)) as figure:
        for axis, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
            for penalty in penalties:
                left_over = sum(gate["is_open"] for gate in parts[penalty]["gates"].values())
                point = (left_over, parts[penalty]["tests"][split]["bleu"])
                axis.plot(*point, marker=MARKS[0], color=COLOURS[0])
                axis.annotate(f"λ = {penalty}", point, xytext=(4, 4), textcoords="offset points", fontsize=7)
            axis.axhline(parts[f"whole/{split}"]["score"], color="#777777", linestyle=":", label="before")
            axis.margins(0.2)
            axis.set_xlabel("heads left")
            axis.set_ylabel(f"BLEU, {split}")
            axis.legend(loc="lower right")

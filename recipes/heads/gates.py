#!/usr/bin/env python3
"""What the study of gates needs besides fairseq-train and `collab heads`.

    gates.py collaborative CHECKPOINT      prints yes where a layer of the model has collaborative heads
    gates.py score CHECKPOINT --model FILE --data DIR --reference SPLIT=FILE --penalty X --finalised FILE --output FILE
                                           loss on valid and BLEU of the model without closed heads, beside those of the
                                           model that the training began with; adds to the record
    gates.py draw RECORD FIGURE            BLEU against the heads left
"""

import argparse
import importlib
import logging
import shlex
import sys
from typing import Any, Dict

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.cli import heads_options as shared
from collab_fairseq.cli import options
from collab_fairseq.heads import ablation, closing
from collab_fairseq.heads.evaluation import as_json, compare, evaluate
from collab_fairseq.heads.redundancy import read_weights
from collab_fairseq.records.drawing import COLOURS, MARKS, drawing
from collab_fairseq.records.record import Record, load
from collab_fairseq.translation.load import run_state

importlib.import_module("collab_fairseq.models")  # so that fairseq knows the presets' names


def score(args: argparse.Namespace) -> None:
    """Add ``PENALTY`` to the record: gates, loss, and each test set's BLEU and difference to the model as it was."""
    device = options.choose_device(args)
    source = translation.load_model(args.model, args.data, device=device, seed=args.seed)
    tests = shared.read_tests(args)
    settings = {
        "checkpoint": file_setting(args.model),
        **shared.test_settings(args, source),
        "updates": args.updates,
    }
    command = shlex.join(["recipes/heads/gates.py", *sys.argv[1:]])
    kind = "gpu" if device.startswith("cuda") else "cpu"
    record = Record("heads", "gates", command, settings, args.output, device=kind, threads=torch.get_num_threads())
    search = shared.search_of(args)
    whole = {test.split: ablation.whole_model(source, test, record, search) for test in tests}
    record.part("whole/loss", lambda: translation.loss(source, "valid").loss)

    def measure() -> Dict[str, Any]:
        state = checkpoints.load(args.checkpoint)
        gates = closing.read_gates(state)
        result = closing.finalise(state, empty_layers=True)
        checkpoints.save(result.state, args.finalised)
        model = run_state(result.state, args.finalised, args.data, device=device, seed=args.seed)
        found: Dict[str, Any] = {
            "checkpoint": file_setting(args.checkpoint),
            "gates": {head: gate._asdict() for head, gate in gates.items()},
            "attention_parameters": [result.parameters_before, result.parameters_after],
            "loss": translation.loss(model, "valid").loss,
            "tests": {},
        }
        for test in tests:
            scored = evaluate(model, test, search)
            found["tests"][test.split] = as_json(compare(scored, whole[test.split]), scored.score)
        return found

    record.part(args.penalty, measure)


def draw(path: str, figure_path: str) -> None:
    """One point for every λ, and the model as it was."""
    parts = load(path, "heads", "gates")["parts"]
    splits = ablation.splits(parts)
    penalties = sorted((key for key in parts if "/" not in key), key=float)
    with drawing(figure_path, (3.4 * len(splits), 3.0)) as figure:
        for axis, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
            for penalty in penalties:
                left = sum(gate["is_open"] for gate in parts[penalty]["gates"].values())
                score = parts[penalty]["tests"][split]["bleu"]
                axis.plot(left, score, marker=MARKS[0], color=COLOURS[0])
                axis.annotate(f"λ = {penalty}", (left, score), xytext=(4, 4), textcoords="offset points", fontsize=7)
            whole = parts[f"whole/{split}"]["score"]
            axis.axhline(whole, color="#777777", linestyle=":", label="before")
            axis.margins(0.2)
            axis.set_xlabel("heads left")
            axis.set_ylabel(f"BLEU, {split}")
            axis.legend(loc="lower right")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("collaborative").add_argument("checkpoint")
    command = commands.add_parser("score")
    shared.add_model(command, None)
    shared.add_tests(command)
    command.add_argument("--model", required=True, help="what the training with gates began with")
    command.add_argument("--penalty", required=True, help="λ of the training")
    command.add_argument("--updates", type=int, required=True, help="of the training")
    command.add_argument("--finalised", required=True, metavar="FILE", help="where the model without closed heads goes")
    command.add_argument("--output", required=True, metavar="RECORD", help="JSON, added to if it is there")
    command = commands.add_parser("draw")
    command.add_argument("record")
    command.add_argument("figure")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        if args.command == "score":
            score(args)
        elif args.command == "draw":
            draw(args.record, args.figure)
        elif any(weights.collaborative for weights in read_weights(checkpoints.load(args.checkpoint)).values()):
            sys.stdout.write("yes\n")
    except Exception as error:
        if not (getattr(error, "user_error", False) or isinstance(error, OSError)):
            raise
        sys.stderr.write(f"gates.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

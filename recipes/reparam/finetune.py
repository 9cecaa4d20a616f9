#!/usr/bin/env python3
"""What fine-tuning of converted checkpoints needs besides fairseq-train.

    finetune.py score CHECKPOINT --data DIR --output FILE
                                               loss on valid, sacreBLEU of the test splits (beam 5), as JSON
    finetune.py equal ONE OTHER --output FILE  what differs between model and optimizer of two checkpoints, as JSON;
                                               status 1 where anything does
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli.options import pair
from collab_fairseq.records.files import write_json


def score(path: Path, data: str, references: Mapping[str, str]) -> Dict[str, Any]:
    trained = translation.load_model(path, data)
    updates = checkpoints.num_updates(trained.state)
    return {"file": path.name, "updates": updates, **translation.evaluate(trained, references)}


def differences(one: Any, other: Any, name: str = "") -> List[str]:
    """Names of what differs in a bit in two checkpoints."""
    if isinstance(one, torch.Tensor):
        # `_float_tensor` is a marker of fairseq that holds whatever was in its memory
        same = name.endswith("_float_tensor") or (isinstance(other, torch.Tensor) and torch.equal(one, other))
        return [] if same else [name]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], f"{name}.{key}")]
    return [] if one == other else [name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("score", "equal"):
        command = commands.add_parser(name)
        command.add_argument("checkpoint", type=Path)
        command.add_argument("--output", required=True, type=Path)
        if name == "score":
            command.add_argument("--data", required=True, help="data-bin")
            command.add_argument("--reference", action="append", default=[], type=pair, metavar="SPLIT=FILE")
        if name == "equal":
            command.add_argument("other", type=Path)
    args = parser.parse_args()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    if args.command == "score":
        write_json(score(args.checkpoint, args.data, dict(args.reference)), args.output)
    else:
        states = (checkpoints.load(path) for path in (args.checkpoint, args.other))
        found = differences(*({key: state[key] for key in ("model", "last_optimizer_state")} for state in states))
        write_json({"checkpoint": args.other.parent.name, "different": found}, args.output)
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

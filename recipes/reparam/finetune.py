#!/usr/bin/env python3
"""What fine-tuning of converted checkpoints needs besides fairseq-train; the record grows with each call.

    finetune.py score CHECKPOINT --data DIR --name NAME --updates N --output RECORD
                                   loss on valid, sacreBLEU of the test splits (beam 5), under the folder's name
    finetune.py equal CHECKPOINT OTHER --name NAME --updates N --output RECORD
                                   notes that model and optimizer of two are the same; status 1 where they are not
"""

import argparse
import logging
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli.options import pair
from collab_fairseq.records.record import Record


def score(args: argparse.Namespace) -> Dict[str, Any]:
    trained = translation.load_model(args.checkpoint, args.data)
    updates = checkpoints.num_updates(trained.state)
    return {"file": args.checkpoint.name, "updates": updates, **translation.evaluate(trained, dict(args.reference))}


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
    parser.add_argument("command", choices=("score", "equal"))
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--data", help="data-bin")
    parser.add_argument("--reference", action="append", default=[], type=pair, metavar="SPLIT=FILE")
    parser.add_argument("--name", required=True)
    parser.add_argument("--updates", type=int, required=True, help="of the fine-tuning")
    parser.add_argument("--output", required=True, type=Path, metavar="RECORD")
    args = parser.parse_args()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    command = shlex.join(["recipes/reparam/finetune.py", *sys.argv[1:]])
    folder = Path(__file__).parent
    record = Record("study", args.name, command, {"updates": args.updates}, args.output, repository=folder)
    name = args.checkpoint.parent.name
    if args.command == "score":
        record.part(f"finetuned/{name}", lambda: score(args))
        return 0
    states = (checkpoints.load(path) for path in (args.checkpoint, args.other))
    found = differences(*({key: state[key] for key in ("model", "last_optimizer_state")} for state in states))
    if found:
        sys.stderr.write(f"finetune.py: error: the checkpoints differ in {', '.join(found[:5])}\n")
        return 1
    record.part("resumed", lambda: name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

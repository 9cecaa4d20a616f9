"""Write the record of a run: one JSON with what was run, on what, and what came out.

    collab record --name NAME --checkpoint averaged.pt --train-log train.log --data-sums SHA256SUMS \\
        --scores test_2016_flickr=scores.json --output record.json

The fields are described in collab_fairseq/records/schema.py. Recipes call this at their end.
"""

import argparse

from collab_fairseq.records.files import check_targets, write_json

HELP = "write the JSON record of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the record is gathered from."""
    parser.add_argument("--name", required=True, help="name of the run, unique within a results folder")
    parser.add_argument("--output", required=True, metavar="FILE", help="where the record goes")
    parser.add_argument(
        "--started-as", default="", metavar="COMMAND", help="how the run is started; paths are shortened"
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, help="CPU threads of the training")
    parser.add_argument(
        "--repository",
        metavar="DIR",
        help="the checkout whose commit is noted (default: where this package is, if that is a checkout)",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="the checkpoint that was scored")
    parser.add_argument("--train-log", metavar="FILE", help="output of fairseq-train --log-format json")
    parser.add_argument("--usage", metavar="FILE", help="written by python -m collab_fairseq.records.measure")
    parser.add_argument("--data-sums", metavar="FILE", help="output of sha256sum for the prepared corpus")
    parser.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="NAME=FILE",
        type=_pair,
        help="of collab score --json; repeatable",
    )


def _pair(text: str) -> "tuple[str, str]":
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, got {text!r}")
    return name, file


class UsageError(ValueError):
    """Nothing was named."""

    user_error = True


def run(args: argparse.Namespace) -> int:
    """Gather, validate, write."""
    if not (args.checkpoint or args.train_log or args.usage or args.data_sums or args.scores):
        raise UsageError(
            "there is nothing to record: give at least one of --checkpoint, --train-log, --usage, --data-sums, --scores"
        )
    check_targets(args.output)
    from collab_fairseq import checkpoints
    from collab_fairseq.records.training import make_record

    record = make_record(
        args.name,
        args.started_as,
        seed=args.seed,
        checkpoint=checkpoints.load_with_model(args.checkpoint) if args.checkpoint else None,
        train_log=args.train_log,
        usage=args.usage,
        data_sums=args.data_sums,
        scores=dict(args.scores),
        threads=args.threads,
        repository=args.repository,
    )
    write_json(record, args.output)
    return 0

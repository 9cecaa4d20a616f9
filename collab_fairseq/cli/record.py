"""Write the record of a run: one JSON with what was run, on what, and what came out.

    collab record --name NAME --checkpoint averaged.pt --train-log train.log --data-sums SHA256SUMS \\
        --scores test_2016_flickr=scores.json --output record.json

The fields are described in collab_fairseq/records/training.py. Recipes call this at their end.
"""

import argparse
import logging
from typing import Any, Dict

from collab_fairseq.records.files import check_targets, write_json

from .options import UsageError, pair, positive

logger = logging.getLogger(__name__)

HELP = "write the JSON record of a run"

#: what a record is gathered from
_SOURCES = ("checkpoint", "train_log", "usage", "data_sums", "scores")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", required=True, help="name of the run, unique within a results folder")
    add("--output", required=True, metavar="FILE", help="where the record goes")
    add("--started-as", default="", metavar="COMMAND", help="how the run is started; paths are shortened")
    add("--seed", type=int, help="of the training")
    add("--threads", type=positive, help="CPU threads of the training, and of --loss")
    text = "the checkout whose commit is noted (default: where this package is, if that is a checkout)"
    add("--repository", metavar="DIR", help=text)
    add("--checkpoint", metavar="FILE", help="the checkpoint that was scored")
    add("--train-log", metavar="FILE", help="output of fairseq-train --log-format json")
    add("--usage", metavar="FILE", help="written by python -m collab_fairseq.records.measure")
    add("--data-sums", metavar="FILE", help="output of sha256sum for the prepared corpus")
    add("--data", metavar="DIR", help="the data-bin that --loss is of")
    text = "the checkpoint's loss on this split of --data, in float32; repeatable"
    add("--loss", action="append", default=[], metavar="NAME=SPLIT", type=pair, help=text)
    text = "of collab score --json; repeatable"
    add("--scores", action="append", default=[], metavar="NAME=FILE", type=pair, help=text)


def run(args: argparse.Namespace) -> int:
    if not any(getattr(args, name) for name in _SOURCES):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in _SOURCES)
        raise UsageError(f"there is nothing to record: give at least one of {flags}")
    if args.loss and not (args.checkpoint and args.data):
        raise UsageError("--loss needs --checkpoint and --data")
    check_targets(args.output)
    from collab_fairseq import checkpoints
    from collab_fairseq.records.training import make_record

    record = make_record(
        args.name, args.started_as, seed=args.seed, threads=args.threads, repository=args.repository,
        checkpoint=checkpoints.load_with_model(args.checkpoint) if args.checkpoint else None,
        train_log=args.train_log, usage=args.usage, data_sums=args.data_sums, scores=dict(args.scores),
        losses=_losses(args),
    )  # fmt: skip
    write_json(record, args.output)
    return 0


def _losses(args: argparse.Namespace) -> Dict[str, Dict[str, Any]]:
    """What --loss asks for, as records hold it; a set that the model cannot read is told and left out."""
    if not args.loss:
        return {}
    import torch

    from collab_fairseq.translation import TranslationError, load_model
    from collab_fairseq.translation.evaluation import loss, sentence_losses

    torch.set_num_threads(args.threads or torch.get_num_threads())
    trained, found = load_model(args.checkpoint, args.data), {}
    for name, split in args.loss:
        try:
            found[name] = {**loss(trained, split)._asdict(), "sentences": sentence_losses(trained, split)}
        except TranslationError as error:  # such as text with unknown units; all else that was measured is kept
            logger.warning("no loss of %s: %s", name, error)
    return found

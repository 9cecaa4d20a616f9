"""Give a trained translation model collaborative heads with a chosen key dim, without training.

    collab reparam checkpoint.pt --output collaborative.pt --key-dim 256 --calibration train:400 --evaluate
    collab reparam checkpoint.pt --output collaborative.pt --budget mean:128 --calibration train:400 \\
        --distill 2000 --distill-text train:29000

CHECKPOINT is one of fairseq's `transformer` in any size, or of `transformer_collab`, which can so be made smaller
again. At the key dim of the source nothing changes but the form. Calibration text tells which queries and keys occur:
with a few hundred sentences the fit loses much less. Text files must be in the model's own tokens, as those that
fairseq-preprocess got; a split of the data-bin always is.

The result is an ordinary checkpoint for fairseq-generate, -interactive and -validate with --user-dir. To train it on:

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab SIZES ... \\
        --attention-from collaborative.pt --finetune-from-model collaborative.pt

SIZES are the flags of the source's layers, widths, heads and shared embeddings. The checkpoint has no optimizer state
(its parameters are gone) and starts at epoch 1, so that --restore-file needs no --reset-... flags either. The same
command resumes the run, and checkpoints of the run can be used like any others.
"""

import argparse
import logging
import sys
from dataclasses import fields

from collab_fairseq.records.files import check_targets, write_json

from . import options

HELP = "collaborative heads for a trained model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a trained translation model of fairseq")
    add("--output", required=True, metavar="FILE", help="the converted checkpoint, a new file; whole or not at all")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--key-dim", type=int, metavar="N", help="shared key dim of every converted layer")
    size.add_argument("--budget", metavar="mean:N",
        help="key dim on average, spread over the layers by what they do to the model's predictions on the calibration "
        "text")  # fmt: skip
    add("--multiple", type=options.positive, metavar="N",
        help="the key dims of --budget are multiples of N: on GPUs half types are fast at multiples of 8 "
        "(default: 8 where --device is a GPU, else 1)")  # fmt: skip
    options.add_sites(parser, "attention to convert")
    add("--calibration", metavar="TEXT",
        help="SPLIT:N, the first N sentences of a split of the data-bin, such as train:400; or SOURCE, a text file, "
        "which the model translates first (default: none, a plain fit)")  # fmt: skip
    add("--data", metavar="DIR", help="data-bin (default: the one that the checkpoint names)")
    add("--distill", type=int, metavar="STEPS",
        help="afterwards train the new layers together for so many steps to predict what the source predicts, without "
        "labels")  # fmt: skip
    text = "SPLIT:N or SOURCE, whose translations the model makes itself (default: the source side of --calibration)"
    add("--distill-text", metavar="TEXT", help=text)
    add("--distill-rate", type=float, metavar="RATE", help="learning rate, relative to each tensor (default: 0.005)")
    add("--evaluate", action="store_true", help="loss on `valid` and BLEU on every test split, before and after")
    text = "raw references of a test split for --evaluate (default: the data-bin's target side); repeatable"
    add("--reference", action="append", default=[], metavar="SPLIT=FILE", type=options.pair, help=text)
    add("--json", metavar="FILE", help="where the record of the conversion goes")
    add("--seed", type=int, default=1, help="of random starts and batches (default: 1)")
    options.add_machine(parser)
    add("--max-tokens", type=options.positive, default=4000, metavar="N", help="per batch (default: 4000)")


def run(args: argparse.Namespace) -> int:
    options.check_new(args.output)
    check_targets(args.json)
    if args.json:
        options.check_distinct(args.json, args.checkpoint)
    if not (args.evaluate or args.calibration):
        options.refuse(args, ("max_tokens",), "needs --calibration or --evaluate")
    if not args.budget:
        options.refuse(args, ("multiple",), "needs --budget")
    args.device = options.choose_device(args)
    from collab_fairseq.reparam.pipeline import Settings, convert_model, table

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    named = {each.name: getattr(args, each.name) for each in fields(Settings) if each.name != "references"}
    record = convert_model(args.checkpoint, args.output, Settings(**named, references=dict(args.reference)))
    if args.json:
        write_json(record.content, args.json)
    sys.stdout.write(table(record.parts))
    return 0

"""Give a trained translation model collaborative heads with a chosen key dim, without training.

    collab reparam checkpoint.pt --output collaborative.pt --key-dim 256 --calibration train:400 --evaluate
    collab reparam checkpoint.pt --output collaborative.pt --budget mean:128 --calibration train:400 \\
        --distill 2000 --distill-text train:29000

CHECKPOINT is one of fairseq's `transformer` in any size, or of `transformer_collab`, which can so be made smaller
again. At the key dimension of the source only the form changes. Calibration text shows which queries and keys occur:
with a few hundred sentences the fit loses much less. Text files must be in the model's own tokens, like the input of
fairseq-preprocess; a split of the data-bin always is.

The result is an ordinary checkpoint for fairseq-generate, -interactive and -validate with --user-dir. To continue
training:

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab SIZES ... \\
        --attention-from collaborative.pt --finetune-from-model collaborative.pt

SIZES are the flags of the source's layers, widths, heads and shared embeddings. The checkpoint has no optimizer state
(its parameters have been replaced) and starts at epoch 1, so that --restore-file needs no --reset-... flags either. The
same command resumes the run, and checkpoints of the run can be used like any others.
"""

import argparse
import logging
import sys
from dataclasses import fields

from collab_fairseq.records.files import check_writable, write_json

from . import options

HELP = "collaborative heads for a trained model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a trained translation model of fairseq")
    add("--output", required=True, metavar="FILE", help="the converted checkpoint, a new file, written atomically")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--key-dim", type=int, metavar="N", help="shared key dimension of every converted layer")
    text = (
        "mean key dimension, spread over the layers by their effect on the model's predictions on the calibration text"
    )
    size.add_argument("--budget", metavar="mean:N", help=text)
    options.add_sites(parser, "attention to convert")
    text = (
        "SPLIT:N, the first N sentences of a split of the data-bin, such as train:400; or SOURCE, a text file, which "
        "the model translates first (default: none, a plain fit)"
    )
    add("--calibration", metavar="TEXT", help=text)
    add("--data", metavar="DIR", help="data-bin (default: the one that the checkpoint names)")
    text = "then train the new layers together for STEPS steps to predict what the source predicts, without labels"
    add("--distill", type=int, metavar="STEPS", help=text)
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
    check_writable(args.json)
    if args.json:
        options.check_distinct(args.json, args.checkpoint)
    args.device = options.choose_device(args)
    from collab_fairseq.reparam.pipeline import Settings, convert_model, table

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    args.references = dict(args.reference)
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    record = convert_model(args.checkpoint, args.output, settings)
    if args.json:
        write_json(record.content, args.json)
    sys.stdout.write(table(record.parts))
    return 0

"""Convert a trained model to collaborative heads with a chosen key dimension, without retraining.

    collab reparam checkpoint.pt --output collaborative.pt --key-dim 256 --calibration train:400 --evaluate
    collab reparam checkpoint.pt --output collaborative.pt --budget mean:128 --calibration train:400 \\
        --distill 2000 --distill-text train:29000
    collab reparam all-MiniLM-L6-v2 --output smaller --key-dim 192 --calibration sentences.txt --evaluate held-out.txt

CHECKPOINT is fairseq's `transformer` in any size, or `transformer_collab`, whose key dimension can be reduced further.
At the key dimension of the source, the converted model computes the same function. Calibration text weights the fit by
the queries and keys that occur; a few hundred sentences reduce the loss of quality considerably. Text files must
consist of the model's own tokens, like the input of fairseq-preprocess.

The divergences that allocate a --budget are kept in FILE.divergences.json until the converted model is written: after
an interruption, the same command continues with them.

The result is an ordinary checkpoint for fairseq-generate, -interactive and -validate with --user-dir. To continue
training:

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab SIZES ... \\
        --attention-from collaborative.pt --finetune-from-model collaborative.pt

SIZES are the source's flags for layers, d_model, feed-forward, heads and shared embeddings. The checkpoint has no
optimizer state and starts at epoch 1, so --restore-file works without --reset-... flags as well. The same command
resumes the training run.

CHECKPOINT can also be the folder of a Hugging Face encoder (BERT, DistilBERT, ALBERT) or of a text classifier based on
one. Texts are then raw, one per line (two columns separated by a tab for pairs), and the result is a folder:

    import collab_fairseq.reparam.huggingface      # registers collaborative models with transformers
    model = transformers.AutoModel.from_pretrained("smaller")

Distillation reproduces the embeddings of an encoder, or the predictions of a classifier. Embeddings are the mean over
tokens, or the first token if 1_Pooling/config.json says so. --evaluate TEXT reports their similarity to those of the
source. --evaluate TASK, a folder with validation.jsonl, also reports a metric: Spearman's correlation of cosine
similarities for the pairs of an encoder, accuracy or correlations for a classifier. Each line is an object with
"label", a number or class, and one or two texts with the names of a GLUE task, such as "sentence1" and "sentence2", or
"text".
"""

import argparse
import logging
import os
import sys
from dataclasses import fields
from typing import Any, Callable

from collab_fairseq.files import check_writable, write_json
from fairseq_modern.errors import UserError

from . import options

HELP = "convert a trained model to collaborative heads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "a translation model trained with fairseq, its model folder, or a Hugging Face folder"
    add("checkpoint", metavar="CHECKPOINT", help=text)
    add("--output", required=True, metavar="FILE", help="the converted checkpoint or folder, new, written atomically")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--key-dim", type=int, metavar="N", help="shared key dimension of every converted layer")
    text = "mean key dimension, allocated to the layers by their effect on the predictions for the calibration text"
    size.add_argument("--budget", metavar="mean:N", help=text)
    options.add_sites(parser, "attention to convert")
    text = (
        "SPLIT:N, the first N sentences of a split of the data-bin, such as train:400; "
        "or SOURCE, a text file, which a translation model translates first (default: none, an unweighted fit)"
    )
    add("--calibration", metavar="TEXT", help=text)
    add("--data", metavar="DATA_BIN", help="data-bin of the model (default: the one named in the checkpoint)")
    text = (
        "after the fit, train the new layers jointly for STEPS steps to predict what the source model predicts; "
        "needs --calibration"
    )
    add("--distill", type=int, metavar="STEPS", help=text)
    text = "SPLIT:N or SOURCE, translated by the source model (default: the source side of --calibration)"
    add("--distill-text", metavar="TEXT", help=text)
    text = "learning rate, relative to the RMS of each tensor (default: 0.005)"
    add("--distill-rate", type=float, metavar="RATE", help=text)
    text = (
        "measure loss on `valid` and BLEU on every test split, before and after; a Hugging Face folder needs TEXT, a "
        "text file or a task folder"
    )
    add("--evaluate", nargs="?", const=True, default=False, metavar="TEXT", help=text)
    text = "raw references of a test split for --evaluate (default: the data-bin's target side); repeatable"
    add("--reference", action="append", default=[], metavar="SPLIT=FILE", type=options.pair, help=text)
    add("--json", metavar="FILE", help="write a record of the conversion to FILE")
    add("--seed", type=int, default=1, metavar="N", help="seed of random starts and batches (default: 1)")
    options.add_machine(parser)
    text = "maximum tokens per batch (default: 4000)"
    add("--max-tokens", type=options.positive, default=4000, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    options.check_new(args.output)
    check_writable(args.json)
    args.checkpoint = options.checkpoint(args.checkpoint)
    if args.json:
        texts = (args.calibration, args.distill_text, args.evaluate, *(file for _, file in args.reference))
        options.check_distinct(args.json, args.checkpoint, *(text for text in texts if isinstance(text, str)))
        if os.path.realpath(args.json) == os.path.realpath(args.output):
            raise UserError(f"--json and --output must be two files; got {args.json} for both")
    args.device = options.choose_device(args)
    from collab_fairseq.reparam.pipeline import Settings, convert_model, table
    from collab_fairseq.translation.tokenizer import require

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    args.references = options.references(args.reference)
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    convert: Callable[..., Any] = convert_model
    if os.path.isdir(args.checkpoint):
        options.reject_flags(args, ("data", "sites", "reference", "max_tokens"), "is for models of fairseq")
        if args.evaluate is True:
            raise UserError("--evaluate needs a text file or a task folder for a Hugging Face folder")
        convert = require("collab_fairseq.reparam.folders", "huggingface").convert_folder
    elif args.evaluate and args.evaluate is not True:
        raise UserError(f"--evaluate TEXT is for Hugging Face folders; got {args.evaluate} for a checkpoint")
    record = convert(args.checkpoint, args.output, settings, options.command())
    sys.stdout.write(table(record.parts))
    if args.json:
        write_json(record.content, args.json)
    return 0

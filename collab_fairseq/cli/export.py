"""Export a trained model for translation with this project, fairseq, CTranslate2 or Hugging Face transformers.

    collab export averaged.pt --to folder --output DIR --half
    collab translate DIR FILE

CHECKPOINT is a checkpoint of fairseq's `transformer` or of `transformer_collab`, or a model folder. Targets:

    folder        checkpoint, dictionaries, subword model: for collab translate, Python, fairseq-interactive
    ctranslate2   for CTranslate2, faster on CPUs for small models; --quantization int8 makes it smaller;
                  then translate with --precision int8
    fairseq       a plain `transformer` that fairseq loads without this project. A head may need at most d_model /
                  heads key dimensions: D with collaborative heads, D + 1 with content bias, D / heads with standard
                  heads
    huggingface   for transformers (FSMT), with the same limit

Models with subword units need their SentencePiece model or BPE codes. SentencePiece models made by data_prep are found
automatically. The output appears atomically: if the export fails, DIR is not created.
"""

import argparse
import logging
import os
import sys

from collab_fairseq.export import TARGETS, write

from . import options

HELP = "export a trained model for translation"

_MOSES = ("moses", "moses_no_dash_splits", "moses_no_escape")
_TEXT_OPTIONS = ("sentencepiece", "bpe_codes", *_MOSES, "lowercase", "record")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "a translation model trained with fairseq, or a folder made by --to folder"
    add("checkpoint", metavar="CHECKPOINT", help=text)
    add("--to", required=True, choices=tuple(TARGETS), help="target format, see above")
    add("--output", required=True, metavar="DIR", help="a new or empty folder")
    add("--data", metavar="DATA_BIN", help="the model's data-bin (default: the one named in the checkpoint)")
    add("--half", action="store_true", help="store weights in half precision (folder and fairseq)")
    text = "precision of the stored weights (ctranslate2): int8, float16, bfloat16, … (default: float32)"
    add("--quantization", metavar="NAME", help=text)
    add("--record", metavar="FILE.json", help="record of the training run or conversion, for the folder and its README")
    text = "licence of the model, for its README (default: that of the model folder, or not stated)"
    add("--licence", metavar="TEXT", help=text)
    text = "training data, by its name on the Hugging Face Hub, for the README's metadata; several times for several"
    add("--dataset", action="append", dest="datasets", default=[], metavar="NAME", help=text)
    add = parser.add_argument_group("tokenisation (a model folder already describes it)").add_argument
    text = "SentencePiece model (default: sentencepiece.model in the data-bin or its parent folder)"
    add("--sentencepiece", metavar="FILE", help=text)
    add("--bpe-codes", metavar="FILE", help="BPE codes of subword-nmt")
    add("--moses", action="store_true", help="the training text was tokenised with Moses (the next two imply this)")
    text = "… without its option -a, which splits hyphenated words (default: unless the source dictionary has @-@)"
    add("--moses-no-dash-splits", action="store_true", help=text)
    text = "… with its option -no-escape (default: if the source dictionary has quotation marks rather than &quot;)"
    add("--moses-no-escape", action="store_true", help=text)
    text = "the training text was lower-cased, after Moses (default: if a large source dictionary has no capitals)"
    add("--lowercase", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    applicable = TARGETS[args.to]
    others = {"half", "quantization"}.difference(applicable)
    options.reject_flags(args, sorted(others), f"cannot be used with --to {args.to}")
    if os.path.isdir(args.checkpoint):
        options.reject_flags(args, ("data", *_TEXT_OPTIONS), "cannot be used with a model folder, which contains it")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from collab_fairseq.export.source import read_source

    text_options = {name: getattr(args, name) for name in _TEXT_OPTIONS}
    source = read_source(args.checkpoint, args.data, licence=args.licence, datasets=args.datasets, **text_options)
    write(source, args.to, args.output, **{name: getattr(args, name) for name in applicable})
    sys.stdout.write(f"{args.output}\n")
    return 0

"""Write a trained model for those who use it, whole or not at all.

    collab export averaged.pt --to folder --output DIR --half     # all it takes to translate, in one folder
    collab translate DIR FILE

CHECKPOINT is one of fairseq's `transformer` or of `transformer_collab`, or a model folder. Targets:

    folder        checkpoint, dictionaries, subword model: for collab translate, Python, fairseq-interactive
    ctranslate2   the same for CTranslate2, several times faster on CPUs; --quantization int8 makes it smaller
    fairseq       a folder with a plain `transformer`, for fairseq alone, where key dims are at most width / heads
    huggingface   the same for transformers (FSMT)

Models of raw text need the SentencePiece model or BPE codes that made their units; data_prep's SentencePiece models are
found by themselves.
"""

import argparse
import logging
import os
import sys

from collab_fairseq.export import TARGETS, write

from . import options

HELP = "write a trained model for those who use it"

_UNITS = ("sentencepiece", "bpe_codes", "moses", "lowercase", "record")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a trained translation model of fairseq, or a model folder")
    add("--to", required=True, choices=TARGETS, help="what for")
    add("--output", required=True, metavar="DIR", help="a new or empty folder; whole or not at all")
    add("--data", metavar="DATA_BIN", help="its data-bin (default: the one named in the checkpoint)")
    add("--half", action="store_true", help="folder, fairseq: weights in half precision")
    text = "ctranslate2: of the weights: int8, float16, bfloat16, … (default: float32)"
    add("--quantization", metavar="NAME", help=text)
    add("--record", metavar="FILE.json", help="record of how it was made, to go with the model and onto its card")
    add("--licence", metavar="TEXT", help="of the model, for its card (default: that of a model folder, or not stated)")
    group = parser.add_argument_group("how text becomes the model's tokens (a model folder says so itself)")
    add = group.add_argument
    text = "SentencePiece model (default: sentencepiece.model in the data-bin or beside it)"
    add("--sentencepiece", metavar="FILE", help=text)
    add("--bpe-codes", metavar="FILE", help="codes of subword-nmt")
    add("--moses", action="store_true", help="the text was tokenised with Moses before")
    add("--lowercase", action="store_true", help="and lower-cased")


def run(args: argparse.Namespace) -> int:
    owners = {"half": ("folder", "fairseq"), "quantization": ("ctranslate2",)}
    others = [name for name, targets in owners.items() if args.to not in targets]
    options.refuse(args, others, f"does not go with --to {args.to}")
    if os.path.isdir(args.checkpoint):
        options.refuse(args, ("data", *_UNITS), "does not go with a model folder, which says so itself")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from collab_fairseq.export.source import read_source

    given = {name: getattr(args, name) for name in _UNITS}
    source = read_source(args.checkpoint, args.data, licence=args.licence, **given)
    write(source, args.to, args.output, **{name: getattr(args, name) for name in owners if name not in others})
    sys.stdout.write(f"{args.output}\n")
    return 0

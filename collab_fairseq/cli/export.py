"""Write a trained model for those who use it, whole or not at all.

    collab export averaged.pt --to folder --output DIR --half     # all it takes to translate, in one folder
    collab translate DIR FILE

CHECKPOINT is one of fairseq's `transformer` or of `transformer_collab`, or a model folder. Targets:

    folder        checkpoint, dictionaries, subword model: for collab translate, Python, fairseq-interactive

Models of raw text need the SentencePiece model or BPE codes that made their units; data_prep's SentencePiece models are
found by themselves.
"""

import argparse
import logging
import sys

HELP = "write a trained model for those who use it"

TARGETS = ("folder",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, target, text side."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a trained translation model of fairseq, or a model folder")
    add("--to", required=True, choices=TARGETS, help="what for")
    add("--output", required=True, metavar="DIR", help="the new folder; whole or not at all")
    add("--data", metavar="DATA_BIN", help="its data-bin (default: the one named in the checkpoint)")
    add("--half", action="store_true", help="folder: weights in half precision")
    add("--record", metavar="FILE.json", help="record of the training, to go with the model")
    group = parser.add_argument_group("how text becomes the model's units (a model folder says so itself)")
    add = group.add_argument
    text = "SentencePiece model (default: sentencepiece.model in the data-bin or beside it)"
    add("--sentencepiece", metavar="FILE", help=text)
    add("--bpe-codes", metavar="FILE", help="codes of subword-nmt")
    add("--moses", action="store_true", help="the text was tokenised with Moses before")
    add("--lowercase", action="store_true", help="and lower-cased")


def run(args: argparse.Namespace) -> int:
    """Read the source, write the target."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from collab_fairseq.export import folder
    from collab_fairseq.export.source import read_source

    units = {name: getattr(args, name) for name in ("sentencepiece", "bpe_codes", "moses", "lowercase", "record")}
    source = read_source(args.checkpoint, args.data, **units)
    folder.export(source, args.output, half=args.half)
    sys.stdout.write(f"{args.output}\n")
    return 0

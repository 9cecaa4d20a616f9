"""Conversion study of a trained translation model, with and without fine-tuning of the converted models."""

import argparse
import importlib.util
import logging
import os
from pathlib import Path

import torch

from collab_fairseq.cli.options import number
from collab_fairseq.files import write_text
from collab_fairseq.records.record import load
from collab_fairseq.reparam.allocation import GRID
from fairseq_modern.errors import UserError
from recipes.reparam import report, study
from recipes.runner.cli import show_messages
from recipes.runner.finetune import build_parser, finetune, open_folder
from recipes.runner.summary import check_packages

logger = logging.getLogger("recipe")

EPILOG = """After the conversions, converted models are fine-tuned, and the source for comparison. Requires the extras
reparam (for TensorLy) and plots of this project. The same command resumes an interrupted run and skips finished parts.
OUTPUT contains the record NAME.json; table.md, time.svg and quality.svg, made from it (Figures 4 and 5 of the paper);
converted and fine-tuned checkpoints. For one table or figure of several models:
  python -m recipes reparam report OUTPUT/*.json OUTPUT2/*.json --time time.svg > table.md"""
TRAINING = ["--lr", "0.0005", "--warmup-updates", "30", "--criterion", "label_smoothed_cross_entropy"]
TRAINING += ["--cpu", "--distributed-world-size", "1", "--save-interval-updates", "50", "--log-interval", "25"]


def main() -> None:
    parser = build_parser("reparam", description=study.__doc__, epilog=EPILOG)
    add = parser.add_argument
    text = "updates of each fine-tuning run, with a learning rate that decays to zero; 0: none (default: %(default)s)"
    add("--finetune-updates", metavar="R", type=number, default=300, help=text)
    text = "converted models to fine-tune: calibrated or distilled (default: %(default)s)"
    add("--finetune-method", choices=study.KEPT, default="calibrated", help=text)
    study.add_options(parser)
    args = parser.parse_args()
    if {"paper", "authors"} & {*args.methods} and not importlib.util.find_spec("tensorly"):
        raise UserError("TensorLy is not installed: pip install 'collab_fairseq[reparam]'")
    if args.finetune_updates and args.finetune_method not in args.methods:
        raise UserError(f"--methods must include --finetune-method; got {args.finetune_method}")
    if args.finetune_updates and args.finetune_method == "distilled" and args.distill <= 0:
        raise UserError(f"--distill must be positive with --finetune-method distilled; got {args.distill}")
    for rank in args.ranks:
        distils = "distilled" in args.methods and args.distill > 0 and rank in args.distill_ranks
        least = min(GRID) if "allocated" in args.methods or distils else 0
        if not (0 < rank <= 1 and rank >= least):
            expected = f"at least {least} (methods allocated and distilled)" if least else "above 0"
            raise UserError(f"--ranks must be {expected} and at most 1; got {rank}")
    for option in ("bleu_ranks", *["distill_ranks"] * ("distilled" in args.methods and args.distill > 0)):
        ranks = {*getattr(args, option)}
        if ranks and not ranks & {*args.ranks}:
            listed = " ".join(map(str, args.ranks))
            raise UserError(f"--{option.replace('_', '-')} must include one of --ranks, {listed}; got none of them")
    check_packages()
    show_messages("reparam")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    settings = {name: getattr(args, name) for name in ("finetune_updates", "finetune_method")}
    with open_folder(args, "reparam", settings) as output:
        convert_and_finetune(args, output)


def convert_and_finetune(args: argparse.Namespace, output: Path) -> None:
    """Make all conversions and fine-tuning runs, then the table and the figures."""
    conversions = study.Study(args, output)
    conversions.convert()
    if args.finetune_updates:
        converted = sorted(output.glob(f"{args.name}-{args.finetune_method}-*.pt"))
        for checkpoint in (output / f"{args.name}-full.pt", *converted):
            logger.info("fine-tuning %s for %d updates", checkpoint.stem, args.finetune_updates)
            folder = output / "finetuned" / checkpoint.stem
            conversions.finetuned(finetune(args, checkpoint, folder, args.finetune_updates, TRAINING))
    record = output / f"{args.name}.json"
    studies = [load(record, "study")]
    write_text(report.tables(studies), output / "table.md")
    report.draw_figures(studies, output / "time.svg", output / "quality.svg")
    logger.info("results: %s, table.md, time.svg, quality.svg", record)

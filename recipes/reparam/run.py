"""What it costs a trained translation model to get collaborative heads, with and without fine-tuning."""

import argparse
import importlib.util
import logging
import os
from pathlib import Path

import report
import study
import torch
from runner.cli import show_messages
from runner.finetune import build_parser, finetune, open_folder
from runner.options import number
from runner.settings import RecipeError

logger = logging.getLogger("recipe")

ABOUT = """Convert a trained fairseq transformer at several key dims: the paper's method (TensorLy) and ours, plain,
with calibration text, with the rank spread over the layers, and distilled without labels; three seeds; loss, BLEU and
time. Then fine-tune converted models, and the unchanged one for comparison. Needs the extras reparam (for the paper's
method) and plots of this project. The same command continues an interrupted run; what is finished is skipped."""
ENDING = """OUTPUT: NAME.json (the record); made from it table.md, time.svg, quality.svg (Figures 4 and 5 of the paper);
converted and fine-tuned checkpoints. Several models in one table and figure:
  python recipes/reparam/report.py OUTPUT/*.json OUTPUT2/*.json --table table.md --time time.svg"""
TRAINING = [
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0.0", "--lr", "0.0005",
    "--warmup-updates", "30", "--lr-scheduler", "polynomial_decay", "--label-smoothing", "0.1",
    "--criterion", "label_smoothed_cross_entropy",
    "--max-tokens", "2048", "--cpu", "--distributed-world-size", "1", "--save-interval-updates", "50",
    "--log-interval", "25",
]  # fmt: skip


def main() -> None:
    parser = build_parser("reparam", description=ABOUT, epilog=ENDING)
    add = parser.add_argument
    text = "length of each fine-tuning, its rate falling to zero (default: %(default)s; 0: none)"
    add("--finetune-updates", metavar="R", type=number, default=300, help=text)
    text = "which converted models are fine-tuned: calibrated or distilled (default: %(default)s)"
    add("--finetune-method", metavar="METHOD", default="calibrated", help=text)
    study.add_options(parser)
    args = parser.parse_args()
    if {"paper", "authors"} & {*args.methods} and not importlib.util.find_spec("tensorly"):
        raise RecipeError("TensorLy is not installed: pip install 'collab_fairseq[reparam]'")
    show_messages("reparam")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    settings = {name: getattr(args, name) for name in ("finetune_updates", "finetune_method")}
    with open_folder(args, "reparam", settings) as output:
        convert_and_finetune(args, output)


def convert_and_finetune(args: argparse.Namespace, output: Path) -> None:
    """All conversions, all fine-tuning, the tables and figures."""
    name = args.name
    studied = study.Study(args, output)
    studied.convert()
    if args.finetune_updates:
        for checkpoint in (output / f"{name}-full.pt", *sorted(output.glob(f"{name}-{args.finetune_method}-*.pt"))):
            logger.info("fine-tuning %s for %d updates", checkpoint.stem, args.finetune_updates)
            folder = output / "finetuned" / checkpoint.stem
            studied.finetuned(finetune(args, checkpoint, folder, args.finetune_updates, TRAINING))
    report.write(
        [output / f"{name}.json"], output / "table.md", time=output / "time.svg", quality=output / "quality.svg"
    )
    logger.info("results: %s/%s.json, table.md, time.svg, quality.svg", output, name)

"""What it costs a trained translation model to get collaborative heads, with and without fine-tuning."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from runner.cli import number
from runner.folder import attend
from runner.settings import PYTHON, RecipeError
from runner.trained import build_parser, open_folder, train_on

logger = logging.getLogger("recipe")
HERE = Path(__file__).parent

ABOUT = """Convert a trained fairseq transformer at several key dims: the paper's method (TensorLy) beside ours, plain,
with calibration text, with the rank spread over the layers, and distilled without labels; three seeds; loss, BLEU and
time. Then fine-tune converted models, and the unchanged one for comparison. Needs the extras reparam (for the paper's
method) and plots of this project. The same command continues an interrupted run; what is finished is skipped."""
ENDING = """Options of study.py follow --: --methods, --ranks, --bleu-ranks, --seeds, --sentences, --distill, ... (see
its --help). OUTPUT: NAME.json (the record), table.md, time.svg and quality.svg (Figures 4 and 5 of the paper) made from
it, converted and fine-tuned checkpoints. Several models in one table and figure:
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
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, rest = parser.parse_args(words[:end]), words[end + 1 :]
    logging.basicConfig(level=logging.WARNING, format="reparam: %(message)s", stream=sys.stderr)
    logger.setLevel(logging.INFO)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    settings = {name: getattr(args, name) for name in ("finetune_updates", "finetune_method")}
    folder = open_folder(args, "reparam", {**settings, "study": rest})
    output, name = args.output, args.name

    def study(*words: Any) -> None:
        """With words that do not change what is there."""
        references = [word for split, file in args.reference for word in ("--reference", f"{split}={file}")]
        command = [PYTHON, HERE / "study.py", "--name", name, "--model", args.model, "--data", args.data]
        command += ["--output", output, "--threads", args.threads]
        if attend([*command, *references, *rest, *words]):
            raise RecipeError("the study was not finished (see above)")

    if not folder.finished("study"):
        study()
        folder.finish("study")
    if args.finetune_updates and not folder.finished("finetune"):
        tuned = []
        for checkpoint in (output / f"{name}-full.pt", *sorted(output.glob(f"{name}-{args.finetune_method}-*.pt"))):
            logger.info("fine-tuning %s for %d updates", checkpoint.stem, args.finetune_updates)
            trained = output / "finetuned" / checkpoint.stem
            tuned.append(train_on(args, checkpoint, trained, args.finetune_updates, TRAINING))
        study("--finetuned", *tuned)
        folder.finish("finetune")
    made = [word for kind in ("time", "quality") for word in (f"--{kind}", output / f"{kind}.svg")]
    if attend([PYTHON, HERE / "report.py", output / f"{name}.json", "--table", output / "table.md", *made]):
        raise RecipeError("the tables could not be made (see above)")
    logger.info("results: %s/%s.json, table.md, time.svg, quality.svg", output, name)

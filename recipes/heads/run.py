"""See, rank, prune and gate the heads of one trained translation model: all analyses of `collab heads`."""

import argparse
import contextlib
import functools
import io
import logging
import os
import re
from pathlib import Path
from typing import Any, List

import gates
import page
from runner.cli import show_messages
from runner.finetune import build_parser, finetune, open_folder
from runner.machine import Machine
from runner.options import absolute
from runner.programs import collab
from runner.settings import RecipeError

from collab_fairseq.cli.main import build_parser as collab_parser
from collab_fairseq.cli.options import positive
from collab_fairseq.records.files import write_text

logger = logging.getLogger("recipe")

ABOUT = """Analyse the heads of a trained translation model: redundancy, importance, ablation (each head without, and
alone) with paired bootstrap, pruning curves, roles; then train it further with stochastic gates
at several penalties, and score what they leave. The same command resumes what was interrupted."""
ENDING = """OUTPUT: NAME.redundancy.json, NAME.importance.json, NAME.ablate.json, NAME.prune.json, NAME.prune-raw.json,
NAME.roles.json, NAME.gates.json (the records), NAME.*.svg (figures made from them), table.md, gates/ with the
checkpoints of these runs."""
# the learning rate falls linearly to zero: gates need a high one to move, the weights a low one at the end
TRAINING = [
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0.0", "--lr", "0.006",
    "--lr-scheduler", "polynomial_decay", "--criterion", "label_smoothed_cross_entropy_with_gates",
    "--label-smoothing", "0.1", "--max-tokens", "2048", "--save-interval-updates", "200", "--log-interval", "50",
]  # fmt: skip


def penalties(text: str) -> "list[str]":
    if not re.fullmatch(r"none|[\d.]+(,[\d.]+)*", text):
        raise RecipeError(f"--penalties must be numbers such as 0.01,0.03, got '{text}'")
    return [] if text == "none" else text.split(",")


def main() -> None:
    parser = build_parser("heads", description=ABOUT, epilog=ENDING)
    add = parser.add_argument
    text = "translate only the first N of each test split in ablation and pruning (default: all)"
    add("--sentences", metavar="N", type=positive, help=text)
    text = "CoNLL-U of the validation set's source side, for syntactic heads"
    add("--parses", metavar="FILE", type=absolute, help=text)
    text = "gate penalties λ; 0 is the same run without a penalty (default: %(default)s; none: no gates)"
    add("--penalties", metavar="X,X", type=penalties, default="0,0.01,0.03,0.1", help=text)
    text = "where the gates are (default: %(default)s; encoder alone freezes the decoder)"
    add("--gate-sites", metavar="SITES", default="encoder_cross_decoder", help=text)
    text = "updates of each training run with gates (default: %(default)s)"
    add("--gate-updates", metavar="N", type=positive, default=1000, help=text)
    add("--device", metavar="NAME", default="auto", help="cpu or gpu (default: gpu if any)")
    args = parser.parse_args()
    if not args.reference:
        raise RecipeError("--reference is needed (see --help)")
    if args.parses and not Path(args.parses).is_file():
        raise RecipeError(f"there is no file {args.parses}")
    show_messages("heads")
    machine = Machine(args.device, gpus=1)
    machine.find_gpus()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    settings = {"gates": f"{args.gate_sites}, {args.gate_updates} updates", "sentences": args.sentences}
    with open_folder(args, "heads", settings) as output:
        analyse(args, machine, output)


def analyse(args: argparse.Namespace, machine: Machine, output: Path) -> None:
    """All analyses, training with gates, and the page of the results. What the records already have is not repeated."""
    name = args.name

    def results(step: str) -> List[Any]:
        return ["--json", output / f"{name}.{step}.json", "--figure", output / f"{name}.{step}.svg"]

    def heads(step: str, *words: Any) -> None:
        """The analysis that the step begins with. What it prints goes to a file."""
        logger.info("%s", step)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            collab("heads", step.partition("-")[0], args.model, *words, *results(step))
        write_text(printed.getvalue(), output / f"{step}.md")

    data = ["--data", args.data, "--device", "cuda" if machine.device == "gpu" else "cpu", "--threads", args.threads]
    tests = [word for split, file in args.reference for word in ("--reference", f"{split}={file}")]
    limit = ["--sentences", args.sentences] if args.sentences else []
    ranking = ["--importance", output / f"{name}.importance.json"]
    heads("redundancy")
    heads("importance", *data)
    heads("ablate", *data, *tests, *limit)
    heads("prune", *data, *tests, *ranking, "--by-site", *limit)
    heads("prune-raw", *data, *tests, *ranking, "--ranking", "raw", *limit)
    parses = ["--parses", args.parses] if args.parses else []
    heads("roles", *data, *ranking, *parses)

    def train(penalty: str) -> Path:
        frozen = ["--head-gates-freeze-decoder"] if args.gate_sites == "encoder" else []
        flags = [*TRAINING, "--warmup-updates", str(args.gate_updates // 10), *machine.flags()]
        flags += ["--head-gates", args.gate_sites, "--gate-penalty", penalty, *frozen]
        return finetune(args, args.model, output / "gates" / f"penalty-{penalty}", args.gate_updates, flags)

    words = ["heads", "ablate", args.model, *data, *tests, *limit, *results("gates")]
    options = collab_parser().parse_args([str(word) for word in words])
    for penalty in args.penalties:
        logger.info("gates, penalty %s", penalty)
        text = gates.score(options, penalty, args.gate_updates, functools.partial(train, penalty))
        write_text(text, output / "gates.md")
    write_text(page.page(output, name), output / "table.md")
    logger.info("results: %s/table.md, %s.*.json, %s.*.svg", output, name, name)

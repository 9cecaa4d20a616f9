"""All head analyses of one trained translation model (`collab heads`)."""

import argparse
import contextlib
import io
import logging
import os
import re
from pathlib import Path
from typing import Any, List

from collab_fairseq.cli.options import command, positive
from collab_fairseq.files import write_text
from collab_fairseq.heads.ablation import TestSet
from collab_fairseq.heads.record import new_record, settings_of_tests
from collab_fairseq.heads.syntax import read_conllu
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, check_references, load_model
from fairseq_modern.errors import UserError
from recipes.heads import gates, page
from recipes.runner.cli import show_messages
from recipes.runner.finetune import build_parser, finetune, open_folder
from recipes.runner.machine import Machine
from recipes.runner.programs import collab

logger = logging.getLogger("recipe")

ABOUT = """Analyse the heads of a trained translation model: redundancy, importance, ablation of single heads with
paired bootstrap, pruning curves and roles. Then continue training with stochastic gates at several penalties, and
evaluate the models without the closed heads. The same command resumes an interrupted analysis."""
ENDING = """OUTPUT: the records NAME.redundancy.json, NAME.importance.json, NAME.ablate.json, NAME.prune.json,
NAME.prune-raw.json, NAME.roles.json and NAME.gates.json; their figures NAME.*.svg; table.md; and gates/ with the
checkpoints trained with gates."""
# gates need a high learning rate to move, the weights a low one at the end
TRAINING = ["--lr", "0.006", "--criterion", "label_smoothed_cross_entropy_with_gates"]
TRAINING += ["--save-interval-updates", "200", "--log-interval", "50"]


def penalties(text: str) -> List[str]:
    if not re.fullmatch(r"none|\d+(\.\d+)?(,\d+(\.\d+)?)*", text):
        raise UserError(f"--penalties must be numbers joined by commas, such as 0.01,0.03, or none; got '{text}'")
    return [] if text == "none" else text.split(",")


def main() -> None:
    parser = build_parser("heads", description=ABOUT, epilog=ENDING)
    add = parser.add_argument
    text = "only the first N sentences of each test split in ablation and pruning (default: all)"
    add("--sentences", metavar="N", type=positive, help=text)
    text = "CoNLL-U parses of the source side of the validation set, for syntactic heads"
    add("--parses", metavar="FILE", type=os.path.abspath, help=text)
    text = "gate penalties λ; 0: gates without a penalty; none: no gates (default: 0,0.01,0.03,0.1)"
    add("--penalties", metavar="X,X", type=penalties, default="0,0.01,0.03,0.1", help=text)
    text = "updates of each training run with gates (default: 1000)"
    add("--gate-updates", metavar="N", type=positive, default=1000, help=text)
    add("--device", metavar="NAME", default="auto", help="auto, cuda or cpu (default: auto: the GPU if available)")
    args = parser.parse_args()
    if not args.reference:
        raise UserError("--reference is needed (see --help)")
    if args.parses:
        read_conllu(args.parses)
    show_messages("heads")
    machine = Machine(args.device, default_gpus=1)
    machine.find_gpus()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    settings = {"gates": f"encoder_cross_decoder, {args.gate_updates} updates", "sentences": args.sentences}
    with open_folder(args, "heads", settings) as output:
        analyse(args, machine, output)


def analyse(args: argparse.Namespace, machine: Machine, output: Path) -> None:
    """Run all analyses and training runs whose results the records lack, and write the page."""
    name = args.name
    source = load_model(args.model, args.data, device=machine.device)
    check_references(source, dict(args.reference), args.sentences)
    if args.penalties and any(layer.shared() for layer in attention_layers(source.model).values()):
        raise UserError("--penalties must be none if heads share keys or values: closed heads are removed")

    def heads(step: str, *words: Any) -> None:
        """Run the analysis named by the first part of the step, and write its report to STEP.md."""
        logger.info("%s", step)
        results = ["--json", output / f"{name}.{step}.json", "--figure", output / f"{name}.{step}.svg"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            collab("heads", step.partition("-")[0], args.model, *words, *results)
        write_text(printed.getvalue(), output / f"{step}.md")

    data = ["--data", args.data, "--device", machine.device, "--threads", args.threads]
    tests = [word for split, file in args.reference for word in ("--reference", f"{split}={file}")]
    limit = ["--sentences", args.sentences] if args.sentences else []
    ranking = ["--importance", output / f"{name}.importance.json"]
    heads("redundancy")
    heads("importance", *data)
    heads("roles", *data, *ranking, *(["--parses", args.parses] if args.parses else []))  # first: parses may not match
    heads("ablate", *data, *tests, *limit)
    heads("prune", *data, *tests, *ranking, "--by-site", *limit)
    heads("prune-raw", *data, *tests, *ranking, "--ranking", "raw", *limit)
    if args.penalties:
        train_with_gates(args, machine, output, source)
    write_text(page.page(output, name), output / "table.md")
    logger.info("results: %s/table.md, %s.*.json, %s.*.svg", output, name, name)


def train_with_gates(args: argparse.Namespace, machine: Machine, output: Path, source: TrainedModel) -> None:
    def train(penalty: str) -> Path:
        flags = [*TRAINING, "--warmup-updates", str(args.gate_updates // 10), *machine.flags()]
        flags += ["--head-gates", "encoder_cross_decoder", "--gate-penalty", penalty]
        return finetune(args, args.model, output / "gates" / f"penalty-{penalty}", args.gate_updates, flags)

    search = {"beam": 5, "lenpen": 1.0, "max_tokens": 4000, "sentences": args.sentences}
    tests = [TestSet(split, file, search) for split, file in args.reference]
    settings = {**settings_of_tests(source, tests), "updates": args.gate_updates}
    command_line = command("recipes/heads/run.sh")
    path = output / f"{args.name}.gates.json"
    record = new_record("gates", command_line, [args.model], settings, path, machine.device)
    gates.score(source, tests, record, args.penalties, train)
    gates.draw(record.content, path.with_suffix(".svg"))
    write_text(gates.report(record.parts), output / "gates.md")

"""Training on your own text: from two raw text files, or a folder of them, to a model that translates."""

import argparse
import contextlib
import io
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Tuple

from omegaconf import DictConfig, OmegaConf

from data_prep import data_set, own, prepare
from fairseq_modern.errors import UserError
from recipes.runner import cli, settings
from recipes.runner.evaluation import export
from recipes.runner.folder import check_output
from recipes.runner.options import STEPS, build_parser
from recipes.runner.recipe_run import run_name
from recipes.runner.settings import ROOT
from recipes.runner.summary import check_packages, summarise
from recipes.runner.sweep import parse_run

ABOUT = """Check and split your text, learn a vocabulary, train, average, translate and score a model, and export a
folder for `collab translate`. With the step sweep: train standard heads for comparison as well, and print a table.
Unusable text raises a one-line error and leaves no files behind."""


def main() -> None:
    argv = sys.argv[1:]
    step = argv.pop(0) if argv and argv[0] in STEPS else ""
    if step not in ("", "sweep"):  # of a single run, with the text that is in --data
        cli.main("own", [step, *argv])
        return
    step = step or "all"
    cli.show_messages("own")
    if {"-h", "--help"} & {*argv}:
        print_help(step)
    described = prepare.load("own")
    words = [word for word in argv if re.match(r"\w+(\.\w+)+=", word)]  # otherwise taken for files of --source
    parser = data_set.parser_of("own", described)
    parser.set_defaults(output=None)
    args, rest = parser.parse_known_args([word for word in argv if word not in words])
    cfg, _ = cli.read("own", step, [*rest, *words])  # rejects unknown options before errors about the text
    languages = own.languages(args)
    for setting, language in zip(("task.source_lang", "task.target_lang"), languages, strict=True):
        given = OmegaConf.select(cfg, setting)
        if given not in (None, language):
            raise UserError(f"{setting} must be {language}, as in --source or --languages; got {given}")
    name = f"{args.source[0].resolve().stem}-{'-'.join(languages)}"
    output = Path(os.path.abspath(args.output)) if args.output else ROOT / "runs" / "own" / name
    args.output, run, model = output / "data", output / "run", output / "model"
    if step == "sweep":
        run = output
    if taken := {word.partition("=")[0] for word in (*rest, *words)} & {"--data", "recipe.data", "recipe.output"}:
        raise UserError(f"{min(taken)} is set by this recipe; give --output")
    rest += [*words, "--data", str(args.output), "--output", str(run)]
    # in quotes, because no is a boolean in YAML
    rest += [f'task.source_lang="{languages[0]}"', f'task.target_lang="{languages[1]}"']
    if step == "all":
        cfg, _ = cli.read_run("own", step, rest)
    elif not cfg.recipe.dry_run and not args.output.exists():  # impossible runs are errors before the text is prepared
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main("own", [step, *rest, "--dry-run"])
    if cfg.recipe.dry_run:
        cli.main("own", [step, *rest])
        return
    check_packages()
    check_output(output)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare.prepare("own", described, args)
    if step == "sweep":
        cli.main("own", [step, *rest])
        export_all(output, cfg)
        return
    with contextlib.ExitStack() as stack:
        messages = stack.enter_context(open(output / "messages.txt", "a", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(messages))
        cli.main("own", rest)
        if cfg.recipe.node_rank:  # the first node does everything else
            return
        export(run, args.output / "data-bin", model)
    summarise(output, args.output / "raw", languages, [run])
    print_example(args.output / "raw", model, languages)


def export_all(output: Path, cfg: DictConfig) -> None:
    """Export the finished runs of a sweep, each to its folder `model`."""
    for seed in cfg.recipe.seeds or [cfg.common.seed]:
        for selection in map(parse_run, cfg.recipe.runs):
            run = output / run_name(*selection, seed, cfg.optimization.max_update)
            if (run / "averaged.pt").is_file() and (run / "record.json").is_file():
                export(run, output / "data" / "data-bin", run / "model")
                sys.stdout.write(f"for `collab translate`: {os.path.relpath(run / 'model')}\n")


def print_help(step: str) -> None:
    """Print the options of every recipe and those of data_prep/own.sh, and exit."""
    parser = build_parser("own", step, settings.load("own"))
    parser.description, parser.conflict_handler = ABOUT, "resolve"
    group = parser.add_argument_group("your text")
    own.add_options(group)
    group.add_argument("--data", help=argparse.SUPPRESS)  # set by this recipe
    size = prepare.load("own").vocab_size
    text = f"SentencePiece pieces (default: {size}; fewer for a small text)"
    group.add_argument("--vocab-size", metavar="N", help=text)
    results = "data/, run/, model/ and summary.md" if step == "all" else "data/, table.md and the runs"
    text = f"folder of {results} (default: runs/own/<text>)"
    group.add_argument("--output", metavar="DIR", help=text)
    parser.parse_args(["--help"])


def print_example(texts: Path, model: Path, languages: Tuple[str, str]) -> None:
    """Print a command that translates the first test sentence."""
    with open(texts / f"test.{languages[0]}", encoding="utf-8", newline="\n") as stream:
        sentence = stream.readline().strip()
    folder = os.path.relpath(model) if model.is_relative_to(Path.cwd()) else str(model)
    sys.stdout.write(f"Try it: collab translate {shlex.quote(folder)} <<< {shlex.quote(sentence)}\n")

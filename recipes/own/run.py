"""From two raw text files, or a folder of them, to a model that translates."""

import contextlib
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from runner import cli, settings
from runner.evaluation import export
from runner.folder import check_output
from runner.options import build_parser
from runner.progress import shown
from runner.settings import ROOT
from runner.summary import summarise

sys.path.insert(0, str(ROOT / "data_prep"))
import data_set
import own
import prepare

SCRIPT = ROOT / "recipes" / "own" / "run.sh"
ABOUT = """Check your text, divide it, make its vocabulary, train, average, translate and score a model of it, and
leave a folder for `collab translate`. Bad text is refused in one sentence and leaves nothing behind."""


def main() -> None:
    argv = sys.argv[1:]
    if {"-h", "--help"} & {*argv}:
        parser = build_parser(SCRIPT, settings.load("own"))
        parser.description, parser.conflict_handler = ABOUT, "resolve"
        group = parser.add_argument_group("your text")
        own.add_options(group)
        text = "where data/, run/, model/ and summary.md go (default: runs/own/<text>)"
        group.add_argument("--output", metavar="DIR", help=text)
        parser.parse_args(["--help"])
    described = prepare.load("own")
    words = [word for word in argv if re.match(r"\w+(\.\w+)+=", word)]  # no file of --source
    parser = data_set.parser_of("own", described)
    parser.set_defaults(output=None)
    args, rest = parser.parse_known_args([word for word in argv if word not in words])
    cli.read(SCRIPT, [*rest, *words])  # which knows all other options
    languages = own.languages(args)
    name = f"{args.source[0].resolve().stem}-{'-'.join(languages)}"
    output = Path(os.path.abspath(args.output)) if args.output else ROOT / "runs" / "own" / name
    args.output, run, model = output / "data", output / "run", output / "model"
    rest += [*words, "--data", str(args.output), "--output", str(run)]
    rest += [f"task.{side}_lang={lang}" for side, lang in zip(("source", "target"), languages, strict=True)]
    cfg, _ = cli.read_run(SCRIPT, rest)
    if "--dry-run" in rest:
        cli.main(SCRIPT, rest)
        return
    check_output(output)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare.prepare("own", described, args)
    kept = open(output / "messages.txt", "a", encoding="utf-8")  # noqa: SIM115  (closed below)
    with kept, contextlib.redirect_stdout(kept), shown("own", cfg.optimization.max_update, [run]):
        cli.main(SCRIPT, rest)
        export(run, args.output / "data-bin", model)
    summarise(output, args.output / "raw", languages, [run])
    with open(args.output / "raw" / f"test.{languages[0]}", encoding="utf-8") as stream:
        sentence = stream.readline().strip()
    folder = os.path.relpath(model) if model.is_relative_to(Path.cwd()) else model
    sys.stdout.write(f"Try it: collab translate {shlex.quote(str(folder))} <<< {shlex.quote(sentence)}\n")

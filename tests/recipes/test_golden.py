"""The commands of all recipes, as they were: a change of the runner changes no training run by accident.

golden/commands.txt has the training commands of some runs of every recipe as differences from the first one, their
settings of decoding, and the commands of data preparation. golden/digests.txt has a checksum of the training commands
and of the identity of every run and every variant on several machines. To renew both files after an intended change,
and review it:

    python -m tests.recipes.test_golden && git diff tests/recipes/golden
"""

import contextlib
import difflib
import hashlib
import io
import itertools
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple
from unittest import mock

import pytest
import torch

from collab_fairseq.cli.main import guarded
from data_prep import data_set, prepare
from fairseq_modern import processor
from recipes.runner import cli, settings
from recipes.runner.settings import DECODING_SECTIONS, USER_DIR, flags
from tests import warm
from tests.common import ROOT, mostly_slow, run
from tests.recipes import test_settings

GOLDEN = Path(__file__).parent / "golden"
RECIPES = ROOT / "recipes"
#: recipe → names of its YAML files; the empty one is NAME.yaml. That of own needs a text
CONFIGS = {recipe: ["", *others] for recipe, others in test_settings.CONFIGS.items() if recipe != "own"}
#: the digests have all of them for NAME.yaml, the first and the last one for other YAML files
MACHINES = {
    "cpu": "--device cpu",
    "gpu": "--gpus 1",
    "gpus": "--gpus 4",
    "nodes": "--gpus 2 --nodes 2 --master first:29500 --node-rank 1",
}
#: paths of this machine → names
PATHS = {
    settings.PYTHON: "PYTHON",
    str(Path(sys.executable).parent): "BIN",
    str(Path(USER_DIR).parent): "ROOT",
    str(ROOT): "ROOT",
}
ENVIRONMENT = {"MASTER_PORT": "29500", "CUDA_VISIBLE_DEVICES": "", "RECIPE_CONFIG": ""}


def without_paths(text: str) -> str:
    for path, name in PATHS.items():
        text = text.replace(path, name)
    return text


def settings_of(recipe: str, words: Sequence[str]):
    return cli.read_run(recipe, "all", list(words))[0]


def commands(recipe: str, words: Sequence[str]) -> List[str]:
    """The training commands that a recipe prints with --dry-run, one per stage."""
    argv = [*words, "--threads", "8", "--dry-run"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = guarded(recipe, lambda: cli.main(recipe, argv))
    assert status == 0, errors.getvalue()
    return without_paths(printed.getvalue()).splitlines()


def on(machine: str, recipe: str, config: str) -> List[str]:
    """Options for a machine. A dry run for GPUs of another machine needs a precision."""
    words = MACHINES[machine].split()
    if machine != "cpu" and recipe != "curve" and config != "precision" and "wmt14" not in recipe:
        words += ["--precision", "bf16"]
    if machine in ("gpus", "nodes") and (recipe == "toy" or config == "rehearsal"):
        words.append("recipe.batch_tokens=8192")  # divisible among four processes
    if config == "rehearsal" and machine != "cpu":
        words += ["--device", "gpu"]
    return words


def runs(recipe: str, config: str) -> Iterator[Tuple[bool, List[str]]]:
    """The options of each run and each variant of a recipe, and whether they belong to the shorter list."""
    options = ["--config", config] if config else []
    cfg = settings_of(recipe, options)
    seen = set()
    for selected in cfg.recipe.runs:
        heads, key_dim, *variant = selected.split(":")
        variants = ["--variant", *variant] if variant else []
        yield heads not in seen, [*options, "--heads", heads, "--key-dim", key_dim, *variants]
        seen.add(heads)
    for name, heads in itertools.product(cfg.recipe.variants, ("none", "encoder_cross_decoder")):
        fits = heads == "none" if name.startswith(("keys", "latent")) else heads != "none"
        is_possible = fits or not name.startswith(("keys", "latent", "values", "masked", "blocks", "normal"))
        if is_possible:
            is_short = fits and not config and recipe != "micro_wmt"  # with the variants of multi30k
            yield is_short, [*options, "--heads", heads, "--key-dim", "64", "--variant", name]
    if cfg.recipe.stock:
        yield not config, [*options, "--stock"]
    yield not config, [*options, "--fast", "--seed", "7", "--updates", "1200", "--average", "2", "model.dropout=0.2"]


def cases(recipe: str) -> Iterator[Tuple[List[str], str, bool]]:
    """The options of each run and variant with each machine, and whether they belong to the shorter list."""
    for config in CONFIGS[recipe]:
        for number, (short, words) in enumerate(runs(recipe, config)):
            for machine in ("cpu", "nodes") if config else MACHINES:
                in_short = short and (machine == "cpu" or (number == 0 and not config))
                yield words, shlex.join(on(machine, recipe, config)), in_short


def in_lines(command: str) -> List[str]:
    """A command with each flag and its values in one line."""
    lines: List[str] = []
    for word in shlex.split(command):
        if lines and not word.startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return lines


def differences(first: List[str], others: List[str]) -> List[str]:
    return list(difflib.unified_diff(first, others, n=0, lineterm=""))[2:]


def short_list(recipe: str) -> str:
    """The section of a recipe in golden/commands.txt."""
    text = []
    first: List[str] = []
    for options, machine, short in cases(recipe):
        if not short:
            continue
        text.append(f"\n# {recipe} {shlex.join(options)} {machine}")
        for command in commands(recipe, [*options, *machine.split()]):
            lines = in_lines(command)
            text += differences(first, lines) if first else lines
            first = first or lines
    for config in CONFIGS[recipe]:
        cfg = settings_of(recipe, ["--config", config] if config else [])
        words = flags(cfg, "task", *DECODING_SECTIONS)
        text.append(f"# {recipe} {config}: {shlex.join(words)} --max-tokens {cfg.recipe.decoding_tokens}")
        text.append(f"# identity: {digest(identity(cfg))}")
    return "\n".join(text) + "\n"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(cfg: Any) -> str:
    return repr(sorted(settings.identity(cfg).items()))


def digests(recipe: str) -> str:
    """The lines of a recipe in golden/digests.txt: options, digests of identity and commands."""
    lines: Dict[str, List[str]] = {}
    for options, machine, _ in cases(recipe):
        name = f"{recipe} {shlex.join(options)}"
        if name not in lines:
            lines[name] = [digest(identity(settings_of(recipe, options)))]
        lines[name].append(digest("\n".join(commands(recipe, [*options, *machine.split()]))))
    return "".join(f"{name}: {' '.join(each)}\n" for name, each in lines.items())


def preparation(folder: Path) -> str:
    """The section of data preparation: the first lines of prepared.txt and the command of fairseq-preprocess."""
    text = []
    for lang in ("en", "de"):
        (folder / f"own.{lang}").write_text("a\n" * 600)
    for name in sorted(path.stem for path in (ROOT / "data_prep").glob("*.yaml")):
        described = prepare.load(name)
        words = ["--source", str(folder / "own.en"), str(folder / "own.de")] if name == "own" else []
        args = data_set.parser_of(name, described).parse_args([*words, "--workers", "2"])
        preparation = prepare.Preparation(name, described, args)
        done = subprocess.CompletedProcess([], 0)
        with mock.patch("subprocess.run", return_value=done) as started, contextlib.suppress(FileNotFoundError):
            preparation.binarise(folder, folder / "pieces", {**described.texts, "valid": "valid"})  # writes no log
        text += [f"\n# data_prep/{name}.sh", *preparation.header[:2], shlex.join(started.call_args.args[0])]
    return without_paths("\n".join(text)) + "\n"


def from_bash() -> str:
    """What some scripts print, started as users do."""
    own = ["--source", "my.en", "my.de", "--output", "/own"]
    text = []
    for script, words in (
        ("own/run.sh", own),
        ("toy/run.sh", ["--heads", "none", "--key-dim", "16", "--output", "/run", "--data", "/data"]),
        ("toy/run.sh", ["sweep", "--seeds", "1,2", "--output", "/runs", "--average", "3", "optimization.clip_norm=1"]),
    ):
        words += ["--device", "cpu", "--precision", "fp32", "--threads", "3", "--dry-run"]
        printed = run("bash", RECIPES / script, *words, env=ENVIRONMENT).stdout
        printed = printed.replace(f"{warm.start()}/python", "PYTHON").replace(str(warm.start()), "BIN")
        text += [f"\n# recipes/{script} {shlex.join(words)}", without_paths(printed).rstrip("\n")]
    return "\n".join(text) + "\n"


@contextlib.contextmanager
def reference_machine() -> Iterator[None]:
    """Within the block, a CPU with native bf16 support and without GPUs, outside Slurm."""
    others = ("SLURM", "FAIRSEQ_MODERN")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {**environment, **ENVIRONMENT}, clear=True))
        stack.enter_context(mock.patch.object(torch.cuda, "is_available", return_value=False))
        stack.enter_context(mock.patch.object(processor, "bfloat16_units", return_value=True))
        stack.enter_context(mock.patch.object(cli, "show_messages"))
        stack.enter_context(mock.patch.object(settings, "load", test_settings.LOAD))
        logging.disable(logging.WARNING)
        stack.callback(logging.disable, logging.NOTSET)
        yield


@pytest.fixture
def _reference_machine():
    with reference_machine():
        yield


def section(file: str, start: str) -> str:
    """The blocks of golden/commands.txt that begin with `start`."""
    blocks = (GOLDEN / file).read_text(encoding="utf-8").split("\n\n")
    return "".join(f"\n{block.strip()}\n" for block in blocks if block.strip().startswith(start))


@pytest.mark.usefixtures("_reference_machine")
@pytest.mark.parametrize("recipe", mostly_slow(CONFIGS, "multi30k", "micro_wmt", "toy", "wmt14_en_de"))
def test_training_commands(recipe):
    assert short_list(recipe) == section("commands.txt", f"# {recipe} ")


@pytest.mark.slow
@pytest.mark.usefixtures("_reference_machine")
@pytest.mark.parametrize("recipe", CONFIGS)
def test_training_commands_of_every_run_and_variant_on_every_machine(recipe):
    lines = (GOLDEN / "digests.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    assert digests(recipe) == "".join(line for line in lines if line.split()[0] == recipe)


@pytest.mark.usefixtures("_reference_machine")
def test_commands_of_data_preparation(tmp_path):
    assert preparation(tmp_path) == section("commands.txt", "# data_prep/")


def test_what_scripts_print():
    assert from_bash() == section("commands.txt", "# recipes/")


if __name__ == "__main__":
    import tempfile

    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, reference_machine():
        texts = [*map(short_list, CONFIGS), preparation(Path(temporary)), from_bash()]
        (GOLDEN / "commands.txt").write_text("".join(texts), encoding="utf-8")
        (GOLDEN / "digests.txt").write_text("".join(map(digests, CONFIGS)), encoding="utf-8")

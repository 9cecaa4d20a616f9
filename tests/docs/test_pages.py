"""The pages are correct: commands run, paths exist, flags are known, tables match the records."""

import functools
import importlib
import re
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from fairseq import options
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import collab_fairseq.models  # noqa: F401  (registers transformer_collab)
from collab_fairseq.cli.heads import ANALYSES
from collab_fairseq.cli.main import build_parser
from recipes.__main__ import program_of
from recipes.runner import cli, settings
from recipes.runner.sweep import parse_run
from tests.common import ROOT, run

PAGES = {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README, TEXT = PAGES[ROOT / "README.md"], "\n".join(PAGES.values())
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FOLDERS = "collab_fairseq|fairseq_modern|tests|recipes|data_prep|results|docs"

#: makes the README's training commands short
SMALL = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 20, "attention_heads": 2}


def block(language, containing):
    """Return the only block of a language that contains a text."""
    (found,) = [text for kind, text in BLOCKS if kind == language and containing in text]
    return found


def bash(script, cwd):
    """Run a block as a user would paste it."""
    return run("bash", "-euo", "pipefail", "-c", script, cwd=cwd)


def test_python_snippet():
    variables = {}
    exec(block("python", "CollaborativeAttention"), variables)
    assert tuple(variables["output"].shape) == (2, 7, 512)
    assert tuple(variables["weights"].shape) == (2, 7, 7)
    assert (variables["weights"][0].triu(1) == 0).all()


def test_translate_with_a_published_model(monkeypatch):
    monkeypatch.chdir(ROOT)
    variables = {}
    *first, last = block("python", 'collab_fairseq.load("results').strip().split("\n")
    exec("\n".join(first), variables)
    (sentence,) = eval(last, variables)
    assert bash(block("bash", "collab translate results"), ROOT).stdout == sentence + "\n"
    assert "Fahrrad" in sentence


def test_train_average_translate_score(tiny_data, tmp_path):
    small = " ".join(f"--{s}-{k.replace('_', '-')} {v}" for s in ("encoder", "decoder") for k, v in SMALL.items())
    end = f"{small} --key-dim 6 --max-tokens 100 --max-update 5 --save-interval-updates 1 --cpu"
    train = block("bash", "fairseq-train DATA").replace("DATA", str(tiny_data)).rstrip("\n")
    bash(f"{train} {end}", tmp_path)
    assert (tmp_path / "checkpoints" / "checkpoint_last.pt").exists()

    average, generate, score = block("bash", "collab average").strip().split("\n")
    bash(average, tmp_path)
    bash(generate.replace("DATA", str(tiny_data)).replace(" > ", " --cpu > "), tmp_path)
    references = re.findall(r"^T-(\d+)\t(.*)$", (tmp_path / "generate.log").read_text(), re.MULTILINE)
    lines = [text for _, text in sorted(references, key=lambda pair: int(pair[0]))]
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in lines))
    printed = bash(score, tmp_path).stdout
    assert all(name in printed for name in ("tokenised BLEU", "compound-split BLEU", "sacreBLEU", "signature nrefs:1"))

    convert = block("bash", "collab reparam").replace("DATA", str(tiny_data)).replace("--key-dim 64", "--key-dim 4")
    assert "BLEU test: " in bash(convert.replace("train:400", "train:40"), tmp_path).stdout
    python = block("python", "/path/to/RUN").replace("/path/to/RUN", str(tmp_path))
    variables = {}
    exec(python.replace("/path/to/DATA", str(tiny_data)), variables)
    assert variables["model"].translate("the red dog")


#: all pages, and the help of every subcommand
TEXTS = {str(page.relative_to(ROOT)): page for page in [*PAGES, *sorted(ROOT.glob("re*/**/*.md"))]}
TEXTS = {name: page.read_text(encoding="utf-8") for name, page in TEXTS.items()}
for file in sorted((ROOT / "collab_fairseq" / "cli").glob("*.py")):
    TEXTS[f"cli/{file.name}"] = importlib.import_module(f"collab_fairseq.cli.{file.stem}").__doc__
TEXTS.update({f"collab heads {name}": description for name, description in ANALYSES.items()})


def test_collab_commands_parse():
    """Other programs: the blocks above, and the tests of the recipes, run them."""
    text, parser = "\n".join(TEXTS.values()), build_parser()
    text = re.sub(r"^srun (?:--[\w-]+ \d+ )*", "", text, flags=re.MULTILINE)
    found = re.findall(r"^ *(collab (?:.*\\\n)*.*)$", text, re.MULTILINE)
    found += re.findall(r"`(collab [^`]* --[^` ]+ [^`]*)`", text)
    commands = [c for c in found if not re.search(r" {3,}[^ #]", c.replace("\\\n", ""))]  # not lists of subcommands
    assert len(commands) > 50
    for command in commands:
        words = shlex.split(re.sub(r"\s+[#<>].*|[\[\]]|\\\n", "", command))
        parser.parse_args(words[1:])


def test_recipe_commands_parse(monkeypatch):
    """Training recipes: flags, settings and variants exist. The tests of the other recipes run these."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(settings, "load", functools.cache(settings.load))
    command = r"recipes/(?:slurm/run\.sbatch (\w+)|(\w+)/run\.sh)((?: (?:[^`)\n\\]|\\\n)*)?)"
    found = re.findall(command, "\n".join(TEXTS.values()))
    split = {(job or recipe, *shlex.split(text.replace("\\\n", ""), comments=True)) for job, recipe, text in found}
    training = [words for words in split if not program_of(ROOT / "recipes" / words[0], [*words[1:]])]
    assert len(training) > 40
    for recipe, *words in training:
        step = words.pop(0) if words and words[0] in cli.options.STEPS else "all"
        cfg, _ = cli.read(recipe, step, words)
        for _, _, variant in map(parse_run, cfg.recipe.runs if step == "sweep" else []):
            assert not variant or settings.variant(cfg.recipe, variant)


def test_hydra(tiny_data, tmp_path):
    config = block("yaml", "transformer_collab")
    config = config.replace("/path/to/collab_fairseq", str(ROOT / "collab_fairseq"))
    config = config.replace("/path/to/DATA", str(tiny_data))
    (tmp_path / "experiment.yaml").write_text(config)
    command = block("bash", "fairseq-hydra-train").replace("CONFIG_DIR", str(tmp_path)).replace("CONFIG", "experiment")
    small = [f"++model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in SMALL.items()]
    end = ["model.key_dim=6", "common.cpu=true", "optimization.max_update=2"]
    end += ["distributed_training.distributed_world_size=1", f"checkpoint.save_dir={tmp_path}/run"]
    bash(f"{command.strip()} {' '.join(small + end)} hydra.run.dir={tmp_path}", tmp_path)
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    named = re.findall(rf"`((?:{FOLDERS})/[\w/.-]+)`", PAGES[page])
    files = re.findall(r"`([\w.]+\.(?:txt|py|md|toml))`", PAGES[page])
    assert all((ROOT / name).exists() for name in [*named, *files]), [*named, *files]


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".md")])
def test_links_lead_to_files_and_headings(name):
    linked = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", TEXTS[name]) if "://" not in link]
    for link, _, anchor in linked:
        path = (ROOT / name).parent / link if link else ROOT / name
        assert path.exists(), path
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], anchor


def test_flags_are_known():
    training = options.get_training_parser()  # fairseq-train --help omits flags that depend on --arch
    chosen = ["--arch", "transformer_collab", "--optimizer", "adam", "--lr-scheduler", "inverse_sqrt"]
    options.parse_args_and_arch(training, ["data", *chosen, "--criterion", "label_smoothed_cross_entropy_with_gates"])
    tools = [["fairseq-generate"], ["fairseq-hydra-train"]]
    tools += [["bash", ROOT / "recipes/multi30k/run.sh", *step] for step in ([], ["sweep"])]
    for command in ("average", "score", "doctor", "reparam", "export", "translate", "heads prune"):
        tools.append(["collab", *command.split()])
    tools.append(["python", "-m", "benchmarks", "train"])
    helps = [
        training.format_help(),
        *(run(*tool, "--help", cwd=ROOT).stdout for tool in tools),
        "--no-deps --no-index --no-cache-dir --force-reinstall --wheel-dir --constraint",  # of pip
        "--system-site-packages",  # of venv
        "--cpus-per-task --gpus-per-node --gres --overlap --jobid --partition --account --batch --signal",  # of Slurm
        "--query-gpu --format",  # of nvidia-smi
        "--config-dir --config-name --multirun --eval-bleu",  # of Hydra, fairseq's translation task
    ]
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", re.sub("<!--.*?-->", "", TEXT, flags=re.DOTALL)))
    assert len(flags) > 20
    for flag in flags:
        assert any(re.search(rf"(?<![\w-]){flag}(?![\w-])", text) for text in helps), flag


def test_make_targets_and_pins():
    targets = re.findall(r"^    make (\w+)", TEXT, re.MULTILINE)
    assert "setup" in targets
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
    setup = (ROOT / "setup.py").read_text()
    requirements = re.findall(r'"([\w-]+[<>=][^"]*)"', block("bash", "--no-deps fairseq"))
    assert requirements
    for requirement in requirements:
        assert f'"{requirement}"' in setup
    assert 'python_requires=">=3.10,<3.14"' in setup
    assert "Python 3.10–3.13" in README
    assert "Python 3.10–3.13" in PAGES[ROOT / "docs" / "install.md"]


@pytest.mark.parametrize("installed", ["torch==2.7.1+cu126", ""])
def test_setup_keeps_an_installed_torch(installed, tmp_path):
    """A script replaces the Python of the environment, and pip."""
    (python := tmp_path / "venv" / "bin" / "python").parent.mkdir(parents=True)
    script = f'#!/bin/sh\ncase $2 in *version*) echo "{installed}" ;; *) echo "$*" >>{tmp_path}/log ;; esac\n'
    python.write_text(script)
    python.chmod(0o755)
    run("make", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", cwd=ROOT)
    has_pip, *asked = (tmp_path / "log").read_text().splitlines()
    assert has_pip == "-m pip --version"
    first = "-m pip install --quiet --disable-pip-version-check --constraint"
    assert asked[0] == f"{first} {tmp_path}/venv/constraints.txt torch"
    assert all(line.startswith((asked[0].removesuffix("torch"), "-c import fairseq")) for line in asked)
    python.write_text(script.replace("case", 'case "$*" in "-m pip --version") exit 1 ;; esac; case', 1))
    (tmp_path / "venv" / "ready").unlink()
    run("make", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", cwd=ROOT)
    assert (tmp_path / "log").read_text().splitlines()[1 + len(asked)] == "-m ensurepip"
    versions = (ROOT / "constraints.txt").read_text()
    expected = re.sub("^torch==.*", installed, versions, flags=re.MULTILINE) if installed else versions
    assert (tmp_path / "venv" / "constraints.txt").read_text() == expected


def test_pins_can_be_installed_on_every_supported_python():
    pins = [
        Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    checked = 0
    for pin in pins:
        try:
            about = metadata.metadata(pin.name)
        except metadata.PackageNotFoundError:  # of another platform
            continue
        for python in ("3.10", "3.11", "3.12", "3.13"):
            chosen = pin.marker is None or pin.marker.evaluate({"python_version": python})
            if chosen and pin.specifier.contains(about["Version"], prereleases=True):
                assert SpecifierSet(about["Requires-Python"] or "").contains(f"{python}.9"), (str(pin), python)
                checked += 1
    assert checked > len(pins)


def intervals(lines):
    """Yield mean, low and high as text."""
    number = r"([−+-]?\d+\.\d+)"
    yield from re.findall(rf"{number}(?: \|| with a 90 % interval of)? \[{number}, {number}\]", " ".join(lines))


def numbers(interval):
    return [float(part.replace("−", "-")) for part in interval]


@pytest.mark.parametrize(
    ("page", "tables"),
    [
        ("README.md", "curve"),
        ("docs/flags.md", r"\w+"),
        ("recipes/curve/README.md", "curve"),
        ("recipes/curve/convergence.md", "curve"),
        ("recipes/curve/rates.md", "curve"),
        ("recipes/multi30k/README.md", "multi30k"),
    ],
)
def test_intervals_match_the_generated_tables(page, tables):
    """Intervals in sentences, and in tables that are written by hand."""
    generated = r"<!-- \w+: .*?-->(.*?)<!-- /"
    in_text = list(intervals(re.sub(generated, "", TEXTS[page], flags=re.DOTALL).splitlines()))
    pages = [text for name, text in TEXTS.items() if re.fullmatch(rf"recipes/{tables}/\w+\.md", name)]
    lines = [line for text in pages for part in re.findall(generated, text, re.DOTALL) for line in part.splitlines()]
    in_tables = [numbers(found) for found in intervals(lines)]
    assert in_text
    for found in in_text:
        mean, low, high = numbers(found)
        # without a sign, a text may state the loss of one as the gain of the other
        stated = [(mean, low, high)] if found[0][0] in "+−-" else [(mean, low, high), (-mean, -high, -low)]
        half = 0.501 * 10 ** -len(found[0].partition(".")[2])
        assert any(pytest.approx(other, rel=0, abs=half) == list(one) for one in stated for other in in_tables), found


@pytest.mark.slow
def test_tables_match_the_records():
    printed = run("make", "tables", "CHECK=--check", "COLLAB=collab", cwd=ROOT).stderr
    assert re.search(r" README\.md .*is up to date", printed)
    texts = [page.read_text(encoding="utf-8") for page in [*PAGES, *(ROOT / "recipes").rglob("*.md")]]
    with_tables = [text for text in texts if re.search(r"^<!-- /\w+ -->$", text, re.MULTILINE)]
    assert printed.count("is up to date") == len(with_tables) > 10

"""Training on your own text: a small corpus and few updates end in a model; unusable text is rejected."""

import importlib
import re
import shlex
import sys
import unicodedata

import pytest

from data_prep import own, toy
from tests.common import ROOT, content, program, rejected, run
from tests.recipes.test_settings import assert_accepted, assert_rejected, call  # noqa: F401  (call: a fixture)

RECIPE = ["bash", ROOT / "recipes" / "own" / "run.sh"]
RECIPE += ["--device", "cpu", "--precision", "fp32", "--threads", 1]


def write(folder, pairs, name="mine", languages=("en", "de")):
    """Write sentence pairs to two files."""
    files = [folder / f"{name}.{lang}" for lang in languages]
    for side, file in enumerate(files):
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def pairs():
    return toy.corpus(5, {"train": 700, "valid": 1, "test": 1})["train"]


def test_two_files_become_a_model_that_translates(tmp_path, pairs):
    files = write(tmp_path, [*pairs, pairs[0], ("", "Leer."), ("Empty.", " ")], languages=("en", "x_de"))
    output = tmp_path / "out"
    command = [*RECIPE, "--source", *files, "--output", output, "--vocab-size", 200]
    small = ["--updates", 6, "--average", 2, "lr_scheduler.warmup_updates=2"]
    small += ["model.encoder.layers=1", "model.decoder.layers=1"]
    done = run(*command, *small)
    assert "own: train 673, valid 14, test 14 pairs" in done.stderr
    assert re.search(r"own: run: 100% 6/6 \[.*, training", done.stderr)
    assert "ends within its warm-up" not in done.stderr  # control
    short = run(*command, "--updates", 6, "--average", 2, "--dry-run")
    assert short.stderr.startswith("own: the run ends within its warm-up")
    raw = content(output / "data" / "raw")
    assert sorted(raw) == ["test.en", "test.x_de", "valid.en", "valid.x_de"]
    assert "sacreBLEU" in (output / "summary.md").read_text(encoding="utf-8")
    first = raw["test.en"].decode("utf-8").split("\n")[0]
    *_, last = done.stdout.strip().split("\n")
    assert last == f"Try it: collab translate {output / 'model'} <<< '{first}'"
    translated = run("collab", "translate", output / "model", input=f"{first}\n").stdout
    assert translated.count("\n") == 1

    before = content(output)
    again = run(*command, *small)
    assert again.stdout == done.stdout
    assert again.stderr.count("already done") == 3
    differences = "optimization.max_update 6 (requested: 4000)", "model.decoder.layers 1 (requested: None)"
    rejected(run(*command, *small[2:-1], check=False), "has a run with different settings: ", *differences)
    files[0].write_text(files[0].read_text(encoding="utf-8").replace("dog", "cat"))
    rejected(run(*command, check=False), "was prepared with different options or files")
    assert {**content(output), "messages.txt": b""} == {**before, "messages.txt": b""}


SMALL = ["--vocab-size", 200, "--updates", 6, "--average", 2, "lr_scheduler.warmup_updates=2"]
SMALL += ["model.encoder.layers=1", "model.decoder.layers=1"]


def test_sweep_trains_standard_heads_for_comparison(tmp_path, pairs):
    """The runs of a sweep are those of the runner, on the text that the sweep prepares."""
    files = write(tmp_path, pairs)
    sweep = [RECIPE[0], RECIPE[1], "sweep", *RECIPE[2:], "--source", *files, "--output", tmp_path / "out"]
    lines = run(*sweep, *SMALL, "--dry-run").stdout.splitlines()
    names = ["none-dk128-s1-u6", "encoder_cross_decoder-dk32-s1-u6"]
    for line, name in zip(lines, names, strict=True):
        heads, key_dim = name.split("-dk")
        words = shlex.split(line)
        start = ["all", "--heads", heads, "--key-dim", key_dim.partition("-")[0], "--seed", "1", "--output"]
        assert words[0].endswith("recipes/own/run.sh")
        assert words[1:10] == [*start, str(tmp_path / "out" / name)]
        assert words[words.index("--data") + 1] == str(tmp_path / "out" / "data")
        assert "--source" not in words
        assert {'task.source_lang="en"', "lr_scheduler.warmup_updates=2"} <= set(words)
    assert not (tmp_path / "out").exists()
    rejected(run(*sweep, "--runs", "none", check=False), "--runs must be HEADS:KEY_DIM[:VARIANT]")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sweep_ends_with_one_table(tmp_path, pairs):
    files = write(tmp_path, pairs)
    sweep = [RECIPE[0], RECIPE[1], "sweep", *RECIPE[2:], "--source", *files, "--output", tmp_path / "out"]
    done = run(*sweep, *SMALL)
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert table in done.stdout
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert ["standard" in rows[1], "collaborative" in rows[2]] == [True, True]
    assert "Compared with standard, key dimension 128" in table
    for name in ("none-dk128-s1-u6", "encoder_cross_decoder-dk32-s1-u6"):
        assert (tmp_path / "out" / name / "model" / "README.md").is_file()
    again = run(*sweep, *SMALL)
    assert again.stderr.count("already done") == 2
    assert table in again.stdout


def test_held_out_pairs_do_not_depend_on_the_order_and_are_not_in_train(pairs):
    parts, backwards = own.hold_out(pairs, 30), own.hold_out(pairs[::-1], 30)
    assert parts == {**backwards, "train": backwards["train"][::-1]}
    sides = {part: {side for pair in part_pairs for side in pair} for part, part_pairs in parts.items()}
    assert len(sides["valid"]) == len(sides["test"]) == 60
    assert not sides["train"] & (sides["valid"] | sides["test"])
    assert not sides["valid"] & sides["test"]
    assert len(parts["train"]) == 640


def test_forms_of_unicode_are_one_text(tmp_path, pairs):
    """Otherwise a test pair with separate accents would be in train as well, which SentencePiece normalises."""
    texts = [(f"{english} é", f"{german} ü") for english, german in pairs]
    both = [tuple(unicodedata.normalize(form, side) for side in pair) for pair in texts for form in ("NFC", "NFD")]
    assert own.read_pairs(write(tmp_path, both)) == [pair for pair in texts for _ in range(2)]


def test_folder_keeps_its_split(tmp_path, pairs):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, part_pairs in (("train", pairs), ("valid", pairs[:3]), ("test", pairs[10:14])):
        write(folder, part_pairs, part)
    prepare = ["bash", ROOT / "data_prep" / "own.sh", "--source", folder, "--vocab-size", 200]
    assert "--languages en-de" in run(*prepare, check=False, cwd=tmp_path).stderr
    done = run(*prepare, "--languages", "de-en", "--output", tmp_path / "out")
    assert "own: train 693, valid 3, test 4 pairs" in done.stderr
    assert (tmp_path / "out" / "raw" / "test.de").read_bytes() == (folder / "test.de").read_bytes()
    assert (tmp_path / "out" / "data-bin" / "train.de-en.en.bin").is_file()


def test_rejects_corpora_without_enough_pairs_within_the_length_limits(tmp_path, pairs):
    long = [[" ".join(side) for side in zip(*pairs[number : number + 15], strict=True)] for number in range(520)]
    files = write(tmp_path, long)
    before = content(tmp_path)
    prepare = ["bash", ROOT / "data_prep" / "own.sh", "--output", tmp_path / "out", "--source", *files]
    messages = (
        "the number of pairs kept must be at least 500 (at most 250 pieces ",
        "; got 0 pairs kept, 500 pairs left out",
    )
    rejected(run(*prepare, check=False), *messages)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("rank", "steps"), [("0", ["train", "export", "summarise", "print_example"]), ("1", ["train"])]
)
@pytest.mark.parametrize("slurm", [False, True])
def test_only_the_first_node_exports_the_model(slurm, rank, steps, tmp_path, monkeypatch):
    recipe = importlib.import_module("recipes.own.run")
    done = []
    monkeypatch.setattr(recipe.cli, "main", lambda *_: done.append("train"))
    monkeypatch.setattr(recipe.prepare, "prepare", lambda *_: (tmp_path / "out").mkdir())
    for name in ("export", "summarise", "print_example"):
        monkeypatch.setattr(recipe, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = ["--source", "a.en", "a.de", "--output", str(tmp_path / "out")]
    if slurm:
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
        monkeypatch.setenv("SLURM_NODEID", rank)
    else:
        words += ["--nodes", "2", "--node-rank", rank]
    monkeypatch.setattr("sys.argv", ["run.sh", *words])
    recipe.main()
    assert done == steps


def test_norwegian_is_a_language(tmp_path, pairs):
    """In YAML, no is a boolean."""
    source, target = write(tmp_path, pairs)
    target = target.rename(tmp_path / "mine.no")
    words = ["--source", source, target, "--device", "cpu", "--output", tmp_path / "out", "--dry-run"]
    assert "--source-lang en --target-lang no " in run(*RECIPE, *words).stdout


SOURCE = "--source mine.en mine.de"


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda a, b: b.write_text("eins\n"), SOURCE, "both files must have the same number of lines"),
        (lambda a, b: b.write_bytes(b"1\nzw\xf6lf\n"), SOURCE, "must be UTF-8 text; got other bytes in line 2"),
        (lambda a, b: b.write_bytes(a.read_text().encode("utf-16-le")), SOURCE, "got zero bytes, as in UTF-16"),
        (lambda a, b: b.unlink(), SOURCE, "No such file or directory: 'mine.de'"),
        (lambda *files: [path.write_text("\n" * 700) for path in files], SOURCE, "500 sentence pairs; got 0"),
        (None, "", "--source must be two text files or a folder"),
        (None, "--source a.en b.en", "--languages must be two languages, such as en-de; got 'en-en'"),
        (None, "--source a.en a.de model.dropuot=1", "Key 'dropuot' not in"),
        (None, f"{SOURCE} task.source_lang=de", "task.source_lang must be en, as in --source or --languages; got de"),
        (None, f"{SOURCE} recipe.data=x", "recipe.data is set by this recipe; give --output"),
        (None, f"{SOURCE} --output mine.en", "--output must be a writable folder; got "),
    ],
)
def test_rejects_unusable_text_and_options_and_leaves_nothing(change, words, message, tmp_path, pairs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = write(tmp_path, pairs)
    if change:
        change(*files)
    before = content(tmp_path)
    done = program("recipes", "own", *RECIPE[2:], "--output", "out", *words.split())
    rejected(done, "recipes/own/run.sh: error: ", message)
    assert done.stderr.count("\n") == 1
    assert content(tmp_path) == before


def test_rejects_a_target_language_whose_tokeniser_is_missing(call, monkeypatch, tmp_path):  # noqa: F811
    """Before any work, and only if translations are scored."""
    monkeypatch.setitem(sys.modules, "MeCab", None)  # as if sacrebleu[ja] were not installed
    words = ["task.target_lang=ja", "--output", tmp_path / "run", "--device", "cpu", "--dry-run"]
    assert_rejected(call("toy", *words), "sacreBLEU cannot tokenise ja: Japanese")
    assert_accepted(call("toy", "train", *words))

"""From text of one's own to a model that translates: a small corpus, few updates; and what is refused."""

import json
import sys

import own
import pytest
import toy

from tests.common import ROOT, content, run

RECIPE = ROOT / "recipes" / "own" / "run.sh"
FLAGS = ["--device", "cpu", "--precision", "fp32", "--threads", 1, "--python", sys.executable]


def write(folder, pairs, name="mine", languages=("en", "de")):
    """The two files of the pairs."""
    files = [folder / f"{name}.{lang}" for lang in languages]
    for side, file in enumerate(files):
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def pairs():
    return toy.corpus(5, {"train": 700, "valid": 1, "test": 1})["train"]


def test_two_files_become_a_model_that_translates(tmp_path, pairs):
    files = write(tmp_path, [*pairs, pairs[0], ("", "Leer."), ("Empty.", " ")], languages=("en", "x_de"))
    command = ["bash", RECIPE, "--source", *files, "--output", tmp_path / "out", "--vocab-size", 200, *FLAGS]
    small = ["--updates", 6, "--average", 2, "lr_scheduler.warmup_updates=2"]
    small += ["model.encoder.layers=1", "model.decoder.layers=1"]
    done = run(*command, *small)
    output = tmp_path / "out"
    assert "own: train 673, valid 14, test 14 pairs; valid and test are held out from the files" in done.stderr
    assert "own: not in train: 2 pairs with an empty side, 28 for valid and test" in done.stderr
    assert "own: run: finished, 6 of 6 updates" in done.stderr
    assert "the test set has fewer than 100 sentences" in done.stderr
    assert "ends within its warm-up" not in done.stderr  # the control of the next run
    short = run(*command, "--updates", 6, "--average", 2, "--dry-run")
    assert "the run ends within its warm-up" in short.stderr
    raw = content(output / "data" / "raw")
    assert sorted(raw) == ["test.en", "test.x_de", "valid.en", "valid.x_de"]
    record = json.loads((output / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["parts"]["scores"]["test"]
    assert "sacreBLEU" in (output / "summary.md").read_text(encoding="utf-8")
    first = raw["test.en"].decode("utf-8").split("\n")[0]
    *_, last = done.stdout.strip().split("\n")
    assert last == f"Try it: collab translate {output / 'model'} <<< '{first}'"
    translated = run("collab", "translate", output / "model", input=f"{first}\n").stdout
    assert translated.count("\n") == 1

    before = content(output)
    again = run(*command, *small)
    assert again.stdout == done.stdout
    assert {name: data for name, data in content(output).items() if name != "messages.txt"} == {
        name: data for name, data in before.items() if name != "messages.txt"
    }
    other = run(*command, *small[2:], check=False)
    assert "optimization.max_update 6 (requested: 4000)" in other.stderr
    (tmp_path / "mine.en").write_text((tmp_path / "mine.en").read_text(encoding="utf-8").replace("dog", "cat"))
    assert "was prepared with other options or other files" in run(*command, check=False).stderr


def test_what_is_cut_off_does_not_depend_on_the_order_and_is_not_in_train(pairs):
    parts, backwards = own.hold_out(pairs, 30), own.hold_out(pairs[::-1], 30)
    assert parts["valid"] == backwards["valid"]
    assert parts["test"] == backwards["test"]
    sides = {part: {side for pair in found for side in pair} for part, found in parts.items()}
    assert len(sides["valid"]) == len(sides["test"]) == 60
    assert not sides["train"] & (sides["valid"] | sides["test"])
    assert not sides["valid"] & sides["test"]
    assert len(parts["train"]) == 640
    assert parts["train"] == backwards["train"][::-1]


def test_a_folder_keeps_its_parts(tmp_path, pairs):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, found in (("train", pairs), ("valid", pairs[:3]), ("test", pairs[10:14])):
        write(folder, found, part)
    prepare = [
        "bash",
        ROOT / "data_prep" / "own.sh",
        "--python",
        sys.executable,
        "--vocab-size",
        200,
        "--source",
        folder,
    ]
    assert "is a folder: give its languages" in run(*prepare, check=False, cwd=tmp_path).stderr
    done = run(*prepare, "--languages", "de-en", "--output", tmp_path / "out")
    assert "own: train 693, valid 3, test 4 pairs; valid and test are as given" in done.stderr
    assert (tmp_path / "out" / "raw" / "test.de").read_bytes() == (folder / "test.de").read_bytes()
    assert (tmp_path / "out" / "data-bin" / "train.de-en.en.bin").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: b.write_text("eins\n"), "both files must have the same number of lines"),
        (lambda a, b: b.write_bytes(b"eins\nzw\xf6lf\n"), "mine.de must be UTF-8 text, but line 2 is not"),
        (lambda a, b: b.unlink(), "there is no file mine.de"),
        (
            lambda a, b: [x.write_text("a b\n" * 700) for x in (a, b)],
            "train must have at least 500 sentence pairs; got 0",
        ),
        (
            lambda a, b: [x.write_text("".join(x.open().readlines()[:400])) for x in (a, b)],
            "train must have at least 500 sentence pairs; got 384",
        ),
    ],
)
def test_bad_text_is_one_sentence_and_leaves_nothing(change, message, tmp_path, pairs):
    files = write(tmp_path, pairs)
    change(*files)
    there = {path.name for path in tmp_path.iterdir()}
    done = run("bash", RECIPE, "--source", "mine.en", "mine.de", "--output", "out", *FLAGS, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("recipes/own/run.sh: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == there


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--source must be two text files or a folder; got nothing"),
        (["--source", "a.en"], "--source must be two text files or a folder; got a.en"),
        (["--source", "a.en", "b.en"], "--languages must be two languages, such as en-de; got 'en-en'"),
        (["--source", "a", "b"], "--languages must be two languages, such as en-de; got '-'"),
        (["--source", "a.en", "a.de", "--sauce", "x"], "unknown argument '--sauce'"),
        (["--source", "a.en", "a.de", "model.dropuot=1"], "dropuot is not a setting; did you mean model.dropout?"),
    ],
)
def test_wrong_options_leave_nothing(words, message, tmp_path):
    done = run("bash", RECIPE, *words, *FLAGS, check=False, cwd=tmp_path)
    assert done.returncode in (1, 2)  # the text, the command line
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []

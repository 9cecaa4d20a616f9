"""Training on your own text: a small corpus and few updates end in a model; unusable text is rejected."""

import sys

import own
import pytest
import toy

from tests.common import ROOT, content, run

RECIPE = ROOT / "recipes" / "own" / "run.sh"
FLAGS = ["--device", "cpu", "--precision", "fp32", "--threads", 1, "--python", sys.executable]


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
    command = ["bash", RECIPE, "--source", *files, "--output", tmp_path / "out", "--vocab-size", 200, *FLAGS]
    small = ["--updates", 6, "--average", 2, "lr_scheduler.warmup_updates=2"]
    small += ["model.encoder.layers=1", "model.decoder.layers=1"]
    done = run(*command, *small)
    output = tmp_path / "out"
    assert "own: train 673, valid 14, test 14 pairs" in done.stderr
    assert "own: run: finished, 6 of 6 updates" in done.stderr
    assert "ends within its warm-up" not in done.stderr  # control
    short = run(*command, "--updates", 6, "--average", 2, "--dry-run")
    assert "the run ends within its warm-up" in short.stderr
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
    assert {**content(output), "messages.txt": b""} == {**before, "messages.txt": b""}
    other = run(*command, *small[2:], check=False)
    assert "optimization.max_update 6 (requested: 4000)" in other.stderr
    (tmp_path / "mine.en").write_text((tmp_path / "mine.en").read_text(encoding="utf-8").replace("dog", "cat"))
    assert "was prepared with other options or other files" in run(*command, check=False).stderr


def test_held_out_pairs_do_not_depend_on_the_order_and_are_not_in_train(pairs):
    parts, backwards = own.hold_out(pairs, 30), own.hold_out(pairs[::-1], 30)
    assert parts["valid"] == backwards["valid"]
    assert parts["test"] == backwards["test"]
    sides = {part: {side for pair in part_pairs for side in pair} for part, part_pairs in parts.items()}
    assert len(sides["valid"]) == len(sides["test"]) == 60
    assert not sides["train"] & (sides["valid"] | sides["test"])
    assert not sides["valid"] & sides["test"]
    assert len(parts["train"]) == 640
    assert parts["train"] == backwards["train"][::-1]


def test_folder_keeps_its_split(tmp_path, pairs):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, part_pairs in (("train", pairs), ("valid", pairs[:3]), ("test", pairs[10:14])):
        write(folder, part_pairs, part)
    prepare = ["bash", ROOT / "data_prep" / "own.sh", "--source", folder, "--vocab-size", 200]
    prepare += ["--python", sys.executable]
    assert "--languages en-de" in run(*prepare, check=False, cwd=tmp_path).stderr
    done = run(*prepare, "--languages", "de-en", "--output", tmp_path / "out")
    assert "own: train 693, valid 3, test 4 pairs" in done.stderr
    assert (tmp_path / "out" / "raw" / "test.de").read_bytes() == (folder / "test.de").read_bytes()
    assert (tmp_path / "out" / "data-bin" / "train.de-en.en.bin").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: b.write_text("eins\n"), "both files must have the same number of lines"),
        (lambda a, b: b.write_bytes(b"eins\nzw\xf6lf\n"), "mine.de must be UTF-8 text, but line 2 is not"),
        (lambda a, b: b.unlink(), "there is no file mine.de"),
        (lambda a, b: [file.write_text("a b\n" * 700) for file in (a, b)], "at least 500 sentence pairs; got 0"),
    ],
)
def test_unusable_text_raises_a_one_line_error_and_leaves_nothing(change, message, tmp_path, pairs):
    files = write(tmp_path, pairs)
    change(*files)
    before = {path.name for path in tmp_path.iterdir()}
    done = run("bash", RECIPE, "--source", "mine.en", "mine.de", "--output", "out", *FLAGS, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("recipes/own/run.sh: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--source must be two text files or a folder"),
        (["--source", "a.en", "b.en"], "--languages must be two languages, such as en-de; got 'en-en'"),
        (["--source", "a.en", "a.de", "model.dropuot=1"], "dropuot is not a setting; did you mean model.dropout?"),
    ],
)
def test_rejects_wrong_options_and_leaves_nothing(words, message, tmp_path):
    done = run("bash", RECIPE, *words, *FLAGS, check=False, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []

"""recipes/reparam/run.sh on a tiny model: study, fine-tuning, tables, figures; what is finished is skipped."""

import os
import sys

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.records.record import load
from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "reparam"


@pytest.fixture(scope="module")
def command(tiny_run, tiny_data, tmp_path_factory):
    pytest.importorskip("tensorly")
    pytest.importorskip("matplotlib")
    output = tmp_path_factory.mktemp("study")
    return output, [
        RECIPE / "run.sh", "--model", tiny_run / "checkpoint_best.pt", "--data", tiny_data, "--name", "tiny",
        "--output", output, "--python", sys.executable, "--finetune-updates", 4, "--",
        "--ranks", "1/2", "--bleu-ranks", "3/4", "--seeds", 1, "--distill", 2,
        "--distill-ranks", "1/2", "--sentences", 30, "--unlabelled", 30,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def done(command):
    folder, arguments = command
    run(*arguments, timeout=1200)
    return folder


def test_the_record_has_every_method(done):
    record = load(done / "tiny.json", "study", "tiny")
    results = [part for name, part in record["parts"].items() if name.startswith("conversion/")]
    found = [(result["method"], result["seed"]) for result in results]
    methods = ("paper", "authors", "plain", "calibrated", "allocated", "distilled")
    assert found == [(method, 1) for method in methods]
    source = record["parts"]["source"]
    assert source["full"]["valid"]["loss"] == pytest.approx(source["valid"]["loss"], abs=1e-5)
    for result in results:
        dims = result["key_dims"]
        assert sum(dims.values()) == 24 if result["method"] in ("allocated", "distilled") else set(dims.values()) == {8}
        assert "bleu" not in result
        assert 0 < result["output_errors"]["cross.0"] < 2
    assert source["full"]["bleu"]["test"]["score"] == source["bleu"]["test"]["score"]
    assert [found["distillation"] is None for found in results] == [True] * 5 + [False]
    assert results[5]["distillation"]["curve"][-1][0] == 2
    paper, authors = results[:2]
    assert paper["errors"] == authors["errors"]
    assert paper["output_errors"] != authors["output_errors"]
    assert record["settings"]["tensorly"]
    assert len(record["settings"]["model"]["sha256"]) == 64


def test_fine_tuned_models_are_scored_and_tables_made_of_it_all(done):
    tuned = load(done / "tiny.finetuned.json", "study", "tiny")["parts"]
    assert set(tuned) == {"finetuned/tiny-full", "finetuned/tiny-calibrated-1of2", "resumed"}
    assert tuned["finetuned/tiny-full"]["updates"] == tuned["finetuned/tiny-calibrated-1of2"]["updates"] == 4
    table = (done / "table.md").read_text(encoding="utf-8")
    for words in ("| method | R = 1/2 |", "| calibrated, R = 1/2 | ", "tiny-calibrated-1of2 ended the same, bit for"):
        assert words in table
    for figure in ("time.svg", "quality.svg"):
        assert "<svg" in (done / figure).read_text(encoding="utf-8")
    again = done / "again.md"
    again.write_text("# Page\n<!-- study -->\nold\n<!-- /study -->\n", encoding="utf-8")
    records = [done / "tiny.json", done / "tiny.finetuned.json"]
    run("python", RECIPE / "report.py", *records, "--table", again, "--marker", "study")
    assert again.read_text(encoding="utf-8") == f"# Page\n<!-- study -->\n{table.strip()}\n<!-- /study -->\n"


def test_what_is_finished_is_not_made_again(command, done):
    _, arguments = command
    times = {file: os.stat(file).st_mtime_ns for file in done.rglob("*.json")}
    run(*arguments)
    assert {file: os.stat(file).st_mtime_ns for file in times} == times
    other = run(*arguments, "--seeds", 2, check=False)
    assert other.returncode == 1
    assert "holds a run with other settings" in other.stderr


def test_a_fine_tuning_that_was_complete_gets_no_update_more(command, done):
    _, arguments = command
    record, weights = done / "tiny.finetuned.json", done / "finetuned" / "resumed" / "checkpoint_last.pt"
    before, written = load(record, "study")["parts"], os.stat(weights).st_mtime_ns
    for file in (record, *(done / ".done").glob("finetune*")):
        file.unlink()
    run(*arguments)
    assert load(record, "study")["parts"] == before
    assert os.stat(weights).st_mtime_ns == written


def test_different_checkpoints_are_told_apart(tiny_run, tmp_path):
    state = checkpoints.load(tiny_run / "checkpoint_best.pt")
    state["model"]["encoder.layers.0.fc1.bias"][0] += 1e-6
    checkpoints.save(state, tmp_path / "other.pt")
    arguments = ["equal", tiny_run / "checkpoint_best.pt", tmp_path / "other.pt", "--name", "x", "--updates", 1]
    failed = run("python", RECIPE / "finetune.py", *arguments, "--output", tmp_path / "record.json", check=False)
    assert failed.returncode == 1
    assert "the checkpoints differ in .model.encoder.layers.0.fc1.bias\n" in failed.stderr
    assert not (tmp_path / "record.json").exists()


def test_what_is_missing_is_named(tmp_path):
    for arguments, message in (
        (["--name", "x"], "--model, --data and --name are needed"),
        (["--name", "x", "--data", tmp_path, "--model", tmp_path / "no.pt"], "there is no checkpoint"),
        (["--name", "a b", "--data", tmp_path, "--model", tmp_path], "--name must be made of letters"),
    ):
        failed = run(RECIPE / "run.sh", *arguments, check=False)
        assert failed.returncode == 1
        assert message in failed.stderr
    assert "usage: recipes/reparam/run.sh" in run(RECIPE / "run.sh", "--help").stdout

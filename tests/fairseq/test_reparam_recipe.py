"""recipes/reparam/run.sh on a tiny model: study, fine-tuning, tables, figures; what is finished is skipped."""

import os
import re
import sys

import pytest

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
        "--output", output, "--python", sys.executable, "--finetune-updates", 4,
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
    assert source["full"]["bleu"]["test"] == source["bleu"]["test"]
    assert [found["distillation"] is None for found in results] == [True] * 5 + [False]
    assert results[5]["distillation"]["curve"][-1][0] == 2
    paper, authors = results[:2]
    assert paper["errors"] == authors["errors"]
    assert paper["output_errors"] != authors["output_errors"]
    assert record["settings"]["tensorly"]
    assert len(record["settings"]["model"]["sha256"]) == 64


def test_fine_tuned_models_are_scored_and_tables_made_of_it_all(done):
    parts = load(done / "tiny.json", "study", "tiny")["parts"]
    tuned = {name: part for name, part in parts.items() if name.startswith("finetuned/")}
    updates = {name: part["updates"] for name, part in tuned.items()}
    assert updates == {"finetuned/tiny-full": 4, "finetuned/tiny-calibrated-1of2": 4}
    table = (done / "table.md").read_text(encoding="utf-8")
    losses = [tuned[f"finetuned/tiny-{name}"]["valid"]["loss"] for name in ("full", "calibrated-1of2")]
    assert f"| source, fine-tuned | R = 1 | {losses[0]:.4f} | 0.0000 | – |" in table
    assert f"| ours, calibrated, fine-tuned | R = 1/2 | {losses[1]:.4f} | {losses[1] - losses[0]:.4f} | – |" in table
    increase = parts["conversion/plain-1of2-seed1"]["valid"]["loss"] - parts["source"]["valid"]["loss"]
    assert re.search(rf"\| ours, plain \| R = 1/2 \| [\d.]+ \| {increase:.4f} \| [\d.]+ \| – \|\n", table)
    for figure in ("time.svg", "quality.svg"):
        assert "<svg" in (done / figure).read_text(encoding="utf-8")
    again = done / "again.md"
    again.write_text("# Page\n<!-- study -->\nold\n<!-- /study -->\n", encoding="utf-8")
    run("python", RECIPE / "report.py", done / "tiny.json", "--table", again, "--marker", "study")
    assert again.read_text(encoding="utf-8") == f"# Page\n<!-- study -->\n{table.strip()}\n<!-- /study -->\n"


def test_what_is_finished_is_not_made_again(command, done):
    """Neither a step nor, where the last was cut off at its end, an update of a training or a score."""
    _, arguments = command
    files = [*done.rglob("*.json"), *done.glob("finetuned/*/checkpoint_last.pt")]
    times = {file: os.stat(file).st_mtime_ns for file in files}
    run(*arguments)
    assert {file: os.stat(file).st_mtime_ns for file in times} == times
    other = run(*arguments, "--seeds", 2, check=False)
    assert other.returncode == 1
    assert "was made with seeds = [1]; got [2]" in other.stderr


def test_what_is_missing_is_named(tmp_path):
    for arguments, message in (
        (["--name", "x", "--data", tmp_path, "--model", tmp_path / "no.pt"], "there is no checkpoint"),
        (["--name", "a b", "--data", tmp_path, "--model", tmp_path], "--name must be made of letters"),
    ):
        failed = run(RECIPE / "run.sh", *arguments, check=False)
        assert failed.returncode == 1
        assert message in failed.stderr

"""recipes/reparam/run.sh on a tiny model: conversions, fine-tuning, tables, figures, resuming."""

import os
import re

import pytest

from collab_fairseq.records.record import load
from tests.common import ROOT, program, rejected, run

RECIPE = ROOT / "recipes" / "reparam"


@pytest.fixture(scope="module")
def command(tiny_run, tiny_data, tmp_path_factory):
    pytest.importorskip("tensorly")
    pytest.importorskip("matplotlib")
    output = tmp_path_factory.mktemp("study")
    flags = "--finetune-updates 4 --ranks 1/2 --bleu-ranks --seeds 1 --distill 2 --distill-ranks 1/2"
    flags += " --calibration 30"
    files = ["--model", tiny_run / "checkpoint_best.pt", "--data", tiny_data, "--output", output, "--unlabelled", 1000]
    return [RECIPE / "run.sh", *files, "--name", "tiny", *flags.split()]


@pytest.fixture(scope="module")
def done(command):
    """The folder of the finished study."""
    run(*command, timeout=1200)
    return command[command.index("--output") + 1]


def test_record_has_every_method(done):
    record = load(done / "tiny.json", "study", "tiny")
    results = [part for name, part in record["parts"].items() if name.startswith("conversion/")]
    methods = ["paper", "authors", "plain", "calibrated", "allocated", "distilled"]
    assert [(result["method"], result["seed"]) for result in results] == [(method, 1) for method in methods]
    source = record["parts"]["source"]
    assert source["full"]["valid"]["loss"] == pytest.approx(source["valid"]["loss"], abs=1e-5)
    assert source["full"]["bleu"]["test"] == source["bleu"]["test"]
    for result in results:
        key_dims = result["key_dims"].values()
        assert sum(key_dims) == 24
        assert set(key_dims) == {8} or result["method"] in ("allocated", "distilled")
        assert "bleu" not in result
        assert 0 < result["output_errors"]["cross.0"] < 2
        assert (result["distillation"] is None) == (result["method"] != "distilled")
    assert results[5]["distillation"]["curve"][-1][0] == 2
    paper, authors = results[:2]
    assert paper["errors"] == authors["errors"]
    assert paper["output_errors"] != authors["output_errors"]
    assert record["settings"]["tensorly"]
    assert (record["settings"]["sentences"], record["settings"]["unlabelled"]) == (30, 200)  # of 200
    table = (done / "table.md").read_text(encoding="utf-8")
    assert "calibrated on 30 sentences" in table
    assert "without labels, on 200 source sentences of the training text" in table
    assert len(record["settings"]["model"]["sha256"]) == 64


def test_tables_and_figures_include_fine_tuned_models(done):
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
    assert run("python", "-m", "recipes", "reparam", "report", done / "tiny.json", cwd=ROOT).stdout == table


def test_resumed_study_skips_finished_parts(command, done):
    files = [*done.rglob("*.json"), *done.glob("finetuned/*/checkpoint_last.pt")]
    times = {file: os.stat(file).st_mtime_ns for file in files}
    run(*command)
    assert {file: os.stat(file).st_mtime_ns for file in times} == times
    other = run(*command, "--seeds", 2, check=False)
    assert other.returncode == 1
    assert "was made with seeds = [1]; got [2]" in other.stderr
    other = run(*command, "--threads", 2, check=False)  # the table has CPU seconds
    assert other.returncode == 1
    assert "was made with hardware" in other.stderr


def test_rejects_missing_checkpoints_and_methods_without_checkpoints(tmp_path):
    flags = ["--name", "x", "--data", tmp_path, "--model", tmp_path / "missing.pt"]
    rejected(program("recipes", "reparam", *flags), "No such file")
    for words, message in (
        ("--ranks 1/8", "--bleu-ranks must include one of --ranks, 1/8; got none of them"),
        ("--ranks 1/8 --bleu-ranks", "--distill-ranks must include one of --ranks, 1/8; got none of them"),
        ("--ranks 1/2 1/16", "--ranks must be at least 0.125 (methods allocated and distilled)"),
        ("--methods plain distilled calibrated --ranks 1/2 1/16 --distill-ranks 1/2 --bleu-ranks", "No such file"),
        ("--ranks 1/2 5/4 --methods plain --finetune-updates 0", "--ranks must be above 0 and at most 1; got 5/4"),
        ("--methods plain --bleu-ranks", "--methods must include --finetune-method; got calibrated"),
        ("--distill 0 --finetune-method distilled", "--distill must be positive with --finetune-method distilled"),
        ("--ranks 1/8 --bleu-ranks --distill 0", "No such file"),
    ):
        rejected(program("recipes", "reparam", *flags, *words.split()), message)
    for option, value in (("--finetune-method", "plain"), ("--calibration", 0), ("--unlabelled", 0), ("--distill", -1)):
        rejected(program("recipes", "reparam", *flags, option, value), f"argument {option}: ", status=2)

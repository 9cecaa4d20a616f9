"""recipes/heads from a checkpoint to the page, in miniature."""

import json
import shutil
import sys

import pytest

from collab_fairseq import checkpoints
from tests.common import ROOT, run
from tests.fairseq.conftest import sentence_pairs
from tests.fairseq.heads_cases import standard_state


def test_every_analysis_runs_resumes_and_stands_on_the_page(tiny_run, tiny_data, tmp_path):
    pytest.importorskip("matplotlib")
    model, references, output = tmp_path / "model.pt", tmp_path / "test.tgt", tmp_path / "output"
    checkpoints.save(standard_state(tiny_run), model)
    references.write_text("".join(f"{target}\n" for _, target in sentence_pairs(20, seed=2)), encoding="utf-8")
    command = [
        ROOT / "recipes" / "heads" / "run.sh", "--model", model, "--data", tiny_data, "--name", "small",
        "--reference", f"test={references}", "--sentences", 3, "--penalties", "20", "--gate-updates", 3,
        "--device", "cpu", "--output", output,
    ]  # fmt: skip
    run("bash", *command, cwd=tmp_path)
    page = (output / "table.md").read_text(encoding="utf-8")
    for title in ("What heads share", "Importance", "One head at a time", "Pruning", "Gates", "Roles"):
        assert f"### {title}" in page
    record = json.loads((output / "small.gates.json").read_text(encoding="utf-8"))
    assert set(record["parts"]["20"]["gates"]) == {f"{letter}:1:{head}" for letter in "EAD" for head in (1, 2)}
    assert "| 20 | 2 of 2 | 2 of 2 | 2 of 2 |" in page
    record = json.loads((output / "small.importance.json").read_text(encoding="utf-8"))
    assert record["command"].startswith("collab heads importance .../model.pt --data ")
    for picture in ("redundancy", "importance", "ablate", "prune", "prune-raw", "gates", "roles"):
        assert f"(small.{picture}.svg)" in page
    assert "Rank correlation of importance with what a head's removal costs: " in page
    figures = {path: path.read_bytes() for path in output.glob("small.*.svg")}
    records = {path: path.stat().st_mtime_ns for path in output.glob("small.*.json")}
    (output / "table.md").unlink()
    shutil.rmtree(output / "gates")  # the record has all that the page needs of these training runs
    run("bash", *command, cwd=tmp_path)
    assert (output / "table.md").read_text(encoding="utf-8") == page
    assert {path: path.stat().st_mtime_ns for path in output.glob("small.*.json")} == records
    assert {path: path.read_bytes() for path in output.glob("small.*.svg")} == figures
    assert not (output / "gates").exists()


def test_agreement_by_hand():
    sys.path.insert(0, str(ROOT / "recipes" / "heads"))
    from page import agreement

    sys.path.pop(0)
    lost = {"E:1:1": 3.0, "E:1:2": 1.0, "E:1:3": 3.0, "E:1:4": 7.0}  # ranks 2.5 1 2.5 4
    parts = {f"t/without/{head}": {"difference": -value} for head, value in lost.items()}
    ranks = {head: {"raw": n**3, "normalised": -value} for n, (head, value) in enumerate(lost.items())}
    told = agreement(ranks, {"whole/t": {}, **parts})
    assert told.endswith(": -1.00 (normalised, t), 0.63 (raw, t).")  # 3 / √(4.5 · 5)

"""The benchmark of the solver, at a size that takes seconds."""

import pytest

from collab_fairseq.records.record import load
from tests.common import ROOT, run

SCRIPT = ROOT / "recipes" / "reparam" / "benchmark.py"


def test_the_benchmark_measures_all_it_promises(tmp_path):
    pytest.importorskip("tensorly")
    output = tmp_path / "benchmark.json"
    done = run(
        "python", SCRIPT, "--output", output, "--heads", 4, "--width", 32, "--layers", 2, "--rank", 16,
        "--race-rank", 11, "--small", 2, 16, "--iterations", 10, "--seeds", 0, 1,
        cwd=tmp_path,
    )  # fmt: skip
    assert "layer 1 (2 of 2)" in done.stderr
    record = load(output, "study", "solver")
    found = record["parts"]
    assert len(found["layers"]["errors"]) == 2
    assert [race["heads"] for race in found["race"]] == ["independent"] * 2 + ["shared"] * 2
    assert all(race["ours"]["error"] <= race["tensorly"]["error"] + 1e-6 for race in found["race"])
    assert len(found["errors"]) == 2 * 2 * 4 * 2  # kinds, seeds of the heads, ranks, seeds of the fit
    for entry in found["errors"]:
        assert 0 < entry["ours"] <= entry["tensorly"] + 1e-5 < 1
    assert record["settings"]["tensorly"]
    assert list(tmp_path.iterdir()) == [output]
    page = run("python", SCRIPT.with_name("report.py"), output).stdout
    assert "times less in 2 runs |" in page
    assert "in 32 of 32" in page

"""The benchmark of serving on a tiny model: resumed, and as a table."""

import importlib.util
import json

import pytest

from tests import warm
from tests.common import ROOT
from tests.fairseq.serving_cases import SOURCES, cases

pytest.importorskip("ctranslate2")


def test_every_engine_is_measured_beside_fairseq_generate(tmp_path, monkeypatch, capsys):
    from collab_fairseq.export import folder
    from collab_fairseq.export.source import read_source

    spec = importlib.util.spec_from_file_location("serving_benchmark", ROOT / "recipes" / "serving" / "benchmark.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "BIN", warm.start())
    kept = ("fairseq-generate", "torch", "ctranslate2")
    monkeypatch.setattr(benchmark, "SYSTEMS", {name: benchmark.SYSTEMS[name] for name in kept})
    models = cases(tmp_path / "models")
    folder.export(read_source(models.checkpoint("collaborative")), tmp_path / "given")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SOURCES))
    argv = ["benchmark.py", tmp_path / "given", "--source", tmp_path / "text", "--reference", tmp_path / "text",
            "--json", tmp_path / "record.json", "--rounds", 1, "--max-length", 20, "--work", tmp_path]  # fmt: skip
    monkeypatch.setattr("sys.argv", list(map(str, argv)))
    assert benchmark.main() == 0
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    agreement = record["parts"]["torch/agreement"]
    assert agreement["identical"] == agreement["of"] == len(SOURCES)
    assert agreement["largest_score_gap"] < 1e-4
    assert 0 < record["parts"]["torch/start/0"] < 100
    monkeypatch.setattr(benchmark, "processor_seconds", lambda *_, **__: pytest.fail("computed again"))
    assert benchmark.main() == 0
    assert capsys.readouterr().out == first
    (row,) = (line for line in first.splitlines() if line.startswith("| torch |"))
    assert f"| {len(SOURCES)} of {len(SOURCES)} |" in row

"""``collab bench`` as a user runs it: miniatures of everything, records, tables, and what it refuses."""

import json

import pytest
import torch

from collab_fairseq.cli.main import main
from tests.common import run


def test_layers_in_miniature(tmp_path):
    path = tmp_path / "record.json"
    done = run("collab", "bench", "layer", "--quick", "--device", "cpu", "--json", path)
    record = json.loads(path.read_text())
    assert (record["name"], record["settings"]["quick"]) == ("layer", True)
    rows = {name: row for name, row in record["parts"].items() if name.startswith("layer/")}
    assert all(set(row["values"]) == {"fairseq-self", "standard-sdpa", "authors", "ours"} for row in rows.values())
    assert {row["unit"] for row in rows.values()} == {"s", "bytes"}
    assert "a miniature, no measurement" in done.stdout
    assert "ratio of ours" in done.stderr


def test_training_in_miniature(capsys):
    assert main(["bench", "train", "--quick", "--device=cpu", "--rows=*/tiny/*"]) == 0
    shown = capsys.readouterr().out
    for row in ("3x6/dk4", "3x6/dk4/fast", "3x6/dk4/fast-bf16", "3x6/dk4/fast-memory"):
        assert f"| train/tiny/{row} |" in shown
    assert "a miniature, no measurement" in shown


def test_decoding_in_miniature_and_its_table(tmp_path, capsys):
    path, page = tmp_path / "record.json", tmp_path / "page.md"
    assert main(["bench", "decode", "--quick", "--device=cpu", f"--json={path}"]) == 0
    parts = json.loads(path.read_text())["parts"]
    rows = {name.split("/")[1]: set(row["values"]) for name, row in parts.items() if name.startswith("decode/")}
    assert {"cross", "self", "translate"} == set(rows)
    assert rows["cross"] == rows["self"] == {"fairseq", "standard-sdpa", "authors", "ours"}
    half = [set(row["values"]) for name, row in parts.items() if name.endswith("/bf16")]
    assert half == [{"fairseq", "fairseq-bf16", "ours"}]
    assert {"fairseq", "none", "ours"} in [set(row["values"]) for row in parts.values() if "values" in row]

    page.write_text("# Speed\n<!-- speed -->\nold\n<!-- /speed -->\nend\n")
    table = ["bench", "table", str(path), "--rows", "*/self/*", "--output", str(page), "--marker", "speed"]
    assert main([*table, "--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert "\nold\n" in page.read_text()
    assert (main(table), main([*table, "--check"])) == (0, 0)
    assert "decode/self/3x2" in page.read_text()
    assert "decode/cross" not in page.read_text()
    assert page.read_text().endswith("<!-- /speed -->\nend\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("layer --rows nothing", "--rows nothing matches no row"),
        ("layer --clock processor --threads 2", "--clock processor is for one thread of a CPU"),
        pytest.param(
            "layer --device cuda",
            "--device cuda needs a GPU that torch can use",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
        ),
    ],
)
def test_mistakes_are_one_clear_sentence(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *command.split(), *([] if "--device" in command else ["--device", "cpu"])]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

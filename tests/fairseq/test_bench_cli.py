"""`collab bench`: quick runs of all rows, records and errors."""

import json

import pytest
import torch

from collab_fairseq.cli.main import main
from tests.common import run

SELF = {"fairseq-self", "standard-sdpa", "authors", "ours"}
DECODE = {"fairseq", "standard-sdpa", "authors", "ours"}
ROWS = {
    "layer": {"layer/encoder/3x6/dk4/train": SELF, "layer/encoder/3x6/dk4/memory": SELF},
    "decode": {
        "decode/cross/3x2/S5/dk4": DECODE,
        "decode/self/3x2/T4/dk4": DECODE,
        "decode/translate/tiny/6/dk4": {"fairseq", "none", "ours"},
        "decode/translate/tiny/6/dk4/bf16": {"fairseq", "fairseq-bf16", "ours"},
    },
    "train": {
        "train/tiny/3x6/dk4": {"fairseq", "none", "authors", "ours"},
        "train/tiny/3x6/dk4/fast": {"fairseq", "ours"},
        "train/tiny/3x6/dk4/fast-bf16": {"fairseq", "fairseq-bf16", "ours"},
        "train/tiny/3x6/dk4/fast-memory": {"fairseq", "ours"},
    },
}


@pytest.mark.parametrize("what", ROWS)
def test_quick_rows_measure_their_implementations(what, tmp_path):
    path = tmp_path / "record.json"
    rows = ["--rows", "*/tiny/*"] if what == "train" else []
    done = run("collab", "bench", what, "--quick", "--device", "cpu", "--json", path, *rows)
    record = json.loads(path.read_text())
    assert (record["name"], record["settings"]["quick"]) == (what, True)
    parts = {name: part for name, part in record["parts"].items() if "/" in name}
    assert {name: set(part["values"]) for name, part in parts.items()} == ROWS[what]
    assert all(part["unit"] == ("bytes" if name.endswith("memory") else "s") for name, part in parts.items())
    assert all(f"| {name} |" in done.stdout for name in parts)
    assert "a miniature, no measurement" in done.stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("--device cpu --rows nothing", "--rows nothing matches no row"),
        ("--device cpu --clock processor --threads 2", "--clock processor needs --threads 1"),
        pytest.param(
            "--device cuda",
            "--device cuda needs a GPU that torch can use",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
        ),
    ],
)
def test_rejects_wrong_options_in_one_line(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "layer", *command.split()]) == 1
    error = capsys.readouterr().err
    assert error.startswith("collab bench layer: error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []

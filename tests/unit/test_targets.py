"""A result that cannot be written is told before any work: here the inputs are missing, which would be told second."""

import os

import pytest

from collab_fairseq.cli.main import main

READ_ONLY = "/sys"  # takes no files from anybody, where there is one

COMMANDS = [
    ["average", "--inputs", "missing.pt", "--output"],
    ["bench", "layer", "--output"],
    ["bench", "layer", "--figure"],
    ["bench", "table", "missing.json", "--output"],
    ["record", "--name", "x", "--scores", "test=missing.json", "--output"],
    ["reparam", "missing.pt", "--key-dim", "8", "--output"],
    ["reparam", "missing.pt", "--key-dim", "8", "--output", "fine.pt", "--report"],
    ["score", "missing.log", "--json"],
    ["table", "missing.json", "--output"],
    ["table", "missing.json", "--figure"],
    ["heads", "ablate", "missing.pt", "--test", "test=missing", "--output"],
    ["heads", "gates", "missing.pt", "--output"],
    ["heads", "gates", "missing.pt", "--finalise"],
    ["heads", "importance", "missing.pt", "--output"],
    ["heads", "importance", "missing.pt", "--figure"],
    ["heads", "prune", "missing.pt", "--test", "test=missing", "--output"],
    ["heads", "prune", "missing.pt", "--remove", "40", "--pruned"],
    ["heads", "redundancy", "missing.pt", "--output"],
    ["heads", "redundancy", "missing.pt", "--overlap"],
    ["heads", "roles", "missing.pt", "--output"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_targets_are_tried_before_the_work(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.svg").mkdir()
    targets = {"nowhere/r.svg": f"there is no folder {tmp_path / 'nowhere'}", "taken.svg": "it is a directory"}
    if os.path.isdir(READ_ONLY):
        targets[f"{READ_ONLY}/r.svg"] = f"{READ_ONLY} takes no files ("
    for target, reason in targets.items():
        assert main([*command, target]) == 1
        error = capsys.readouterr().err
        assert f"error: cannot write {target}: {reason}" in error
        assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken.svg"]


def test_the_folder_of_attention_maps_is_tried_too(tmp_path, capsys):
    maps = ["--maps", "0", "--maps-folder", str(tmp_path / "nowhere")]
    assert main(["heads", "roles", "missing.pt", *maps]) == 1
    assert f"there is no folder {tmp_path / 'nowhere'}" in capsys.readouterr().err


def test_a_page_is_only_checked_where_nothing_is_written(tmp_path, capsys):
    assert main(["table", "missing.json", "--output", str(tmp_path / "nowhere" / "page.md"), "--check"]) == 1
    assert "cannot read missing.json" in capsys.readouterr().err

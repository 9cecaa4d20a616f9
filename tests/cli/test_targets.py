"""`collab` rejects unwritable outputs and inapplicable flags before it reads its inputs, which are missing here."""

import os

import pytest

from collab_fairseq.cli.main import main
from tests.common import collab

READ_ONLY = "/sys"

COMMANDS = [
    "average --inputs missing.pt --output",
    "doctor --json",
    "reparam missing.pt --key-dim 8 --output",
    "reparam missing.pt --key-dim 8 --output fine.pt --json",
    "score missing.log --json",
    "table missing.json --figure",
    "table missing.json --output",
    "heads ablate missing.pt --reference test=missing --json",
    "heads gates missing.pt --output",
    "heads prune missing.pt --remove 40 --output",
    "heads redundancy missing.pt --figure",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_rejects_unwritable_output_first(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.svg").mkdir()
    targets = {"nowhere/r.svg": f"there is no folder {tmp_path / 'nowhere'}", "taken.svg": "it is a folder"}
    if os.path.isdir(READ_ONLY):
        targets[f"{READ_ONLY}/r.svg"] = f"cannot create files in {READ_ONLY} ("
    for target, reason in targets.items():
        assert f"error: cannot write {target}: {reason}" in collab(*command.split(), target, status=1)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.svg"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("heads ablate x --reference test", "must be SPLIT=FILE, such as test=test.de; got 'test'"),
        ("heads ablate x --reference a=b --reference a=c", "--reference must name each split once; got a, a"),
        ("heads ablate x", "--reference SPLIT=FILE is needed"),
        ("heads importance x --label y", "--label needs a Hugging Face model folder; x is not a folder"),
        ("heads importance x --device gpu", "must be auto, cpu, cuda or cuda:N; got 'gpu'"),
        ("heads prune x --output y", "--remove and --output go together"),
        ("heads prune x --remove 4 --output y --beam 2", "--beam applies to measurements and not to --remove"),
        ("table x --x wall_time", "--x needs --figure"),
        ("translate x .", "got the folder .: MODEL comes first, then FILE"),
    ],
)
def test_rejects_inapplicable_flags(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    try:
        status = main(command.split())
    except SystemExit as stop:  # argparse
        status = stop.code
    assert status in (1, 2)
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

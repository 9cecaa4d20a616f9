"""Training logs and the fields of records."""

import argparse
import json
import re
import subprocess
import sys

import pytest
import torch

from collab_fairseq.files import write_json, write_text
from collab_fairseq.records import environment
from collab_fairseq.records.record import Record
from collab_fairseq.records.train_log import read_train_log
from collab_fairseq.records.training import make_record, read_usage
from fairseq_modern.errors import UserError
from tests.common import ROOT

LOG = """\
00:00 | INFO | fairseq_cli.train | {'_name': None, 'common': {'seed': 1}}
00:01 | INFO | train_inner | {"epoch": 1, "update": 0.1, "loss": "9.5", "nll_loss": "9.1", "ppl": "548.75", \
"wps": "100.5", "ups": "0.5", "num_updates": "10", "lr": "0.001", "gnorm": "2.5", "wall": "20"}
00:02 | INFO | valid | {"epoch": 1, "valid_loss": "8.5", "valid_nll_loss": "8.0", "valid_num_updates": "10"}
00:02 | INFO | valid | {"epoch": 1, "valid_loss": "8.5", "valid_nll_loss": "8.0", "valid_num_updates": "10"}
00:03 | INFO | train_inner | {"loss": "7.5", "wps": "300.5", "num_updates": "20", "wall": "40"}
00:04 | INFO | train_inner | {"loss": "7.25", "wps": "200.5", "num_updates": "20", "wall": "41", "lr": "nan"}
00:05 | INFO | train | {"train_loss": "8.4", "train_num_updates": "20", "train_wps": "9", "train_wall": "45"}
00:06 | INFO | train_inner | {"loss": "7.0", "wps": "1
"""


@pytest.fixture
def train_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_reads_curves_and_speed_from_log(train_log):
    log = read_train_log(train_log)
    assert log["curves"]["train"] == [
        {"updates": 10, "loss": 9.5, "nll_loss": 9.1, "ppl": 548.75, "lr": 0.001, "gnorm": 2.5},
        {"updates": 20, "loss": 7.25},
    ]
    assert log["curves"]["valid"] == [{"updates": 10, "loss": 8.5, "nll_loss": 8.0}]
    assert log["words_per_second"] == 200.5
    assert log["gb_free"] is None
    # without training lines: the speed of the epochs
    write_text("\n".join(line for line in LOG.split("\n") if "| train |" in line), train_log)
    log = read_train_log(train_log)
    assert (log["words_per_second"], log["curves"]) == (9, {"train": [], "valid": []})


@pytest.mark.parametrize("damaged", [b"", LOG[: len(LOG) // 2].encode(), bytes(range(256)) * 10])
def test_a_damaged_log_is_rejected_and_a_missing_one_has_no_curves(damaged, train_log):
    size = train_log.stat().st_size
    assert read_train_log(train_log, size) == read_train_log(train_log)  # control
    train_log.write_bytes(damaged)
    with pytest.raises(UserError, match=r"train.log is damaged: .* run: mv ") as error:
        read_train_log(train_log, size)
    subprocess.run(re.search("mv .*damaged", str(error.value))[0], shell=True, check=True)
    assert read_train_log(train_log, size)["curves"] == {"train": [], "valid": []}


def test_seconds_are_unknown_if_those_of_a_part_are(tmp_path):
    """The parts begin at the first byte of the log; `read_usage` finds out that the first part is missing."""
    usage = tmp_path / "usage"
    assert read_usage(usage) == [{"log_from": 0}]
    first, second = ({"log_from": 0}, {"wall_seconds": 5.5}), ({"log_from": 70}, {"wall_seconds": 3.5})
    for lines, parts in (
        ([*first, *second], [{**first[0], **first[1]}, {**second[0], **second[1]}]),
        (second, [{"log_from": 0}, {**second[0], **second[1]}]),
        ([], [{"log_from": 0}]),
    ):
        write_text("\n".join(map(json.dumps, lines)), usage)
        assert read_usage(usage) == parts
    usage.write_bytes(bytes(range(256)) * 10)
    assert read_usage(usage) == [{"log_from": 0}]


def test_training_record_is_complete_and_valid_json(tmp_path, train_log):
    embed = torch.zeros(5, 4)
    checkpoint = {
        "cfg": {
            "common": {"seed": 1, "user_dir": "/somewhere/collab_fairseq", "amp": True},
            "model": argparse.Namespace(
                seed=1, arch="tiny", encoder_layers=4, data="/somewhere/data-bin", eps=float("inf")
            ),
            "optimization": {"lr": [0.005], "max_update": 20},
            "bpe": None,
        },
        "model": {"embed": embed, "output": embed, "bias": torch.zeros(3), "encoder.version": torch.zeros(1)},
        "optimizer_history": [{"num_updates": 20}],
        "extra_state": {"averaged_from": [{"file": "a.pt", "sha256": "0" * 64, "num_updates": 20}]},
    }
    second = LOG.encode().index(b"00:03")
    trained_on = {"cpu": "other", "cores": 3, "memory_bytes": 5, "gpus": [], "threads": 2}
    usage = [{"log_from": 0}, {"wall_seconds": 20.25, "train_seconds": 15.5, "log_to": second}]  # was killed
    usage += [{"log_from": second, "hardware": trained_on}]
    usage += [{"wall_seconds": 30.5, "train_seconds": 24, "log_to": len(LOG), "peak_memory_bytes": 9, "exit_status": 0}]
    write_text("\n".join([*map(json.dumps, usage), '{"log_fr']), tmp_path / "usage")
    write_text("a" * 64 + "  data-bin/train.bin\n" + "b" * 64 + " *raw/test.de\n", tmp_path / "sums")
    write_json({"scores": [{"metric": "sacreBLEU", "score": 38.7, "of": "/home/me/x"}]}, tmp_path / "scores.json")
    files = {"train_log": train_log, "usage": tmp_path / "usage", "data_checksums": tmp_path / "sums"}
    scores = {"test": tmp_path / "scores.json"}
    record = make_record("tiny", "run.sh", seed=1, checkpoint=checkpoint, losses={}, scores=scores, **files)
    settings, parts = record["settings"], record["parts"]
    training = parts["training"]
    assert (training["wall_seconds"], training["peak_memory_bytes"]) == (20.25 + 30.5, 9)
    assert training["train_seconds"] == 15.5 + 24
    assert [part["exit_status"] for part in training["parts"]] == [None, 0]
    assert "log_to" not in training["parts"][0]
    assert (settings["seed"], training["updates"], parts["parameters"]) == (1, 20, 23)
    assert settings["averaged_from"][0]["file"] == "a.pt"
    assert settings["config"] == {  # without repetition and paths
        "common": {"amp": True},
        "optimization": {"lr": [0.005], "max_update": 20},
        "model": {"arch": "tiny", "encoder_layers": 4, "data": ".../data-bin", "eps": "inf"},
    }
    assert settings["data"] == {"data-bin/train.bin": "a" * 64, "raw/test.de": "b" * 64}
    assert record["versions"]["python"] == sys.version.split()[0]
    assert torch.__version__.startswith(record["versions"]["torch"] or "?")  # which may include the build: 2.6.0+cu124
    assert record["hardware"] == {**trained_on, "device": "cpu"}  # that of the last part
    assert "hardware" not in training["parts"][1]
    usage[0]["hardware"] = {**trained_on, "threads": 8}
    write_text("\n".join(map(json.dumps, usage)), tmp_path / "usage")
    mixed = make_record("tiny", "run.sh", checkpoint=checkpoint, losses={}, scores=scores, **files)["parts"]["training"]
    assert {mixed[name] for name in ("wall_seconds", "train_seconds", "words_per_second")} == {None}
    assert mixed["parts"] == training["parts"]
    write_text(json.dumps({"log_from": 0}), tmp_path / "usage")  # an earlier version, killed
    earlier = make_record("tiny", "run.sh", threads=4, checkpoint=checkpoint, losses={}, scores=scores, **files)
    assert [earlier["parts"]["training"][name] for name in ("wall_seconds", "train_seconds")] == [None, None]
    assert earlier["hardware"] == {**environment.hardware(), "threads": 4, "device": "cpu"}
    assert parts["scores"]["test"]["scores"] == [{"metric": "sacreBLEU", "score": 38.7, "of": ".../x"}]
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_records_commit_of_repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "venv").mkdir(parents=True)
    write_text("1", folder / "venv" / "package.py")
    write_text("1", folder / "code.py")
    assert environment.commit(str(folder)) == {"id": None, "modified": None}
    git(folder, "init", "--quiet")
    git(folder, "add", "code.py")
    git(folder, "commit", "--quiet", "--message", "first")
    head = git(folder, "rev-parse", "HEAD")
    assert Record("heads", "x", "y", {}, repository=folder).content["commit"] == {"id": head, "modified": False}
    write_text("2", folder / "code.py")
    assert environment.commit(str(folder)) == {"id": head, "modified": True}
    # a package installed in a virtual environment within a repository
    assert environment.commit(str(folder / "venv")) == {"id": None, "modified": None}


def test_committed_records_have_command_and_existing_commit():
    """Every result measured here, except copies in model folders, and scores by others."""
    left_out = {ROOT / "results" / "models", ROOT / "results" / "published", ROOT / "results" / "blind_scores.json"}
    paths = [path for path in (ROOT / "results").rglob("*.json") if not left_out & {path, *path.parents}]
    assert len(paths) > 100
    records = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    assert [path for path, record in records.items() if not record.get("command")] == []
    ids = {path: (record.get("commit") or {}).get("id") or "" for path, record in records.items()}
    assert [path for path, commit in ids.items() if not re.fullmatch("[0-9a-f]{40}", commit)] == []
    if not (ROOT / ".git").exists() or git(ROOT, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs the full git history, to look for the commits")
    assert {git(ROOT, "cat-file", "-t", commit) for commit in set(ids.values())} == {"commit"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("run /a/b/c --x=/d/e.txt '/f/g h'", "run .../c --x=.../e.txt '.../g h'"),
        ("run '/a b/c d/e' '--x=/a b/c' 'betas=(0.9, 0.98)'", "run '.../e' '--x=.../c' 'betas=(0.9, 0.98)'"),
        ("recipes/multi30k/run.sh and/or 1/2", "recipes/multi30k/run.sh and/or 1/2"),
        ("https://example.org/x", "https://example.org/x"),
    ],
)
def test_shortens_absolute_paths_in_command_and_settings(before, after):
    content = Record("heads", "x", before, {"paths": ({before: before}, 1.5, None)}).content
    assert (content["command"], content["settings"]) == (after, {"paths": [{after: after}, 1.5, None]})


@pytest.mark.parametrize(("device", "name"), [("cpu", "cpu"), (torch.device("cuda", 1), "gpu"), ("cuda:1", "gpu")])
def test_hardware_has_device_and_threads_of_torch(device, name):
    hardware = Record("heads", "x", "y", {}, device=device).content["hardware"]
    assert (hardware["device"], hardware["threads"]) == (name, torch.get_num_threads())


def test_the_machine_of_a_record_is_that_of_its_first_part(tmp_path, monkeypatch):
    path = tmp_path / "record.json"

    def machine(name):
        monkeypatch.setattr(environment, "provenance", lambda *_, **__: {"hardware": name})
        return Record("heads", "x", "y", {}, path)

    machine("first").save()  # interrupted before any part
    record = machine("second")
    assert record.content["hardware"] == "second"
    record.part("a", lambda: 1)
    assert machine("third").content["hardware"] == "second"

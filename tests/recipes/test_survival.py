"""The study of killed trainings in miniature: three kills, and what must make it fail."""

import importlib.util
import json
import os
import shutil
import stat
import sys
from collections import OrderedDict

import pytest
import torch

from tests.common import ROOT, run
from tests.fairseq.conftest import write_corpus

RECIPE = ROOT / "recipes" / "survival" / "run.sh"
LIBRARY = ROOT / "recipes" / "lib"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the recipes are bash scripts")

_spec = importlib.util.spec_from_file_location("survival_study", RECIPE.with_name("study.py"))
study = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(study)


def test_help_and_wrong_options():
    assert "--kills N" in run("bash", RECIPE, "--help").stdout
    assert RECIPE.stat().st_mode & stat.S_IXUSR
    done = run("bash", RECIPE, "--kills", "many", check=False)
    assert done.returncode == 1
    assert "error: --kills must be a whole number, got 'many'" in done.stderr


def test_three_kills(tmp_path):
    """One of them inside a write; the training goes on by itself and ends as if nothing had been, bit for bit."""
    write_corpus(tmp_path)
    run(
        "fairseq-preprocess", "-s", "en", "-t", "de", "--joined-dictionary", "--destdir", tmp_path / "data",
        *(flag for part in ("train", "valid") for flag in (f"--{part}pref", link(tmp_path, part))),
    )  # fmt: skip
    output = tmp_path / "run"
    done = run(
        "bash", RECIPE, "--kills", 3, "--updates", 60, "--seed", 3, "--data", tmp_path / "data", "--output", output,
        "--python", sys.executable, timeout=1500,
    )  # fmt: skip
    report = json.loads((output / "survival.json").read_text(encoding="utf-8"))
    assert report["kills"] == 3
    assert report["kills_inside_a_write"] >= 1
    assert report["torn_checkpoints"] == report["restarts_from_another_than_the_newest"] == 0
    assert report["different_from_undisturbed"] == {"checkpoint_last.pt": [], "checkpoint_best.pt": []}
    assert [k["moment"] for k in report["each_kill"]] == ["training", "writing", "training"]
    assert report["each_kill"][2]["went_on_from"] > 0
    assert "equal bit for bit" in done.stderr
    # control: an earlier checkpoint of the same training is another state
    earlier = min((output / "whole").glob("checkpoint_*_*.pt"), key=lambda path: path.stat().st_mtime)
    assert study.compare(output / "whole" / "checkpoint_last.pt", earlier) != []


def link(folder, part):
    """The prefix under which a part of the corpus is called .en and .de."""
    for old, new in (("src", "en"), ("tgt", "de")):
        os.symlink(folder / f"{part}.{old}", folder / f"{part}.{new}")
    return folder / part


def state(weight=1.0, updates=5):
    return {
        "model": OrderedDict(w=torch.tensor([weight, 2.0])),
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(2)}}},
        "optimizer_history": [{"num_updates": 1}, {"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": updates}},
    }


def test_what_counts_as_a_difference(tmp_path):
    files = {}
    once = {**state(), "optimizer_history": [{"num_updates": 5}]}
    for name, content in (
        ("a", state()), ("same", once), ("weight", state(torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)))),
        ("updates", state(updates=6)),
    ):  # fmt: skip
        files[name] = tmp_path / f"{name}.pt"
        torch.save(content, files[name])
    assert study.compare(files["a"], files["same"]) == [], "the history has an entry for every start"
    assert study.compare(files["a"], files["weight"]) == ["model.w"]
    assert study.compare(files["a"], files["updates"]) == ["optimizer.num_updates", "position.iterations_in_epoch"]


def test_torn_files_are_seen(tmp_path):
    for name in ("whole", "half", "bit"):
        torch.save(state(7.0), tmp_path / f"{name}.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "half.pt").write_bytes(data[: len(data) // 2])
    place = data.index(torch.tensor([7.0, 2.0]).numpy().tobytes())
    (tmp_path / "bit.pt").write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert study.inspect(tmp_path) == {"whole.pt": 5, "half.pt": None, "bit.pt": None}


# --- recipes/lib/train.sh ------------------------------------------------------------------------------------------


def library(code, *arguments):
    script = f"set -euo pipefail; recipe=test; python={sys.executable}; . {LIBRARY}/common.sh; . {LIBRARY}/train.sh; "
    return run("bash", "-c", script + code, "bash", *arguments, check=False)


def test_the_newest_valid_checkpoint_for_scripts(tmp_path):
    def newest(folder):
        done = library('newest_valid_checkpoint "$1"', folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert newest(tmp_path / "nowhere") == newest(tmp_path) == ""
    for updates in (10, 20):
        torch.save(state(updates=updates), tmp_path / f"checkpoint_1_{updates}.pt")
    assert newest(tmp_path) == f"{tmp_path}/checkpoint_1_20.pt\n"
    (tmp_path / "checkpoint_1_20.pt").write_bytes(b"torn")
    assert newest(tmp_path) == f"{tmp_path}/checkpoint_1_10.pt\n"

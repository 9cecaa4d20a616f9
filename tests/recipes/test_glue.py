"""The GLUE recipe: its metrics and table against numbers worked out by hand, and a rehearsal in small."""

import importlib
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from fairseq_modern.errors import UserError
from tests.common import ROOT
from tests.fairseq import forked

for package in ("transformers", "accelerate", "sklearn", "scipy", "pandas"):
    pytest.importorskip(package, reason="pip install 'collab_fairseq[huggingface,plots]'")
RECIPE = ROOT / "recipes" / "glue"
sys.path.insert(0, str(RECIPE))
table, tasks, recipe = (importlib.import_module(name) for name in ("table", "tasks", "run"))
sys.path.remove(str(RECIPE))
SMALL = ["--rehearse", "bert", "--sentences", "320", "--epochs", "2", "--key-dims", "16", "--output"]


def test_metrics():
    outputs, labels = np.eye(2)[[1, 1, 0, 0, 1, 0]], np.array([1, 0, 0, 1, 1, 0])  # 2 hits, 1 false, 1 missed
    found = tasks.Task((), ("accuracy", "f1", "matthews")).measure(outputs, labels)
    assert found == pytest.approx({"accuracy": 4 / 6, "f1": 4 / 6, "matthews": (2 * 2 - 1 * 1) / 9})
    stsb = tasks.GLUE["stsb"]
    assert stsb.measure(np.array([[1.0], [2.0], [4.0]]), np.array([0.0, 1.0, 2.0])) == pytest.approx(
        {"pearson": 3 / np.sqrt(2 * 14 / 3), "spearman": 1.0}
    )
    assert stsb.measure(np.ones((3, 1)), np.array([0.0, 1.0, 2.0])) == {"pearson": 0, "spearman": 0}


def record(task, seed, scores):
    size = 10**8 + 769 * tasks.GLUE[task].labels  # a classifier has a row for each label
    parts = {stage: {"score": score, "parameters": size} for stage, score in scores.items()}
    model = {"name": "bert", "type": "bert", "width": 768}
    return {"settings": {"task": task, "seed": seed, "model": model}, "parts": parts}


def test_table():
    records = []
    for n, task in enumerate(tasks.GLUE):
        scores = {"converted/384": 60 + n, "tuned/384": 70 + n}
        records += [record(task, seed, {"standard": 80 + n + seed, **scores}) for seed in (1, 3)]
    lines = table.table(records).splitlines()
    assert len(lines) == 2 + 3 + 2
    assert lines[2].startswith("| bert | standard | 768 | 100.0 | 82.0 |")
    for line, end in zip(lines[2:5], ("85.5 | 108.3 | 83.0", "63.5 |  | ", "73.5 | 101.4 | 82.5"), strict=True):
        assert line.endswith(f"| {end} |")
    assert "seeds 1, 3" in lines[-1]
    # where a task is missing there is no average
    assert table.table(records[2:]).splitlines()[2].endswith("| – | 108.3 | 83.0 |")


@pytest.fixture
def rehearse(monkeypatch, capsys):
    """The rehearsal in this process: the table that it prints."""
    threads = torch.get_num_threads()

    def rehearse(output, *more):
        monkeypatch.setattr(sys, "argv", ["run.py", *SMALL, str(output), *more])
        recipe.main()
        return capsys.readouterr().out

    yield rehearse
    torch.set_num_threads(threads)


def test_the_rehearsal_survives_a_kill_and_asks_no_one(tmp_path, rehearse, caplog):
    """Killed in the second epoch it resumes there; the end is that of a run that was not killed."""
    caplog.set_level("INFO")
    with socket.create_server(("127.0.0.1", 0)) as proxy, open(tmp_path / "log", "w", encoding="utf-8") as log:
        internet = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), f"http://127.0.0.1:{proxy.getsockname()[1]}")
        command, env = [sys.executable, RECIPE / "run.py", *SMALL, tmp_path / "killed"], {**os.environ, **internet}
        killed = subprocess.Popen(command, stderr=log, stdout=log, env=env)
        checkpoints = tmp_path / "killed" / "toy" / "standard" / "checkpoints"
        state = checkpoints / "checkpoint-10" / "trainer_state.json"  # the last file of a checkpoint
        forked.wait_for(lambda: state.exists() and state.read_text().endswith("}\n"), killed, tmp_path / "log")
        killed.kill()
        killed.wait()
        (checkpoints / "checkpoint-11").mkdir()  # as a kill within the write of a checkpoint leaves it
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            pytest.fail(f"the internet was asked: {proxy.accept()[0].recv(200)!r}")
    assert "toy/standard: resuming from checkpoint-10" in done.stderr
    assert rehearse(tmp_path / "whole") == done.stdout
    assert "| bert | collaborative | 16 |" in done.stdout
    found, expected = (json.loads((tmp_path / n / "toy" / "record.json").read_text()) for n in ("killed", "whole"))
    assert found["parts"] == expected["parts"]
    standard, converted, tuned = (found["parts"][stage] for stage in ("standard", "converted/16", "tuned/16"))
    # two layers: queries and keys of width 16, mixing and content bias instead of queries and keys with biases
    saved = 2 * (2 * (64 + 1) * 64 - (2 * 64 * 16 + 4 * 16 + 4 * 64))
    assert converted["parameters"] == tuned["parameters"] == standard["parameters"] - saved
    assert str(tmp_path) not in json.dumps(found)
    assert not list(tmp_path.rglob("checkpoint-*"))

    assert rehearse(tmp_path / "whole") == done.stdout
    assert sum(message.endswith("done before") for message in caplog.messages) == 3
    with pytest.raises(UserError, match="was made with batch_size"):
        rehearse(tmp_path / "whole", "--batch-size", "16")

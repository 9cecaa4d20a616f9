"""The demo in miniature: it ends with the table, does nothing twice, and a kill does not change its results."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

import pytest

from collab_fairseq.records.rows import load_run
from tests.common import BIN, ROOT, run
from tests.fairseq import forked

RECIPE = ROOT / "recipes" / "demo" / "run.sh"
MODELS = [f"{model}-s1-u14" for model in ("none-dk64", "none-dk16", "encoder_cross_decoder-dk16")]
SIZES = {"train": 300, "valid": 20, "test": 20, "vocab-size": 300, "updates": 14, "average": 2, "warmup": 4}
OPTIONS = {**SIZES, "device": "cpu", "python": sys.executable}
SMALL = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]


def demo(output: Path, check: bool = True, env: Optional[Dict[str, str]] = None):
    environment = {"OMP_NUM_THREADS": "3", **(env or {})}  # three runs of a thread each
    return run("bash", RECIPE, "--output", output, *SMALL, check=check, env=environment)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished demo: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, demo(folder)


def content(folder: Path) -> Dict[str, tuple]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def results(text: str) -> List[str]:
    """The summary without the two columns that depend on the clock."""
    lines = text[text.index("| heads") : text.index("This text")] if "This text" in text else text
    return [line.rsplit("|", 3)[0] if line.startswith("|") else line for line in lines.strip().split("\n")]


def test_it_ends_with_the_table_the_figure_and_translations(finished):
    folder, done = finished
    lines = [line.strip("|") for line in done.stdout.split("\n") if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert rows[0][:4] == ["heads", "key dim", "parameters", "validation loss"]
    assert rows[0][4:] == ["compound-split BLEU test", "sacreBLEU test", "words/s", "training (h)"]
    assert [(row[0], row[1]) for row in rows[2:]] == [("standard", "64"), ("standard", "16"), ("collaborative", "16")]
    for name, row in zip(MODELS, rows[2:], strict=True):
        record = load_run(folder / name / "record.json")
        curve = record["curves"]["valid"]
        assert row[2:4] == [f"{record['parameters']:,}", f"{curve[-1]['loss']:.3f}"]
        assert curve[-1]["updates"] == 14
        assert [entry["num_updates"] for entry in record["averaged_from"]] == [14, 13]
        assert record["seed"] == 1
        assert re.fullmatch(r"\d\.\d\d", row[7])
        assert re.search(rf"^    {name} +(\S.*)?$", done.stdout, re.MULTILINE)
        assert f"demo: {name}: finished, 14 of 14 updates" in done.stderr
        assert f"{name}: started, see" in done.stderr
    assert "sacreBLEU: `nrefs:1|case:mixed" in done.stdout
    assert done.stdout.count("    reference") == 4
    assert (folder / "summary.md").read_text(encoding="utf-8") in done.stdout
    drawing = (folder / "validation.svg").read_text(encoding="utf-8")
    for label in ("standard, key dimension 64", "standard, key dimension 16", "collaborative, key dimension 16"):
        assert label in drawing


def test_a_second_run_changes_no_file(finished):
    folder, first = finished
    before = content(folder)
    done = demo(folder)
    assert content(folder) == before
    assert done.stdout == first.stdout
    assert done.stderr.count("done before") == 3
    assert "is complete, nothing to do" in done.stderr


def kill_in_training(folder, model):
    """Start the demo and kill it, and all it has started, when the model has a checkpoint; whether it was in time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command, silent = ["bash", RECIPE, "--output", folder, *SMALL], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=silent, stderr=silent, start_new_session=True, env=environment) as process:
        forked.wait_for(lambda: list((model / "checkpoints").glob("checkpoint_*_[2-9].pt")), process)
        # the training runs have their own groups, which end a second after the demo; here that would be too late
        for group in {process.pid, *forked.descendants(process.pid).values()}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    return not list((model / "checkpoints").glob("checkpoint_*_1[34].pt"))


def test_killed_and_continued_equals_uninterrupted(finished, tmp_path):
    whole, first = finished
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    model = folder / MODELS[2]
    for _ in range(5):  # fourteen updates are over in no time
        shutil.rmtree(model)
        if kill_in_training(folder, model):
            break
    else:
        pytest.fail("every kill came after the training")
    assert not (model / "averaged.pt").exists()

    done = demo(folder)
    assert results(done.stdout) == results(first.stdout)
    assert "training: resuming from checkpoint_" in (model / "messages.txt").read_text(encoding="utf-8")
    old, new = (load_run(f / model.name / "record.json") for f in (whole, folder))
    losses = [[(point["updates"], point["loss"]) for point in record["curves"]["valid"]] for record in (old, new)]
    assert losses[0] == losses[1]
    assert not [name for name in content(folder) if name.endswith((".tmp", ".partial"))]


def test_a_failing_model_is_named(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / MODELS[1])
    (folder / MODELS[1]).mkdir()
    (folder / MODELS[1] / "checkpoints").write_text("not a folder")
    done = demo(folder, check=False, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 1
    assert "started, see" not in done.stderr  # one at a time
    assert f"recipes/toy/sweep.sh: error: not finished: {MODELS[1]}" in done.stderr
    assert "recipes/demo/run.sh: error: not all models are finished" in done.stderr
    assert "| heads" not in done.stdout

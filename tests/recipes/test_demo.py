"""The demo in miniature: it ends with a table, skips finished steps, and a kill does not change its results."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess

import pytest
import torch

from collab_fairseq.records.rows import load_run
from recipes.runner import progress
from tests import forked
from tests.common import ROOT, descendants, run

RECIPE = ROOT / "recipes" / "demo" / "run.sh"
MODELS = [f"{model}-s1-u14" for model in ("none-dk64", "none-dk16", "encoder_cross_decoder-dk16")]
SMALL = ["--train", "300", "--valid", "20", "--test", "20", "--vocab-size", "300", "--device", "cpu"]
SMALL += ["--updates", "14", "--average", "2", "--warmup", "4"]


def demo(output, check=True, threads=3):
    return run("bash", RECIPE, "--output", output, *SMALL, check=check, env={"OMP_NUM_THREADS": str(threads)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder and output of a finished demo."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, demo(folder)


def results(text):
    """The printed summary without words per second and time."""
    lines = text[text.index("| heads") : text.index("This text")].split("\n")
    return [line.rsplit("|", 3)[0] if line.startswith("|") else line for line in lines]


def test_demo_ends_with_table_figure_and_translations(finished):
    folder, done = finished
    lines = [line.strip("|") for line in done.stdout.split("\n") if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert rows[0][:4] == ["heads", "key dimension", "parameters", "validation loss"]
    assert rows[0][4:] == ["compound-split BLEU test", "sacreBLEU test", "words/s", "training (h)"]
    assert [(row[0], row[1]) for row in rows[2:]] == [("standard", "64"), ("standard", "16"), ("collaborative", "16")]
    for number, (name, row) in enumerate(zip(MODELS, rows[2:], strict=True), start=1):
        record = load_run(folder / name / "record.json")
        last = record["curves"]["valid"][-1]
        assert row[2:4] == [f"{record['parameters']:,}", f"{last['loss']:.3f}"]
        assert [last["updates"], *(entry["num_updates"] for entry in record["averaged_from"])] == [14, 14, 13]
        assert re.search(rf"^    {name} +(\S.*)?$", done.stdout, re.MULTILINE)
        assert f"run {number} of 3, {name}: started, see" in done.stderr
        assert re.search(rf"toy: {name}: 100% 14/14 \[.*, finished, ", done.stderr)
    assert done.stdout.count("    reference") == 4
    assert (folder / "summary.md").read_text(encoding="utf-8") in done.stdout
    assert "collaborative, key dimension 16" in (folder / "validation.svg").read_text(encoding="utf-8")


def kill_in_training(folder, model):
    """Kill the demo and its children when the model has a checkpoint. Returns whether training was not over."""
    command = ["bash", RECIPE, "--output", folder, *SMALL]
    options = {"stderr": subprocess.DEVNULL, "env": {**os.environ, "OMP_NUM_THREADS": "3"}}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, **options) as process:
        forked.wait_for(lambda: list((model / "checkpoints").glob("checkpoint_*_[2-9].pt")), process)
        # the training runs have their own process groups, which end too late by themselves
        for group in {process.pid, *(group for _, group in descendants(process.pid).values())}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    return not list((model / "checkpoints").glob("checkpoint_*_1[34].pt"))


@pytest.mark.slow
def test_resumed_demo_equals_uninterrupted_demo(finished, tmp_path):
    uninterrupted, first = finished
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    model = folder / MODELS[2]
    for _ in range(5):  # training takes a few seconds only
        shutil.rmtree(model)
        if kill_in_training(folder, model):
            break
    else:
        pytest.fail("every kill came after the end of training")
    assert not (model / "averaged.pt").exists()

    done = demo(folder)
    assert results(done.stdout) == results(first.stdout)
    assert "training: resuming from checkpoint_" in (model / "messages.txt").read_text(encoding="utf-8")
    old, new = (load_run(f / model.name / "record.json") for f in (uninterrupted, folder))
    losses = [[(point["updates"], point["loss"]) for point in record["curves"]["valid"]] for record in (old, new)]
    assert losses[0] == losses[1]
    assert not list(folder.rglob("*.tmp"))


def test_error_names_the_failed_model(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(folder / MODELS[1])
    (folder / MODELS[1] / "checkpoints").mkdir(parents=True)
    torch.save({"model": {}}, folder / MODELS[1] / "checkpoints" / "checkpoint_last.pt")
    done = demo(folder, check=False, threads=1)
    assert done.returncode == 1
    assert "started, see" not in done.stderr  # with one thread, one run at a time
    assert f"recipes/toy/run.sh: error: not finished: {MODELS[1]}" in done.stderr
    assert "recipes/demo/run.sh: error: not all models are finished" in done.stderr
    assert "| heads" not in done.stdout


def test_a_loss_that_is_not_finite_does_not_end_a_run(tmp_path):
    for loss, expected in (("5.25", "5.250"), ("nan", "nan"), ("inf", "nan")):
        lines = [{"num_updates": "20", "loss": "5.5"}, {"valid_num_updates": "20", "valid_loss": loss}]
        (tmp_path / "train.log").write_text("".join(f"INFO | {json.dumps(line)}\n" for line in lines))
        shown = progress.state(tmp_path, tmp_path / "train.log")
        assert shown == (20, f"training, loss 5.500, validation {expected}")


def test_progress_is_read_from_the_logs_of_runs(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    times = [0.0]
    for clock in ("time.monotonic", "tqdm.std.time"):
        monkeypatch.setattr(clock, lambda: times[-1])
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with progress.RunProgress() as shown:
        for folder in folders:
            shown.add(folder, 100)
        lines = [{"num_updates": "20", "loss": "5.5"}, {"valid_num_updates": "20", "valid_loss": "5.25"}]
        (folders[0] / "train.log").write_text("".join(f"INFO | {json.dumps(line)}\n" for line in lines))
        times.append(50.0)
        shown.poll()  # reads nothing yet
        assert not caplog.records
        times.append(100.0)
        shown.poll()
        with open(folders[0] / "train.log", "a", encoding="utf-8") as log:
            log.write(f"INFO | {json.dumps({'num_updates': '100', 'loss': '4'})}\n")
        (folders[0] / "record.json").write_text("{}")
        times.append(170.0)
        shown.poll()
    assert [record.getMessage() for record in caplog.records if " 0/100" not in record.getMessage()] == [
        "one:  20% 20/100 [01:40<06:40,  5.00s/ updates, training, loss 5.500, validation 5.250]",
        "one: 100% 100/100 [02:50<00:00,  1.70s/ updates, finished, loss 4.000, validation 5.250]",
    ]

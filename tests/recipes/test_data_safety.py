"""Recipe runs with damaged data, checkpoints or settings: an error names the remedy, and no result is wrong."""

import json
import shlex
import shutil
import subprocess
import sys

import pieces
import pytest

from collab_fairseq import checkpoints
from tests.common import ROOT, run
from tests.fairseq.models import same_model

RECIPE = ROOT / "recipes" / "toy" / "run.sh"
UPDATES, INTERVAL = 12, 4


def recipe(data, output, *more, check=True):
    words = ["--data", data, "--output", output, "--device", "cpu", "--threads", 1, "--python", sys.executable]
    words += ["--updates", UPDATES, "--average", 2, "lr_scheduler.warmup_updates=4"]
    words += [f"checkpoint.save_interval_updates={INTERVAL}"]
    return run("bash", RECIPE, *words, *more, check=check)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A corpus with epochs of four updates, so that every checkpoint is at the end of an epoch."""
    folder = tmp_path_factory.mktemp("data") / "toy"
    sizes = ["--train", 95, "--valid", 10, "--test", 10, "--vocab-size", 200]
    run("bash", ROOT / "data_prep" / "toy.sh", *sizes, "--output", folder, "--python", sys.executable)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("finished") / "run"
    recipe(data, output)
    return output


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def error(done):
    """The error message of a failed recipe."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if ": error: " in line]
    return line


def forget_results(run_folder):
    """Make the run look as if it had been killed before averaging."""
    for path in (*run_folder.glob("averaged*.pt"), *run_folder.glob("test.*"), run_folder / "record.json"):
        path.unlink()


def test_checkpoints_at_the_end_of_epochs_are_averaged(finished):
    record = json.loads((finished / "record.json").read_text())
    assert [entry["num_updates"] for entry in record["settings"]["averaged_from"]] == [12, 8]
    log = (finished / "train.log").read_text()
    assert log.count("end of epoch") == 3  # control: each checkpoint is at the end of an epoch
    assert [point["updates"] for point in record["parts"]["curves"]["valid"]] == [4, 8, 12]


def test_damaged_data_are_not_used(data, copied, tmp_path):
    damaged = shutil.copytree(data, tmp_path / "data")
    file = damaged / "data-bin" / "test.en-de.en.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(bytes(content))
    message = f"{file} is missing or damaged (it differs from SHA256SUMS); prepare the data again: data_prep/toy.sh"
    assert message in error(recipe(damaged, tmp_path / "new", check=False))
    assert not (tmp_path / "new" / "checkpoints").exists()
    forget_results(copied)
    assert message in error(recipe(damaged, copied, check=False))
    assert not list(copied.glob("test.*"))
    (damaged / "SHA256SUMS").unlink()
    assert "has no SHA256SUMS; prepare the data again" in error(recipe(damaged, tmp_path / "new", check=False))


@pytest.mark.parametrize("damage", ["removed", "empty", "truncated", "all empty"])
def test_error_about_a_damaged_checkpoint_names_a_command_that_recovers(damage, data, copied):
    weights = checkpoints.load(copied / "averaged.pt")["model"]
    forget_results(copied)
    (newest,) = (copied / "checkpoints").glob("checkpoint_*_12.pt")
    if damage == "removed":
        newest.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-100])
    else:
        for path in (copied / "checkpoints").glob("checkpoint_[1-9l]*.pt"):
            path.write_bytes(b"")
    message = error(recipe(data, copied, check=False))
    assert "update 12" in message or ".pt" in message
    command = message.partition(", run: ")[2].partition(" and then the same command")[0]
    assert command.startswith("rm ")
    subprocess.run(shlex.split(command), check=True)
    recipe(data, copied)
    state = checkpoints.load(copied / "averaged.pt")
    assert [entry["num_updates"] for entry in state["extra_state"]["averaged_from"]] == [12, 8]
    assert same_model(state["model"], weights)


def test_checkpoints_without_settings_are_not_taken_over(data, copied):
    forget_results(copied)
    (copied / "settings.yaml").unlink()
    message = error(recipe(data, copied, "model.dropout=0.3", check=False))
    assert "settings.yaml is missing next to checkpoints/" in message
    assert not (copied / "averaged.pt").exists()


@pytest.mark.parametrize("length", [1023, 1024])
def test_preparation_rejects_sentences_too_long_for_a_model(length, tmp_path):
    (tmp_path / "test.pieces").write_text("a b\n" + " ".join(["a"] * length) + "\n")
    (tmp_path / "test.en").write_text("ab\n" + "a" * length + "\n")
    if length == 1023:
        pieces.check_held_out(tmp_path / "test.pieces", tmp_path / "test.en")
    else:
        with pytest.raises(ValueError, match=r"test.en must have at most 1,023 pieces; got 1,024 \('aaa"):
            pieces.check_held_out(tmp_path / "test.pieces", tmp_path / "test.en")

"""No recipe run is lost, and none ends in a wrong result without a word: damaged data, checkpoints and settings."""

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
    return run(
        "bash",
        RECIPE,
        "--data",
        data,
        "--output",
        output,
        "--device",
        "cpu",
        "--threads",
        1,
        "--python",
        sys.executable,
        "--updates",
        UPDATES,
        "--average",
        2,
        "lr_scheduler.warmup_updates=4",
        f"checkpoint.save_interval_updates={INTERVAL}",
        *more,
        check=check,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Epochs of four updates: every save is at the end of one."""
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
    """The finished run, for a test to damage."""
    return shutil.copytree(finished, tmp_path / "run")


def error(done):
    """The one sentence of a recipe that has failed."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if ": error: " in line]
    return line


def forget_results(run_folder):
    """As if the run had been killed before it was averaged."""
    for path in (*run_folder.glob("averaged*.pt"), *run_folder.glob("test.*"), run_folder / "record.json"):
        path.unlink()


def test_saves_at_the_end_of_epochs_are_averaged(finished):
    record = json.loads((finished / "record.json").read_text())
    assert [entry["num_updates"] for entry in record["settings"]["averaged_from"]] == [12, 8]
    log = (finished / "train.log").read_text()
    assert log.count("end of epoch") == 3  # the control: each save is at one
    assert [point["updates"] for point in record["parts"]["curves"]["valid"]] == [4, 8, 12]


def test_damaged_data_are_neither_trained_on_nor_translated(data, copied, tmp_path):
    own = shutil.copytree(data, tmp_path / "data")
    file = own / "data-bin" / "test.en-de.en.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(bytes(content))
    message = f"{file} is missing or damaged (it differs from SHA256SUMS); prepare the data again: data_prep/toy.sh"
    assert message in error(recipe(own, tmp_path / "new", check=False))
    assert not (tmp_path / "new" / "checkpoints").exists()
    forget_results(copied)
    assert message in error(recipe(own, copied, check=False))
    assert not list(copied.glob("test.*"))
    (own / "SHA256SUMS").unlink()
    assert "has no SHA256SUMS; prepare the data again" in error(recipe(own, tmp_path / "new", check=False))


@pytest.mark.parametrize("damage", ["removed", "empty", "cut", "all empty"])
def test_the_command_that_a_damaged_checkpoint_needs_is_named_and_recovers(damage, data, copied):
    weights = checkpoints.load(copied / "averaged.pt")["model"]
    forget_results(copied)
    (newest,) = (copied / "checkpoints").glob("checkpoint_*_12.pt")
    if damage == "removed":
        newest.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "cut":
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


def test_other_settings_do_not_take_over_checkpoints_without_settings(data, copied):
    forget_results(copied)
    (copied / "settings.yaml").unlink()
    message = error(recipe(data, copied, "model.dropout=0.3", check=False))
    assert "settings.yaml is missing next to checkpoints/" in message
    assert not (copied / "averaged.pt").exists()


@pytest.mark.parametrize("length", [1023, 1024])
def test_sentences_that_no_model_can_read_are_found_when_data_are_prepared(length, tmp_path):
    (tmp_path / "test.pieces").write_text("a b\n" + " ".join(["a"] * length) + "\n")
    (tmp_path / "test.en").write_text("ab\n" + "a" * length + "\n")
    if length == 1023:
        pieces.check_held_out(tmp_path / "test.pieces", tmp_path / "test.en")
    else:
        with pytest.raises(ValueError, match=r"test.en must have at most 1,023 pieces; got 1,024 \('aaa"):
            pieces.check_held_out(tmp_path / "test.pieces", tmp_path / "test.en")

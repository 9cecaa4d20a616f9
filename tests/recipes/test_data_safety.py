"""Recipe runs with damaged data, checkpoints or settings: an error names the remedy, and no result is wrong."""

import shlex
import shutil
import subprocess

import pieces
import pytest

from collab_fairseq import checkpoints
from collab_fairseq.records.rows import load_run
from tests.common import ROOT, rejected, run
from tests.fairseq.models import same_model


def recipe(data, output, *more, check=True):
    words = ["--data", data, "--output", output, "--device", "cpu", "--threads", 1, "--updates", 12]
    words += ["--average", 2, "lr_scheduler.warmup_updates=4", "checkpoint.save_interval_updates=4"]
    return run("bash", ROOT / "recipes" / "toy" / "run.sh", *words, *more, check=check)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A corpus with epochs of four updates, so that every checkpoint is at the end of an epoch."""
    folder = tmp_path_factory.mktemp("data") / "toy"
    sizes = ["--train", 95, "--valid", 10, "--test", 10, "--vocab-size", 200]
    run("bash", ROOT / "data_prep" / "toy.sh", *sizes, "--output", folder)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("finished") / "run"
    recipe(data, output)
    return output


@pytest.fixture
def unaveraged(finished, tmp_path):
    """A copy of the finished run that looks as if it had been killed before averaging."""
    output = shutil.copytree(finished, tmp_path / "run")
    for path in (*output.glob("averaged*.pt"), *output.glob("test.*"), output / "record.json"):
        path.unlink()
    return output


def test_checkpoints_at_the_end_of_epochs_are_averaged(finished):
    record = load_run(finished / "record.json")
    assert [entry["num_updates"] for entry in record["averaged_from"]] == [12, 8]
    log = (finished / "train.log").read_text()
    assert log.count("end of epoch") == 3  # control: each checkpoint is at the end of an epoch
    assert [point["updates"] for point in record["curves"]["valid"]] == [4, 8, 12]


def test_damaged_data_are_not_used(data, unaveraged, tmp_path):
    damaged = shutil.copytree(data, tmp_path / "data")
    file = damaged / "data-bin" / "test.en-de.en.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(bytes(content))
    message = f"{file} is missing or damaged (it differs from SHA256SUMS); prepare the data again: data_prep/toy.sh"
    rejected(recipe(damaged, tmp_path / "new", check=False), message)
    assert not (tmp_path / "new" / "checkpoints").exists()
    rejected(recipe(damaged, unaveraged, check=False), message)
    assert not list(unaveraged.glob("test.*"))
    (damaged / "SHA256SUMS").unlink()
    rejected(recipe(damaged, tmp_path / "new", check=False), "has no SHA256SUMS; prepare the data again")


@pytest.mark.parametrize("damage", ["removed", "empty", "truncated", "all empty"])
def test_error_about_a_damaged_checkpoint_names_a_command_that_recovers(damage, data, finished, unaveraged):
    (newest,) = (unaveraged / "checkpoints").glob("checkpoint_*_12.pt")
    if damage == "removed":
        newest.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-100])
    else:
        for path in (unaveraged / "checkpoints").glob("checkpoint_[1-9l]*.pt"):
            path.write_bytes(b"")
    message = rejected(recipe(data, unaveraged, check=False))
    assert "update 12" in message or ".pt" in message
    command = message.partition(", run: ")[2].partition(" and then the same command")[0]
    assert command.startswith("rm ")
    subprocess.run(shlex.split(command), check=True)
    recipe(data, unaveraged)
    state, expected = (checkpoints.load(folder / "averaged.pt") for folder in (unaveraged, finished))
    assert [entry["num_updates"] for entry in state["extra_state"]["averaged_from"]] == [12, 8]
    assert same_model(state["model"], expected["model"])


def test_checkpoints_without_settings_are_not_taken_over(data, unaveraged):
    (unaveraged / "settings.yaml").unlink()
    message = "settings.yaml is missing next to checkpoints/"
    rejected(recipe(data, unaveraged, "model.dropout=0.3", check=False), message)
    assert not (unaveraged / "averaged.pt").exists()


def test_preparation_rejects_sentences_too_long_for_a_model(tmp_path):
    encoded, raw = tmp_path / "test.pieces", tmp_path / "test.en"
    raw.write_text("ab\naaa\n")
    encoded.write_text(f"a b\n{1023 * 'a '}\n")
    pieces.check_held_out(encoded, raw)
    encoded.write_text(f"a b\n{1024 * 'a '}\n")
    with pytest.raises(ValueError, match=r"test.en must have at most 1,023 pieces; got 1,024 \('aaa"):
        pieces.check_held_out(encoded, raw)

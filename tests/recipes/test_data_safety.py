"""Recipe runs with damaged data, checkpoints or settings: an error names the remedy, and no result is wrong."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.records.rows import load_run
from data_prep import pieces
from fairseq_modern import processor
from recipes.runner.evaluation import export
from recipes.runner.folder import fingerprint
from tests.common import ROOT, collab, rejected, run
from tests.models.cases import same_model


def recipe(data, output, *more, **options):
    words = ["--data", data, "--output", output, "--device", "cpu", "--threads", 1, "--updates", 12]
    words += ["--average", 2, "lr_scheduler.warmup_updates=4"]
    words += ["checkpoint.save_interval_updates=4", "checkpoint.keep_interval_updates=3"]
    return run("bash", ROOT / "recipes" / "toy" / "run.sh", *words, *more, **options)


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
    trained_on = json.loads((finished / "train.usage.jsonl").read_text().splitlines()[0])["hardware"]
    assert record["hardware"] == {**trained_on, "device": "cpu"}


def test_damaged_data_are_not_used(data, unaveraged, tmp_path):
    damaged = shutil.copytree(data, tmp_path / "data")
    file = damaged / "data-bin" / "test.en-de.en.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(bytes(content))
    message = f"{file} is missing, damaged or not listed in SHA256SUMS; prepare the data again: data_prep/toy.sh"
    rejected(recipe(damaged, tmp_path / "new", check=False), message)
    assert not (tmp_path / "new" / "checkpoints").exists()
    rejected(recipe(damaged, unaveraged, check=False), message)
    assert not list(unaveraged.glob("test.*"))
    (damaged / "SHA256SUMS").unlink()
    rejected(recipe(damaged, tmp_path / "new", check=False), "has no SHA256SUMS; prepare the data again")


def test_every_file_of_the_data_is_listed(data, tmp_path):
    """fairseq also trains with shards of the training set."""
    copied = shutil.copytree(data, tmp_path / "data")
    shard = copied / "data-bin" / "train1.en-de.en.idx"
    shutil.copy(copied / "data-bin" / "train.en-de.en.idx", shard)
    lines = (copied / "SHA256SUMS").read_text().splitlines(keepends=True)
    without_raw = [line for line in lines if " raw/" not in line]
    rejected(recipe(copied, tmp_path / "new", check=False), f"{shard} is missing, damaged or not listed in SHA256SUMS")
    shard.unlink()
    for name, listed in (("data-bin/dict.de.txt", []), ("raw/test.de", without_raw)):
        (copied / "SHA256SUMS").write_text("".join(listed))
        rejected(recipe(copied, tmp_path / "new", check=False), f"{copied / name} is missing, damaged or not listed")
    assert not (tmp_path / "new" / "checkpoints").exists()


def test_fingerprint_includes_names(data, tmp_path):
    swapped = tmp_path / "data"
    swapped.mkdir()
    text = (data / "SHA256SUMS").read_text()
    exchanged = text.replace("/valid.", "/other.").replace("/test.", "/valid.").replace("/other.", "/test.")
    (swapped / "SHA256SUMS").write_text(exchanged)
    assert fingerprint(swapped) != fingerprint(data)
    (swapped / "SHA256SUMS").write_text(text)
    assert fingerprint(swapped) == fingerprint(data)


def test_missing_references_are_an_error_before_training(data, tmp_path):
    done = recipe(data, tmp_path / "run", "--reference", tmp_path / "typo.de", check=False)
    rejected(done, "there are no references", "typo.de")
    assert not list((tmp_path / "run").glob("train*"))


def interval_checkpoints(output):
    """Update -> checkpoint."""
    return {int(path.stem.split("_")[-1]): path for path in (output / "checkpoints").glob("checkpoint_*_*.pt")}


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        ("removed", [4, 8]),
        ("older one empty", [4]),
        pytest.param("empty", [4, 8], marks=pytest.mark.slow),
        pytest.param("truncated", [4, 8], marks=pytest.mark.slow),
        pytest.param("all empty", [], marks=pytest.mark.slow),
    ],
)
def test_error_about_a_damaged_checkpoint_names_a_command_that_recovers(damage, kept, data, finished, unaveraged):
    newest = interval_checkpoints(unaveraged)[12]
    if damage == "removed":
        newest.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-100])
    elif damage == "older one empty":
        interval_checkpoints(unaveraged)[8].write_bytes(b"")
    else:
        for path in (unaveraged / "checkpoints").glob("checkpoint_[1-9l]*.pt"):
            path.write_bytes(b"")
    message = rejected(recipe(data, unaveraged, check=False))
    command = message.partition(", run: ")[2].partition(" and then run.sh with the same options")[0]
    assert command.startswith("rm ")
    subprocess.run(shlex.split(command), check=True)
    assert sorted(interval_checkpoints(unaveraged)) == kept
    resumed_from = re.findall(r"resuming from checkpoint_\d_(\d+)\.pt", recipe(data, unaveraged).stderr)
    assert resumed_from == [str(update) for update in kept[-1:]]
    state, expected = (checkpoints.load(folder / "averaged.pt") for folder in (unaveraged, finished))
    assert [entry["num_updates"] for entry in state["extra_state"]["averaged_from"]] == [12, 8]
    assert same_model(state["model"], expected["model"])


def average(output, *words, check=True):
    """The step average, which takes the settings of the run from the folder."""
    command = ["python", "-m", "recipes", "wmt14_en_de", "average", "--output", output, "--device", "cpu"]
    return run(*command, *words, check=check)


def test_larger_average_than_checkpoints_is_rejected_without_a_command_that_removes_them(finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    message = rejected(average(output, "--average", 4, check=False))
    folder = output / "checkpoints"
    assert f"--average must be at most 3, the number of checkpoints kept in {folder}; got 4" in message
    interval_checkpoints(output)[12].unlink()
    message = rejected(average(output, "--average", 3, check=False))
    assert message.endswith(f"{folder} lacks the checkpoint of update 12")
    shutil.copy(interval_checkpoints(finished)[12], folder)
    average(output, "recipe.average=3")  # control
    state = checkpoints.load(output / "averaged.last3.pt")
    assert [entry["num_updates"] for entry in state["extra_state"]["averaged_from"]] == [12, 8, 4]
    assert (output / "averaged.pt").read_bytes() == (finished / "averaged.pt").read_bytes()


def test_damaged_checkpoint_of_an_epoch_can_be_left_out(unaveraged):
    folder = unaveraged / "checkpoints"
    shutil.copy(interval_checkpoints(unaveraged)[12], folder / "checkpoint3.pt")
    (folder / "checkpoint2.pt").touch()
    words = ["checkpoint.keep_last_epochs=2"]
    message = rejected(average(unaveraged, *words, check=False))
    command = f"rm {folder / 'checkpoint2.pt'}"
    assert message.endswith(f"; to continue without this average, run: {command} and then the same command")
    subprocess.run(shlex.split(command), check=True)
    assert "no average of epochs: 1 of 2 epochs so far" in average(unaveraged, *words).stderr
    assert (unaveraged / "averaged.pt").exists()


def changed(source, target, section, name, value):
    """Copy a checkpoint and change a setting in it, as if another run had written it."""
    state = checkpoints.load(source)
    settings = state["cfg"][section]
    (vars(settings) if section == "model" else settings)[name] = value
    checkpoints.save(state, target)


@pytest.mark.parametrize(
    ("section", "name", "value", "shown"),
    [
        ("common", "seed", 2, "common.seed is 2"),
        ("model", "dropout", 0.3, "model.dropout is 0.3"),
        ("task", "data", "/data/other/data-bin", "task.data is other data-bin"),
        ("optimization", "lr", [0.1], r"optimization.lr is \[0.1\]"),
        ("task", "data", "/moved/toy/data-bin", None),
        ("optimization", "max_update", 100, None),
        ("dataset", "max_tokens", 100, None),
        ("checkpoint", "save_dir", "/moved", None),
    ],
)
def test_only_checkpoints_of_one_run_are_averaged(section, name, value, shown, finished, tmp_path):
    one, other = interval_checkpoints(finished)[8], tmp_path / interval_checkpoints(finished)[12].name
    changed(interval_checkpoints(finished)[12], other, section, name, value)
    expected = collab("average", "--inputs", one, interval_checkpoints(finished)[12], "--output", tmp_path / "a.pt")
    words = ["average", "--inputs", one, other, "--output", tmp_path / "b.pt"]
    if shown:
        assert re.search(f"{shown} in {other}, but .* in {one}: they are of different runs", collab(*words, status=1))
        words.append("--different-runs")
    assert collab(*words).splitlines()[0] == expected.splitlines()[0]
    assert same_model(*(checkpoints.load(tmp_path / f"{letter}.pt")["model"] for letter in "ab"))


def test_a_checkpoint_of_another_run_in_the_folder_is_not_averaged(data, unaveraged):
    older, newer = (interval_checkpoints(unaveraged)[update] for update in (8, 12))
    content = older.read_bytes()
    shutil.copy(interval_checkpoints(unaveraged)[4], older)
    message = rejected(recipe(data, unaveraged, check=False))
    assert f"{older} must have 8 updates, as in its name; got 4" in message
    older.write_bytes(content)
    changed(older, older, "common", "seed", 2)
    message = rejected(recipe(data, unaveraged, check=False))
    assert f"common.seed is 2 in {older}, but 1 in {newer}: they are of different runs" in message
    changed(newer, newer, "common", "seed", 2)
    message = rejected(recipe(data, unaveraged, check=False))
    assert f"common.seed is 2 in {newer}, but 1 in {unaveraged / 'settings.yaml'}: they are of different" in message
    assert not (unaveraged / "averaged.pt").exists()
    for file in (older, newer):
        changed(file, file, "common", "seed", 1)
    recipe(data, unaveraged)  # control


def test_precision_does_not_change_silently(data, finished, unaveraged):
    parts = load_run(finished / "record.json")["training"]["parts"]
    assert [part["precision"] for part in parts] == ["fp32"]
    for name in (interval_checkpoints(unaveraged)[12].name, "checkpoint_last.pt", "checkpoint_best.pt"):
        (unaveraged / "checkpoints" / name).unlink()
    rejected(recipe(data, unaveraged, "--precision", "bf16", check=False, env={processor.ASSUMED: "some"}))
    assert "Optimizer does not match" in (unaveraged / "train.log").read_text()
    recipe(data, unaveraged)  # control: the same precision


def test_record_keeps_its_references(data, finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    same, other = tmp_path / "same.de", tmp_path / "other.de"
    lines = (data / "raw" / "test.de").read_text(encoding="utf-8").splitlines(keepends=True)
    same.write_text("".join(lines), encoding="utf-8")
    other.write_text("".join([lines[0].upper(), *lines[1:]]), encoding="utf-8")
    results = [output / "test.scores.json", output / "record.json"]
    before = [path.read_bytes() for path in results]
    message = rejected(recipe(data, output, "--reference", other, check=False))
    assert f"the references of test must be those of {output / 'record.json'}: test.de, SHA-256 " in message
    assert f"; got {other}, SHA-256 " in message
    assert [path.read_bytes() for path in results] == before
    # control: a copy of the references
    assert "compound-split BLEU" in recipe(data, output, "--reference", same).stdout


def evaluate(data, output, *words, check=True):
    flags = ["--data", data, "--output", output, "--device", "cpu", "--threads", 1]
    return run("python", "-m", "recipes", "toy", "evaluate", *flags, *words, check=check)


def test_evaluation_keeps_the_training_and_data_of_the_run(data, finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    (output / "test.generate.log").unlink()
    other = shutil.copytree(data, tmp_path / "data")
    (other / "SHA256SUMS").write_text("".join((data / "SHA256SUMS").read_text().splitlines(keepends=True)[1:]))
    message = f"{output} has a run with different settings: "
    words = ["task.truncate_source=true"]
    rejected(evaluate(data, output, *words, check=False), f"{message}task.truncate_source None (requested: True)")
    rejected(evaluate(other, output, check=False), f"{message}data ")
    assert not (output / "test.generate.log").exists()
    evaluate(data, output)  # control
    assert (output / "test.generate.log").exists()


def generated(data, model, *flags):
    """Translations of the test set by fairseq-generate."""
    words = ["--path", model, "--post-process", "sentencepiece", "--cpu", "--max-tokens", 4000, "--num-workers", 0]
    words += ["--user-dir", ROOT / "collab_fairseq", "--seed", 1, *flags]
    lines = run("fairseq-generate", data / "data-bin", *words).stdout.splitlines()
    return sorted(line for line in lines if line.startswith("H-"))


def test_translations_and_record_belong_to_the_average_and_to_the_decoding(data, finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    log, file = output / "test.generate.log", output / "record.json"
    logs, records = [], []
    state, _ = checkpoints.average([interval_checkpoints(output)[4]])
    other = tmp_path / "other.pt"
    checkpoints.save(state, other)
    for model, beam in ((finished / "averaged.pt", 4), (other, 4), (other, 1)):
        shutil.copy(model, output / "averaged.pt")
        recipe(data, output, f"generation.beam={beam}")
        lines = log.read_text().splitlines()
        assert json.loads(lines[0])["model"] == hashlib.sha256(model.read_bytes()).hexdigest()
        hypotheses = sorted(line for line in lines if line.startswith("H-"))
        assert hypotheses == generated(data, model, "--beam", beam)
        logs.append(hypotheses)
        records.append(load_run(file))
        assert records[-1]["decoding"]["generation.beam"] == beam
        scored = records[-1]["scores"]["test"]["files"][0]
        assert scored["sha256"] == hashlib.sha256(log.read_bytes()).hexdigest()
        before = file.read_bytes()
        again = recipe(data, output, f"generation.beam={beam}")  # control: nothing has changed
        assert "translating test: already done" in again.stderr
        assert file.read_bytes() == before
    assert logs[0] != logs[1] != logs[2]
    losses = [record["losses"]["test"]["loss"] for record in records]
    assert losses[0] != losses[1] == losses[2]
    assert records[1]["training"] == records[2]["training"]


def test_a_damaged_average_or_log_is_made_again(data, finished, tmp_path):
    """Every repetition ended in an error without a remedy. The last case is the control."""
    output = shutil.copytree(finished, tmp_path / "run")
    average, log = output / "averaged.pt", output / "test.generate.log"
    model = average.read_bytes()
    average.write_bytes(model[: len(model) // 2])
    error = rejected(recipe(data, output, check=False), f"{average}", " and then the same command")
    subprocess.run(["bash", "-c", error.partition("; run: ")[2].partition(" and then")[0]], check=True)
    recipe(data, output)
    models = [checkpoints.load_with_model(file)["model"] for file in (average, finished / "averaged.pt")]
    assert same_model(*models)
    text = log.read_bytes()
    for length in (text.rindex(b"Generate "), len(text)):
        log.write_bytes(text[:length])
        messages = recipe(data, output).stderr
        assert ("translating test: already done" in messages) == (length == len(text))
        assert log.read_bytes() == text


def test_exported_folder_follows_the_record(data, finished, tmp_path):
    output, model = shutil.copytree(finished, tmp_path / "run"), tmp_path / "model"
    for beam in (4, 5):
        record = json.loads((finished / "record.json").read_text())
        record["settings"]["decoding"]["generation.beam"] = beam
        (output / "record.json").write_text(json.dumps(record))
        for repeated in (False, True):
            export(output, data / "data-bin", model)
            assert (model / "record.json").read_bytes() == (output / "record.json").read_bytes()
            assert (model / "kept").exists() == repeated
            (model / "kept").touch()  # control: the same record, so the folder stays


def test_preparation_rejects_sentences_too_long_for_a_model(tmp_path):
    encoded, raw = tmp_path / "test.pieces", tmp_path / "test.en"
    raw.write_text("ab\naaa\n")
    encoded.write_text(f"a b\n{1023 * 'a '}\n")
    pieces.check_held_out(encoded, raw)
    encoded.write_text(f"a b\n{1024 * 'a '}\n")
    with pytest.raises(ValueError, match=r"test.en must have at most 1,023 pieces; got 1,024 \('aaa"):
        pieces.check_held_out(encoded, raw)

"""A trained model works with its dictionaries only: others of the same size would give words wrong embeddings."""

import hashlib

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.translation import load_model, loss
from collab_fairseq.translation.load import model_from_state
from fairseq_modern.errors import UserError
from tests.commands import train_command
from tests.common import ROOT, collab, rejected, run
from tests.fixtures import sentence_pairs
from tests.models.cases import SMALL, same_training

DIGESTS = ("source_dictionary_sha256", "target_dictionary_sha256")
FLAGS = {**SMALL, "key_dim": 6, "max_update": 30}
SEARCH = ["--gen-subset", "test", "--beam", 2, "--max-len-a", 0, "--max-len-b", 12, "--cpu"]
SEARCH += ["--user-dir", ROOT / "collab_fairseq"]


@pytest.fixture(scope="module")
def exchanged(tiny_data, tmp_path_factory):
    """`tiny_data` with a joined dictionary in which the second half of the symbols comes first."""
    folder = tmp_path_factory.mktemp("exchanged")
    lines = (tiny_data / "dict.src.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    half = len(lines) // 2
    (folder / "dict.txt").write_text("".join([*lines[half:], *lines[:half]]), encoding="utf-8")
    for seed, (split, number) in enumerate((("train", 200), ("valid", 20), ("test", 20))):
        pairs = sentence_pairs(number, seed)
        for side, suffix in enumerate(("src", "tgt")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{suffix}").write_text(text, encoding="utf-8")
    splits = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", folder / split)]
    dictionary = ["--joined-dictionary", "--srcdict", folder / "dict.txt", "--destdir", folder / "data-bin"]
    run("fairseq-preprocess", "-s", "src", "-t", "tgt", *dictionary, *splits)
    return folder / "data-bin"


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """The folder of a training run of two epochs."""
    folder = tmp_path_factory.mktemp("trained")
    run(*train_command(tiny_data, folder, **FLAGS))
    return folder


@pytest.fixture
def checkpoint(trained):
    return trained / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def without(trained):
    """The same checkpoint as an earlier version wrote it."""
    state = checkpoints.load(trained / "checkpoint_last.pt")
    for name in DIGESTS:
        del checkpoints.model_settings(state)[name]
    checkpoints.save(state, trained / "without.pt")
    return trained / "without.pt"


def test_the_settings_have_the_digests_of_the_files(checkpoint, tiny_data):
    lines = (tiny_data / "dict.src.txt").read_text(encoding="utf-8").splitlines()
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *(line.rpartition(" ")[0] for line in lines)]
    digest = hashlib.sha256("\n".join(symbols).encode()).hexdigest()
    settings = checkpoints.model_settings(checkpoints.load(checkpoint))
    assert [settings[name] for name in DIGESTS] == [digest, digest]


def test_tools_reject_another_dictionary_of_the_same_size(checkpoint, without, exchanged, tiny_data, tmp_path):
    def commands(path, data, output):
        yield ["export", path, "--to", "folder", "--data", data, "--output", output / "folder"]
        yield ["heads", "importance", path, "--data", data, "--split", "valid", "--sentences", 4]
        calibration = ["--key-dim", 4, "--calibration", "valid:4"]
        yield ["reparam", path, *calibration, "--data", data, "--output", output / "reparam.pt"]

    for name, data, status in (("exchanged", exchanged, 1), ("own", tiny_data, 0)):
        (tmp_path / name).mkdir()
        for words in commands(checkpoint, data, tmp_path / name):
            output = collab(*words, status=status)
            assert status == 0 or f"{checkpoint}: the source dictionary must have the symbols of the one" in output
    wrong, right = (loss(load_model(without, data), "valid").loss for data in (exchanged, tiny_data))  # control
    assert right == loss(load_model(checkpoint, tiny_data), "valid").loss
    assert abs(wrong - right) > 0.01
    state = checkpoints.load(checkpoint)
    checkpoints.model_settings(state)[DIGESTS[1]] = "0" * 64
    with pytest.raises(UserError, match=r"the target dictionary must .* \(SHA-256 000000000000…\)"):
        model_from_state(state, "state", tiny_data)


def test_fairseq_rejects_another_dictionary_of_the_same_size(checkpoint, without, exchanged, tiny_data):
    message = "error: the source dictionary must have the symbols of the one that the model was trained with"
    log = rejected(run("fairseq-generate", exchanged, "--path", checkpoint, *SEARCH, check=False), message)
    expected = checkpoints.model_settings(checkpoints.load(checkpoint))[DIGESTS[0]]
    assert f"(SHA-256 {expected[:12]}…); got another one (" in log
    outputs = [
        run("fairseq-generate", data, "--path", path, *SEARCH).stdout
        for data, path in ((tiny_data, checkpoint), (tiny_data, without), (exchanged, without))
    ]
    hypotheses = [[line for line in output.splitlines() if line.startswith("H-")] for output in outputs]
    assert len(hypotheses[0]) == 20
    assert hypotheses[0] == hypotheses[1]
    assert set(hypotheses[0]) != set(hypotheses[2])


@pytest.mark.parametrize("flag", ["finetune_from_model", pytest.param("restore_file", marks=pytest.mark.slow)])
def test_training_rejects_a_checkpoint_of_another_dictionary(flag, checkpoint, without, exchanged, tmp_path):
    message = f"error: the source dictionary must have the symbols of the one that {checkpoint} was trained with"
    more = {**FLAGS, "max_update": 31}
    command = train_command(exchanged, tmp_path / "rejected", **more, **{flag: checkpoint})
    rejected(run(*command, check=False), message)
    run(*train_command(exchanged, tmp_path / "earlier", **more, **{flag: without}))  # control


def test_a_checkpoint_of_an_earlier_version_continues_in_the_same_way(checkpoint, without, tiny_data, tmp_path):
    states = []
    for path in (checkpoint, without):
        run(*train_command(tiny_data, tmp_path / path.stem, **{**FLAGS, "max_update": 34}, restore_file=path))
        states.append(checkpoints.load(tmp_path / path.stem / "checkpoint_last.pt"))
    assert same_training(*states)
    first, second = ([checkpoints.model_settings(state)[name] for name in DIGESTS] for state in states)
    assert first == second
    assert None not in first


def test_average_rejects_models_with_different_dictionaries(trained, without, tmp_path):
    one, other = trained / "checkpoint1.pt", trained / "checkpoint_last.pt"
    state = checkpoints.load(other)
    checkpoints.model_settings(state)[DIGESTS[1]] = "0" * 64
    checkpoints.save(state, tmp_path / "other.pt")
    words = ["average", "--different-runs", "--output", tmp_path / "average.pt", "--inputs", one]
    assert f"{DIGESTS[1]} is {'0' * 64} in {tmp_path / 'other.pt'}" in collab(*words, tmp_path / "other.pt", status=1)
    collab(*words, without)
    (tmp_path / "average.pt").unlink()
    collab(*words, other)
    average, expected = (
        checkpoints.model_settings(checkpoints.load(path)) for path in (tmp_path / "average.pt", other)
    )
    assert [average[name] for name in DIGESTS] == [expected[name] for name in DIGESTS]


def test_conversions_keep_the_digests(checkpoint, exchanged, tiny_data, tmp_path):
    """Also without text, where placeholders replace the dictionaries."""
    collab("reparam", checkpoint, "--key-dim", 4, "--output", tmp_path / "reparam.pt")
    collab("heads", "prune", checkpoint, "--remove", "E:1:1", "--output", tmp_path / "removed.pt")
    for target in ("folder", "fairseq"):
        collab("export", checkpoint, "--to", target, "--data", tiny_data, "--output", tmp_path / target)
    expected = [checkpoints.model_settings(checkpoints.load(checkpoint))[name] for name in DIGESTS]
    for file in ("reparam.pt", "removed.pt", "folder/model.pt"):
        state = checkpoints.load(tmp_path / file)
        assert [checkpoints.model_settings(state)[name] for name in DIGESTS] == expected
        model_from_state(state, file, tiny_data)
        with pytest.raises(UserError, match="the source dictionary must have the symbols"):
            model_from_state(state, file, exchanged)
    assert not set(DIGESTS) & set(checkpoints.model_settings(checkpoints.load(tmp_path / "fairseq" / "model.pt")))

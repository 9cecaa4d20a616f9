"""Damaged checkpoints are named, saving is atomic, averaging equals NumPy's in float64."""

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import CheckpointError


def state(model, updates=1, **extra):
    return {
        "cfg": {"model": argparse.Namespace(arch="transformer")},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"exp_avg": torch.ones(3)},
        "extra_state": {"val_loss": np.float64(3.5), "curve": np.arange(3.0)},
        **extra,
    }


def random_model(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(3, 4, generator=generator).to(dtype) for name in ("a", "b")}


def write(path: Path, model, updates=1, **extra) -> Path:
    torch.save(state(model, updates, **extra), path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95, 0.9999])
def test_a_truncated_checkpoint_is_one_sentence(tmp_path, share):
    content = write(tmp_path / "whole.pt", random_model(0)).read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"cut\.pt was not loaded: expected a whole checkpoint, got") as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*absent\.pt"):
        checkpoints.load(tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match="is a directory"):
        checkpoints.load(tmp_path)
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"holds no model parameters under 'model', .* it has: weights"):
        checkpoints.average([tmp_path / "other.pt"])
    torch.save({"model": {}}, tmp_path / "empty.pt")
    with pytest.raises(CheckpointError, match=r"empty\.pt holds no model parameters under 'model'"):
        checkpoints.average([tmp_path / "empty.pt"])
    with pytest.raises(CheckpointError, match="/dev/zero is no regular file"):
        checkpoints.load("/dev/zero")
    for name, value, message in (
        ("cfg", "x", "cfg must be settings by name; got a str"),
        ("cfg", {"model": "x"}, "cfg.model must be settings by name; got a str"),
        ("optimizer_history", "x", "optimizer_history must be a list of mappings; got 'x'"),
        ("optimizer_history", [{"num_updates": "x"}], "num_updates must be a whole number; got 'x'"),
        ("extra_state", [1], r"extra_state must be a mapping; got \[1\]"),
    ):
        path = write(tmp_path / "odd.pt", random_model(0), **{name: value})
        with pytest.raises(CheckpointError, match=rf"odd\.pt: {message}"):
            checkpoints.average([path])


@pytest.mark.parametrize("failing", ["torch.save", "os.replace", "os.fsync"])
def test_a_failing_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "saved.pt"
    checkpoints.save({"model": {}}, path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        if failing == "torch.save":
            args[1].write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr({"torch": torch, "os": os}[failing.split(".")[0]], failing.split(".")[1], fail)
        with pytest.raises(CheckpointError, match=r"saved\.pt could not be written \(No space left on device\)"):
            checkpoints.save({"model": {"a": torch.ones(9)}}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["saved.pt"]


def test_average_equals_numpy_in_float64(tmp_path):
    paths = [write(tmp_path / f"{n}.pt", random_model(n), updates=n) for n in range(1, 8)]
    averaged, _ = checkpoints.average(paths)
    for name in ("a", "b"):
        expected = np.mean([random_model(n)[name].double().numpy() for n in range(1, 8)], axis=0)
        np.testing.assert_array_equal(averaged["model"][name].numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(tmp_path, dtype):
    # in 8 bits of mantissa 256 + 1 is 256: a bfloat16 sum would lose every further 1; 4 * 30000 overflows float16
    models = [{"a": torch.tensor([first, 30000.0]).to(dtype)} for first in (256.0, 1.0, 1.0, 1.0)]
    paths = [write(tmp_path / f"{n}.pt", model, updates=n) for n, model in enumerate(models)]
    result = checkpoints.average(paths)[0]["model"]["a"]
    assert result.dtype == dtype
    exact = np.mean([model["a"].double().numpy() for model in models], axis=0)
    assert torch.equal(result, torch.from_numpy(exact).to(dtype))


def test_shared_parameters_stay_shared_and_count_once(tmp_path):
    paths = []
    for n in (1, 2, 3):
        shared = torch.full((4,), float(n))
        paths.append(write(tmp_path / f"{n}.pt", {"embed": shared, "own": shared.clone(), "output": shared}))
    model = checkpoints.average(paths)[0]["model"]
    assert model["embed"].data_ptr() == model["output"].data_ptr() != model["own"].data_ptr()
    assert torch.equal(model["embed"], torch.full((4,), 2.0))
    assert list(model) == ["embed", "own", "output"]
    base = torch.arange(6.0)  # views of one storage are different parameters
    model = checkpoints.average([write(tmp_path / "4.pt", {"left": base[:3], "right": base[3:]})])[0]["model"]
    assert (model["left"].tolist(), model["right"].tolist()) == ([0, 1, 2], [3, 4, 5])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_parameters_shared_in_some_inputs_only_are_averaged_apart(tmp_path, order):
    one, two = torch.full((2,), 3.0), torch.full((2,), 6.0)
    models = [
        {"a": one, "b": one, "c": one},
        {"a": two, "b": torch.zeros(2), "c": two},
        {"a": one, "b": one, "c": one.clone()},
    ]
    paths = [write(tmp_path / f"{n}.pt", models[n]) for n in order]
    model = checkpoints.average(paths)[0]["model"]
    assert model["a"].tolist() == [4.0, 4.0]
    assert model["b"].tolist() == [2.0, 2.0]
    assert model["c"].tolist() == [4.0, 4.0]
    assert len({tensor.data_ptr() for tensor in model.values()}) == 3


def test_counters_come_from_the_newest_checkpoint(tmp_path):
    newest = write(tmp_path / "new.pt", {"a": torch.ones(1), "steps": torch.tensor(7)}, updates=20)
    older = write(tmp_path / "old.pt", {"a": torch.zeros(1), "steps": torch.tensor(4)}, updates=10)
    model = checkpoints.average([newest, older])[0]["model"]
    assert model["steps"].item() == 7
    assert model["steps"].dtype == torch.int64
    assert model["a"].item() == 0.5


def test_the_result_is_the_newest_state_with_its_inputs_recorded(tmp_path, caplog):
    paths = [write(tmp_path / f"{n}.pt", random_model(n), updates=n, mark=n) for n in (5, 9, 7)]
    averaged, report = checkpoints.average(paths)
    assert averaged["mark"] == 9
    assert averaged["last_optimizer_state"] is None
    assert float(averaged["extra_state"]["val_loss"]) == 3.5
    assert averaged["extra_state"]["averaged_from"] == report
    assert [entry["file"] for entry in report] == ["5.pt", "9.pt", "7.pt"]
    assert [entry["num_updates"] for entry in report] == [5, 9, 7]
    assert [entry["sha256"] for entry in report] == [checkpoints.sha256(path) for path in paths]
    checkpoints.save(averaged, tmp_path / "averaged.pt")
    assert checkpoints.load(tmp_path / "averaged.pt")["extra_state"]["averaged_from"] == report
    checkpoints.average([paths[0], paths[0]])
    assert "5.pt has the same content as an earlier input" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"a": 2, "c": 2}, r"other\.pt lacks b, which .*one\.pt has"),
        ({"a": 3, "b": 2}, r"a has shape \(3,\) in .*other\.pt, but \(2,\) in .*one\.pt"),
    ],
)
def test_inputs_of_different_models_are_rejected_by_name(tmp_path, sizes, message):
    one = write(tmp_path / "one.pt", {"a": torch.ones(2), "b": torch.ones(2)})
    other = write(tmp_path / "other.pt", {name: torch.ones(size) for name, size in sizes.items()})
    with pytest.raises(CheckpointError, match=message):
        checkpoints.average([one, other])


@pytest.mark.parametrize(
    "settings", [{"mixing_lr_multiplier": 8.0}, {"attention_shapes": {"cross.0": {"scale": 0.5}}}], ids=str
)
def test_inputs_whose_settings_give_the_numbers_another_meaning_are_rejected(tmp_path, settings):
    default = {name: {} if isinstance(value, dict) else 1.0 for name, value in settings.items()}
    given = {"without": {}, "default": default, "other": settings}
    model = {"a": torch.ones(2)}
    without, one, other = (
        write(tmp_path / f"{name}.pt", model, cfg={"model": {"_name": "x", **values}}) for name, values in given.items()
    )
    checkpoints.average([without, one])
    with pytest.raises(CheckpointError, match=r".* is .* in .*other\.pt, but .*default\.pt: they are different models"):
        checkpoints.average([one, other])


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_values_that_are_not_finite_are_rejected_by_name(tmp_path, value):
    wrong = torch.tensor([1.0, float(value)])
    path = write(tmp_path / "diverged.pt", {"a": torch.ones(2), "decoder.weight": wrong})
    for use in (checkpoints.load_with_model, lambda path: checkpoints.average([path])):
        with pytest.raises(CheckpointError, match=r"diverged\.pt has NaN or infinite values in decoder\.weight;"):
            use(path)
    # a marker of fairseq's that is never initialised
    marked = write(tmp_path / "marked.pt", {"a": torch.ones(2), "x._float_tensor": wrong})
    assert checkpoints.average([marked])[0]["model"]["a"].tolist() == [1.0, 1.0]


@pytest.fixture
def folder(tmp_path):
    names = ["checkpoint9.pt", "checkpoint10.pt", "checkpoint11.pt", "checkpoint_1_50.pt", "checkpoint_1_100.pt"]
    names += ["checkpoint_2_1000.pt", "checkpoint_last.pt", "checkpoint_best.pt", "checkpoint12.pt.tmp"]
    names += ["checkpoint_3_1500.pt-old"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (("epoch", 2, 10), ["checkpoint10.pt", "checkpoint9.pt"]),
        (("update", 2), ["checkpoint_2_1000.pt", "checkpoint_1_100.pt"]),
        (("update", 2, 100), ["checkpoint_1_100.pt", "checkpoint_1_50.pt"]),
    ],
)
def test_select_takes_the_newest_within_the_bound(folder, choice, expected):
    assert [os.path.basename(path) for path in checkpoints.select_checkpoints(folder, *choice)] == expected


def test_select_says_what_it_found(folder, tmp_path):
    message = r"has 2 epoch checkpoints up to epoch 10, expected at least 3; found: checkpoint10"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.select_checkpoints(folder, "epoch", 3, 10)
    with pytest.raises(CheckpointError, match="is not a directory"):
        checkpoints.select_checkpoints(tmp_path / "checkpoint9.pt", "update", 1)

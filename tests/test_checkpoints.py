"""Checkpoints: errors for invalid files, atomic saving, and averaging compared with NumPy in float64."""

import argparse
import os
import zipfile

import numpy as np
import pytest
import torch

from collab_fairseq import checkpoints
from fairseq_modern.errors import UserError

MODEL = {"a": torch.arange(12.0), "b": torch.ones(3)}


def write(path, model, updates=1, **extra):
    state = {
        "cfg": {"model": argparse.Namespace(arch="transformer")},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"exp_avg": torch.ones(3)},
        "extra_state": {"val_loss": np.float64(3.5), "curve": np.arange(3.0), "ema": {}, "ema_fp32_params": {}},
        **extra,
    }
    torch.save(state, path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 0.9999])
def test_rejects_truncated_checkpoint_in_one_line(tmp_path, share):
    content = write(tmp_path / "complete.pt", MODEL).read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"cut\.pt was not loaded") as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"), [("absent.pt", "no checkpoint"), (".", "a folder"), ("/dev/zero", "zero")]
)
def test_rejects_paths_that_are_not_regular_files(tmp_path, path, message):
    with pytest.raises(UserError, match=message):
        checkpoints.load(tmp_path / path)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"cfg": "x"}, "cfg must be .*; got"),
        ({"cfg": {"model": "x"}}, "cfg.model must be .*; got"),
        ({"model": {}}, "must have model parameters under 'model'"),
        ({"model": {"a": "x"}}, "must have model parameters under 'model'"),
        ({"optimizer_history": "x"}, "optimizer_history must be .*; got"),
        ({"optimizer_history": [{"num_updates": "x"}]}, "num_updates must be .*; got"),
        ({"extra_state": [1]}, "extra_state must be .*; got"),
        ({"model": {"a": torch.ones(2), "b": torch.tensor([1.0, float("inf")])}}, "NaN or infinite values in b"),
    ],
    ids=str,
)
def test_rejects_checkpoints_with_invalid_parts(tmp_path, part, message):
    path = write(tmp_path / "odd.pt", **{"model": MODEL, **part})
    with pytest.raises(UserError, match=rf"odd\.pt.* {message}"):
        checkpoints.average([path])


class Call:
    """Pickled as a call of a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


UNUSUAL = {
    "expanded": (lambda: torch.zeros(1).expand(3000, 3000), "36,000,000 bytes from 4 bytes of data"),
    "windows": (lambda: torch.zeros(1000).unfold(0, 500, 1), "1,002,000 bytes from 4,000 bytes of data"),
    "overlapping": (lambda: {f"x{n}": torch.zeros(1000).data[n:] for n in range(2)}, None),
    "sparse": (lambda: torch.eye(3).to_sparse(), "a tensor of layout torch.sparse_coo"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a quantised tensor"),
    "meta": (lambda: torch.zeros(3, device="meta"), "a tensor on the device meta"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "a nested"),
    "not in the file": (lambda: Call(torch.Tensor, 10**8), "more data than the file has, 400,000,000 bytes"),
    "array": (lambda: Call(np.ndarray, (10**9,)), "more data than the file has, 8,000,000,000 bytes"),
    "tied": (lambda: dict.fromkeys(map(str, range(99)), torch.ones(1000)), None),
    "slice": (lambda: torch.arange(100.0)[3:7], None),
    "transposed": (lambda: torch.zeros(3, 4).T, None),
    "empty": (lambda: torch.zeros(1, 0).expand(5, 0), None),
    "bfloat16": (lambda: torch.ones(3, dtype=torch.bfloat16), None),
    "boolean": (lambda: torch.ones(3, dtype=torch.bool), None),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", ["model", "extra_state"])
@pytest.mark.parametrize("kind", UNUSUAL)
def test_accepts_only_dense_tensors_whose_data_are_in_the_file(tmp_path, kind, part, zipped):
    make, message = UNUSUAL[kind]
    value = make()
    state = {"model": {"a": torch.ones(2)}, "extra_state": {}}
    state[part].update(value if isinstance(value, dict) else {"x": value})
    path = tmp_path / "odd.pt"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    if message is None:
        loaded = checkpoints.average([path])[0][part]
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state[part].items())
    else:
        with pytest.raises(UserError, match=rf"odd\.pt: {part}\.x must be .* in the file, .*; got {message}"):
            checkpoints.average([path])


def test_rejects_many_views_of_the_same_data_and_compressed_files(tmp_path):
    data = torch.zeros(1000)
    path = write(tmp_path / "views.pt", {f"x{n}": data[n:] for n in range(900)})
    with pytest.raises(UserError, match=r"model\.x\d+ must be .*; got more data than the file has"):
        checkpoints.load(path)
    path = write(tmp_path / "stored.pt", {"x": data})
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small:
        for part in stored.infolist():
            small.writestr(part.filename, stored.read(part))
    assert torch.load(tmp_path / "small.pt", weights_only=False)["model"]["x"].equal(data)  # torch unpacks it
    with pytest.raises(UserError, match=r"small\.pt was not loaded: .*it is compressed"):
        checkpoints.load(tmp_path / "small.pt")


@pytest.mark.parametrize("failing", ["torch.save", "os.replace", "os.fsync"])
def test_failed_save_keeps_the_previous_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "saved.pt"
    checkpoints.save({"model": {}}, path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        if failing == "torch.save":
            args[1].write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        with pytest.raises(UserError, match=r"saved\.pt could not be written \(No space left on device\)"):
            checkpoints.save({"model": {"a": torch.ones(9)}}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["saved.pt"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_average_is_the_mean_in_float64_rounded_once(tmp_path, dtype):
    """A sum in these types would lose bits; in float16 it would overflow."""
    values = (torch.rand(7, 12, generator=torch.Generator().manual_seed(0)) * 30000).to(dtype)
    paths = [write(tmp_path / f"{n}.pt", {"a": row.clone()}, updates=n) for n, row in enumerate(values)]
    result = checkpoints.average(paths)[0]["model"]["a"]
    assert result.dtype == dtype
    assert torch.equal(result, values.double().mean(0).to(dtype))
    assert not torch.equal(result, sum(values) / 7)  # control


def test_average_keeps_shared_parameters_shared(tmp_path):
    paths = []
    for n in (1, 2, 3):
        shared = torch.full((4,), float(n))
        paths.append(write(tmp_path / f"{n}.pt", {"embed": shared, "own": shared.clone(), "output": shared}))
    model = checkpoints.average(paths)[0]["model"]
    assert model["embed"].data_ptr() == model["output"].data_ptr() != model["own"].data_ptr()
    assert torch.equal(model["embed"], torch.full((4,), 2.0))
    assert list(model) == ["embed", "own", "output"]
    base = torch.arange(6.0)  # different views of one storage are different parameters
    model = checkpoints.average([write(tmp_path / "4.pt", {"left": base[:3], "right": base[3:]})])[0]["model"]
    assert (model["left"].tolist(), model["right"].tolist()) == ([0, 1, 2], [3, 4, 5])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_average_separates_parameters_that_only_some_inputs_share(tmp_path, order):
    one, two = torch.full((2,), 3.0), torch.full((2,), 6.0)
    models = [
        {"a": one, "b": one, "c": one},
        {"a": two, "b": torch.zeros(2), "c": two},
        {"a": one, "b": one, "c": one.clone()},
    ]
    paths = [write(tmp_path / f"{n}.pt", models[n]) for n in order]
    model = checkpoints.average(paths)[0]["model"]
    assert {name: tensor.tolist() for name, tensor in model.items()} == {"a": [4, 4], "b": [2, 2], "c": [4, 4]}
    assert len({tensor.data_ptr() for tensor in model.values()}) == 3


def test_average_keeps_the_newest_state_and_records_its_inputs(tmp_path, caplog):
    models = {n: {"a": torch.tensor(float(n)), "steps": torch.tensor(n)} for n in (5, 9, 7)}
    paths = [write(tmp_path / f"{n}.pt", model, updates=n, mark=n) for n, model in models.items()]
    averaged, report = checkpoints.average(paths)
    assert averaged["model"] == {"a": 7.0, "steps": 9}
    assert averaged["model"]["steps"].dtype == torch.int64
    assert averaged["mark"] == 9
    assert averaged["last_optimizer_state"] is None
    assert float(averaged["extra_state"]["val_loss"]) == 3.5
    assert not averaged["extra_state"].keys() & {"ema", "ema_fp32_params"}
    assert averaged["extra_state"]["averaged_from"] == report
    assert report == [
        {"file": path.name, "sha256": checkpoints.sha256(path), "num_updates": n}
        for n, path in zip((5, 9, 7), paths, strict=True)
    ]
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
def test_average_rejects_different_parameters(tmp_path, sizes, message):
    one = write(tmp_path / "one.pt", {"a": torch.ones(2), "b": torch.ones(2)})
    other = write(tmp_path / "other.pt", {name: torch.ones(size) for name, size in sizes.items()})
    with pytest.raises(UserError, match=message):
        checkpoints.average([one, other])


@pytest.mark.parametrize(
    ("name", "default", "value"),
    [("mixing_lr_multiplier", 1.0, 8.0), ("attention_shapes", {}, {"cross.0": {"scale": 0.5}})],
)
def test_average_rejects_settings_that_change_the_function(tmp_path, name, default, value):
    settings = {"without": {}, "default": {name: default}, "other": {name: value}}
    without, one, other = (
        write(tmp_path / f"{file}.pt", {"a": torch.ones(2)}, cfg={"model": model}) for file, model in settings.items()
    )
    checkpoints.average([without, one])
    with pytest.raises(UserError, match=rf"{name} is .* in .*other\.pt, but .*default\.pt: they are different"):
        checkpoints.average([one, other])


def test_accepts_the_uninitialised_markers_of_fairseq(tmp_path):
    model = {"a": torch.ones(2), "x._float_tensor": torch.tensor([float("nan")])}
    averaged, _ = checkpoints.average([write(tmp_path / "marked.pt", model)])
    assert averaged["model"]["a"].tolist() == [1.0, 1.0]


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
def test_selects_the_newest_checkpoints_within_the_bound(folder, choice, expected):
    assert [os.path.basename(path) for path in checkpoints.select_checkpoints(folder, *choice)] == expected


def test_rejects_a_selection_with_too_few_checkpoints(folder):
    with pytest.raises(UserError, match=r"at least 3 epoch checkpoints up to epoch 10; got 2: checkpoint10"):
        checkpoints.select_checkpoints(folder, "epoch", 3, 10)
    with pytest.raises(UserError, match="not a folder"):
        checkpoints.select_checkpoints(folder / "checkpoint9.pt", "update", 1)


def test_number_of_parameters_counts_tied_ones_once_and_views_of_one_storage_separately(tmp_path):
    """Compared with the module. Parameters are views of one storage after training with flat parameters."""
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(5, 3), "inner": torch.nn.Linear(3, 2)})
    model["output"] = torch.nn.Linear(3, 5, bias=False)
    model["output"].weight = model["embedding"].weight
    storage, views, start = torch.randn(23), {}, 0
    for name, parameter in model.named_parameters():
        views[name] = storage[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    views["output.weight"] = views["embedding.weight"]
    for parameters in (model.state_dict(), views):
        checkpoints.save({"model": parameters}, tmp_path / "checkpoint.pt")
        state = checkpoints.load(tmp_path / "checkpoint.pt")
        assert checkpoints.num_parameters(state) == start == 23

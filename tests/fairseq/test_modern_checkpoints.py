"""Checkpoints: fairseq's own can be loaded; hostile and damaged ones raise an error."""

import io
import os
import pickle
import traceback
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from collab_fairseq import checkpoints
from fairseq_modern.errors import CheckpointError
from tests.fairseq import forked


class Touch:
    """Creates a file when it is unpickled, as a hostile checkpoint could run any command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("place", ["model", "extra_state"])
def test_loading_never_runs_code(tmp_path, monkeypatch, place, archive):
    file, trace = tmp_path / "hostile.pt", tmp_path / "executed"
    content = {"args": None, "model": {}, "extra_state": {}, place: Touch(trace)}
    torch.save(content, file, _use_new_zipfile_serialization=archive)
    torch.load(file, weights_only=False)
    assert trace.exists(), "the file is not hostile"
    trace.unlink()
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for load in (checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_ema_from_checkpoint, checkpoints.load):
        with pytest.raises(CheckpointError, match=r"hostile.pt was not loaded: .* a call of \w+.system") as caught:
            load(str(file))
        # torch's advice to load unsafely is not repeated
        assert "weights_only" not in "".join(traceback.format_exception(caught.value))
    assert not trace.exists()


@pytest.mark.parametrize("has_checksums", [True, False])
def test_detects_a_flipped_bit_if_the_file_has_checksums(tmp_path, has_checksums):
    path = tmp_path / "flipped.pt"
    torch.serialization.set_crc32_options(has_checksums)
    try:
        torch.save({"model": {"weight": torch.full((1000,), 7.0)}}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    load = checkpoint_utils.torch.load
    assert load(path)["model"]["weight"][0] == 7
    forked.flip_a_bit(path)
    if not has_checksums:
        assert load(path)["model"]["weight"][0] != 7
        return
    with open(path, "rb") as file:
        for source in (path, str(path), file):
            with pytest.raises(CheckpointError, match=r"flipped.pt was not loaded: .* does not match its checksum"):
                load(source)


@pytest.mark.parametrize("expression", ["${oc.env:SECRET}", "a${oc.env:SECRET}", "${model.${oc.env:SECRET}}", "${no}"])
@pytest.mark.parametrize("place", ["cfg", "args", "list", "namespace"])
def test_expressions_in_settings_are_never_evaluated(tmp_path, monkeypatch, expression, place):
    """fairseq reads settings through OmegaConf, which would insert the value of the variable."""
    monkeypatch.setenv("SECRET", "value-of-the-variable")
    state = {"args": None, "cfg": {"model": {"_name": "transformer"}, "dataset": {}}, "model": {}}
    if place == "args":
        state.update(cfg=None, args=Namespace(arch="transformer", data=expression))
    elif place == "namespace":
        state["cfg"]["model"] = Namespace(arch="transformer", data=expression)
    else:
        state["cfg"]["dataset"]["data"] = [expression] if place == "list" else expression
    torch.save(state, tmp_path / "hostile.pt")
    for load in (checkpoint_utils.load_checkpoint_to_cpu, checkpoints.load):
        with pytest.raises(CheckpointError, match=r"hostile\.pt: .*data must be a value or .* got '") as caught:
            load(str(tmp_path / "hostile.pt"))
        assert "value-of" not in "".join(traceback.format_exception(caught.value))


def test_references_between_settings_become_values(tmp_path):
    """Checkpoints that `collab export` wrote contain them."""
    dataset = {"max_tokens": 100, "max_tokens_valid": "${dataset.max_tokens}", "again": "${dataset.max_tokens_valid}"}
    torch.save({"cfg": {"dataset": dataset}, "model": {}}, tmp_path / "model.pt")
    assert checkpoints.load(tmp_path / "model.pt")["cfg"]["dataset"] == dict.fromkeys(dataset, 100)


ENDLESS = {}
ENDLESS["same"] = ENDLESS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "must be a dictionary; got a list"),
        ({"cfg": {"one": "${other}", "other": "${one}"}}, "nested at most 20 deep"),
        ({"cfg": ENDLESS}, "nested at most 20 deep"),
    ],
)
def test_rejects_lists_and_circular_settings(tmp_path, content, message):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(CheckpointError, match=rf"odd\.pt: .* {message}"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "odd.pt"))


def test_allowed_classes_are_allowed_only_while_a_checkpoint_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch._weights_only_unpickler, "_marked_safe_globals_set", {Path})
    torch.save({"settings": Namespace(width=8)}, tmp_path / "settings.pt")
    assert checkpoint_utils.torch.load(tmp_path / "settings.pt")["settings"].width == 8
    assert torch.serialization.get_safe_globals() == [Path]
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "settings.pt", weights_only=True)
    torch.serialization.add_safe_globals([Namespace])  # a decision of another program stays
    checkpoint_utils.torch.load(tmp_path / "settings.pt")
    assert Namespace in torch.serialization.get_safe_globals()


def test_numpy_values_load_under_the_names_of_numpy_1_and_2():
    dtypes = ("f8", "f4", "f2", "i8", "i4", "u1", "?", "c16", "U3")
    arrays = {dtype: np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes}
    content, buffer = {"arrays": arrays, "scalar": np.float64(0.5), "n": np.int64(3)}, io.BytesIO()
    torch.save({"model": {}, **content}, buffer, _use_new_zipfile_serialization=False)
    new = buffer.getvalue()
    old = new.replace(b"cnumpy._core.", b"cnumpy.core.")
    assert new != old or np.__version__ < "2"
    for data in (new, old):
        state = checkpoint_utils.torch.load(io.BytesIO(data))
        for dtype, array in arrays.items():
            assert state["arrays"][dtype].dtype == array.dtype
            np.testing.assert_array_equal(state["arrays"][dtype], array)
        assert (state["scalar"], state["n"]) == (0.5, 3)

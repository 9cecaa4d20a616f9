"""Checkpoints: fairseq's own load, hostile and damaged ones do not, and writing is atomic."""

import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import traceback
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from collab_fairseq import checkpoints
from fairseq_modern import files as modern_files
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


@pytest.mark.parametrize(
    "content", ["text", "PK\x03\x04", [1, 2], {"model": CheckpointError}], ids=["text", "cut", "list", "class"]
)
def test_rejects_other_files(content, tmp_path):
    file = tmp_path / "broken.pt"
    file.write_text(content) if isinstance(content, str) else torch.save(content, file)
    with pytest.raises(CheckpointError, match=r"broken.pt.* must .*; got a \w+") as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(file))
    assert "miniz" not in str(caught.value)


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
    history = [{"num_updates": 1, "optimizer_name": "adam", "lr_scheduler_state": {}}]  # required by fairseq
    state = {"optimizer_history": history, "last_optimizer_state": None, "extra_state": {"epoch": 1, "batch_offset": 0}}
    torch.save({**state, "cfg": {"dataset": dataset}, "args": None, "model": {}}, tmp_path / "model.pt")
    expected = {"max_tokens": 100, "max_tokens_valid": 100, "again": 100}
    assert checkpoints.load(tmp_path / "model.pt")["cfg"]["dataset"] == expected
    assert dict(checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "model.pt"))["cfg"].dataset) == expected


def test_rejects_circular_settings(tmp_path):
    nested = {}
    nested["same"] = nested
    for cfg in ({"one": "${other}", "other": "${one}"}, {"nested": nested}):
        torch.save({"cfg": cfg, "model": {}}, tmp_path / "circle.pt")
        with pytest.raises(CheckpointError, match=r"circle\.pt: .* nested at most 20 deep"):
            checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "circle.pt"))


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


def with_numpy_1_names(data):
    """Return the bytes of a checkpoint as NumPy 1 would have written it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith("data.pkl"):
                content = content.replace(b"cnumpy._core.", b"cnumpy.core.")
            new.writestr(info.filename, content)
    return out.getvalue()


def test_numpy_values_load_under_the_names_of_numpy_1_and_2(tmp_path):
    dtypes = ("f8", "f4", "f2", "i8", "i4", "u1", "?", "c16", "U3")
    arrays = {dtype: np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes}
    buffer = io.BytesIO()
    torch.save({"model": {}, "arrays": arrays, "scalar": np.float64(0.5), "n": np.int64(3)}, buffer)
    new, old = buffer.getvalue(), with_numpy_1_names(buffer.getvalue())
    assert new != old or np.__version__ < "2"
    for data in (new, old):
        state = checkpoint_utils.torch.load(io.BytesIO(data))
        for dtype, array in arrays.items():
            assert state["arrays"][dtype].dtype == array.dtype
            np.testing.assert_array_equal(state["arrays"][dtype], array)
        assert (state["scalar"], state["n"]) == (0.5, 3)


# --- writing -------------------------------------------------------------------------------------------------------


def names_in(directory: Path):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch, size):
    target = tmp_path / "checkpoint_last.pt"
    target.write_bytes(b"old")

    class Full(modern_files._File):
        def __init__(self, name, mode):
            Path(name).touch()
            super().__init__("/dev/full", "w")

    monkeypatch.setattr(modern_files, "_File", Full)
    with pytest.raises(CheckpointError, match=r"checkpoint_last.pt could not be written \(No space left on device\)"):
        checkpoint_utils.torch_persistent_save({"model": torch.zeros(size)}, str(target))
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["checkpoint_last.pt"]


def test_concurrent_writers_are_independent_and_follow_no_link(tmp_path):
    (victim := tmp_path / "victim").write_bytes(b"precious")
    (target := tmp_path / "checkpoint_last.pt").symlink_to(victim)
    (tmp_path / "checkpoint_last.pt.tmp").symlink_to(victim)
    umask = os.umask(0o027)
    try:
        with modern_files.atomic_write(str(target)) as one:
            one.write(b"one, the ")
            with modern_files.atomic_write(str(target)) as other:
                other.write(b"other")
            assert target.read_bytes() == b"other"
            one.write(b"slower")
    finally:
        os.umask(umask)
    assert (target.read_bytes(), victim.read_bytes()) == (b"one, the slower", b"precious")
    assert stat.filemode(target.lstat().st_mode) == "-rw-r-----"
    assert names_in(tmp_path) == ["checkpoint_last.pt", "checkpoint_last.pt.tmp", "victim"]


KILLED = """
import os, signal, sys
from fairseq import checkpoint_utils, file_io
manager = getattr({module}, "PathManager")
def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
{when}
manager.copy(sys.argv[1], sys.argv[2], overwrite=True)
"""


@pytest.mark.parametrize(
    ("module", "when", "expected"),
    [
        ("checkpoint_utils", "os.fsync = kill", b"old"),
        ("checkpoint_utils", "os.replace = kill", b"old"),
        # unpatched: the process is killed while the target is open, and the old file is lost
        ("file_io", "import shutil; shutil._fastcopy_sendfile = shutil.copyfileobj = kill", b""),
    ],
)
def test_a_kill_while_copying_leaves_the_old_file(tmp_path, module, when, expected):
    source, target = tmp_path / "new.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new" * 1000)
    target.write_bytes(b"old")
    code = KILLED.format(module=module, when=when)
    done = subprocess.run([sys.executable, "-c", code, str(source), str(target)], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert target.read_bytes() == expected

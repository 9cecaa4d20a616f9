"""Checkpoints: safe loading, atomic writing and copying, temporary files of killed writes."""

import io
import os
import pickle
import stat
import traceback
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, file_io, models, options
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from collab_fairseq import checkpoints
from fairseq_modern import fault_tolerance, wrappers
from fairseq_modern.errors import UserError
from fairseq_modern.files import atomic_write, remove_stale_temp_files
from tests.common import TINY_MODEL, TINY_TRAINING
from tests.forked import check_killed, flip_a_bit, kill, training_config
from tests.models.cases import Task


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
        with pytest.raises(UserError, match=r"hostile.pt was not loaded: .* a call of \w+.system") as caught:
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
    flip_a_bit(path)
    if not has_checksums:
        assert load(path)["model"]["weight"][0] != 7
        return
    with open(path, "rb") as file:
        for source in (path, str(path), file):
            with pytest.raises(UserError, match=r"flipped.pt was not loaded: .* does not match its checksum"):
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
        with pytest.raises(UserError, match=r"hostile\.pt: .*data must be a value or .* got '") as caught:
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
    with pytest.raises(UserError, match=rf"odd\.pt: .* {message}"):
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


class Symbols(Dictionary):
    pass


def test_dictionaries_in_the_state_of_a_task_are_loaded(tmp_path):
    """As in checkpoints of audio_finetuning and hubert_pretraining."""
    dictionary = Dictionary()
    dictionary.add_symbol("word", n=3)
    hostile = Dictionary()
    hostile.count = Touch(tmp_path / "executed")
    symbols = Symbols()
    for name, value in {"good": dictionary, "hostile": hostile, "unknown": symbols}.items():
        torch.save({"model": {}, "task_state": {"dictionaries": [value]}}, tmp_path / f"{name}.pt")
    (read,) = checkpoint_utils.torch.load(tmp_path / "good.pt")["task_state"]["dictionaries"]
    assert type(read) is Dictionary
    assert vars(read) == vars(dictionary)
    for name, message in {"hostile": r"system", "unknown": "Symbols"}.items():
        with pytest.raises(UserError, match=rf"{name}.pt was not loaded: .* a call of \S*{message}"):
            checkpoint_utils.torch.load(tmp_path / f"{name}.pt")
    assert not (tmp_path / "executed").exists()


def tiny_trainer(parameters):
    """fairseq's trainer of the tiny model on a CPU, whose parameters it adds to a list of names."""
    words = ["DATA", *TINY_MODEL, *TINY_TRAINING]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    dictionary = Task().target_dictionary
    task = TranslationTask(cfg.task, dictionary, dictionary)
    model = models.build_model(cfg.model, task)
    parameters += [name for name, _ in model.named_parameters()]
    return Trainer(cfg, task, model, build_criterion(cfg.criterion, task))


def test_the_optimizer_state_of_unpatched_fairseq_is_an_error_that_advises_a_reset(tmp_path, monkeypatch):
    path, layer = str(tmp_path / "unpatched.pt"), TransformerEncoderLayerBase
    saved, built = [], []
    with monkeypatch.context() as unpatched:
        unpatched.setattr(layer, "__init__", layer.__init__.__wrapped__)
        trainer = tiny_trainer(saved)
    trainer.consolidate_optimizer()
    position = {"epoch": 1, "iterations_in_epoch": 0, "version": 2}
    trainer.save_checkpoint(path, {"train_iterator": position, "val_loss": None})

    trainer = tiny_trainer(built)
    assert len(saved) == len(built) + 8
    with pytest.raises(UserError, match=r"written by fairseq without fairseq_modern: .* give --reset-optimizer"):
        trainer.load_checkpoint(path)
    assert trainer.load_checkpoint(path, reset_optimizer=True)["train_iterator"] == position
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(path, {"train_iterator": position, "val_loss": None})
    assert trainer.load_checkpoint(path)["train_iterator"] == position  # the control
    # with --ddp-backend fully_sharded, state_dict() would wait for the other processes
    monkeypatch.setattr(trainer, "get_model", lambda: SimpleNamespace(state_dict=pytest.fail))
    assert trainer.load_checkpoint(path)["train_iterator"] == position


# --- writing -------------------------------------------------------------------------------------------------------


def test_concurrent_writers_are_independent_and_follow_no_link(tmp_path):
    (victim := tmp_path / "victim").write_bytes(b"precious")
    (target := tmp_path / "checkpoint_last.pt").symlink_to(victim)
    (tmp_path / "checkpoint_last.pt.tmp").symlink_to(victim)
    umask = os.umask(0o027)
    try:
        with atomic_write(str(target)) as one:
            one.write(b"one, the ")
            with atomic_write(str(target)) as other:
                other.write(b"other")
            assert target.read_bytes() == b"other"
            one.write(b"slower")
    finally:
        os.umask(umask)
    assert (target.read_bytes(), victim.read_bytes()) == (b"one, the slower", b"precious")
    assert stat.filemode(target.lstat().st_mode) == "-rw-r-----"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint_last.pt", "checkpoint_last.pt.tmp", "victim"]


@pytest.mark.parametrize(
    ("manager", "killed_in", "expected"),
    [
        (checkpoint_utils.PathManager, ["os.fsync"], b"old"),
        (checkpoint_utils.PathManager, ["os.replace"], b"old"),
        # unpatched: the process is killed while the target is open, and the old file is lost
        (file_io.PathManager, ["shutil._fastcopy_sendfile", "shutil.copyfileobj"], b""),
    ],
)
def test_a_kill_while_copying_leaves_the_old_file(tmp_path, monkeypatch, manager, killed_in, expected):
    source, target = tmp_path / "new.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new" * 1000)
    target.write_bytes(b"old")

    def copy():
        for function in killed_in:
            monkeypatch.setattr(function, kill)
        manager.copy(str(source), str(target), overwrite=True)

    check_killed(copy)
    assert target.read_bytes() == expected


class SavingTrainer:
    """Writes small files."""

    data_parallel_rank, updates = 0, 0
    should_save_checkpoint_on_current_rank = True

    def __init__(self, suffix):
        self.checkpoint_suffix = suffix

    def consolidate_optimizer(self):
        pass

    def get_num_updates(self):
        return self.updates

    def save_checkpoint(self, path, extra_state):
        Path(path).write_text(str(extra_state["val_loss"]))


@pytest.mark.parametrize(
    ("scores", "maximize", "best"),
    [
        ([6, 4, 5], True, [6, 5, 4]),
        ([2, 6, 4, 1, 5], True, [6, 5, 4]),
        ([3, 4, 5, 3.5, 9], False, [3, 3.5, 4]),
        ([-1, -3, -2, 0.5, -4], False, [-4, -3, -2]),
        ([-1, -3, -2, 0.5, -4], True, [0.5, -1, -2]),
    ],
)
@pytest.mark.parametrize("suffix", ["", "-part"])
def test_the_best_n_checkpoints_are_kept(tmp_path, monkeypatch, scores, maximize, best, suffix):
    monkeypatch.setattr(checkpoint_utils.save_checkpoint, "best", None, raising=False)
    del checkpoint_utils.save_checkpoint.best
    cfg, trainer = training_config(tmp_path).checkpoint, SavingTrainer(suffix)
    cfg.update(keep_best_checkpoints=3, maximize_best_checkpoint_metric=maximize, save_interval=100)
    for epoch, score in enumerate(map(float, scores), start=1):
        position = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: True, state_dict=dict)
        checkpoint_utils.save_checkpoint(cfg, trainer, position, score)
    kept = [float(path.read_text()) for path in tmp_path.glob(f"checkpoint.best_loss_*{suffix}.pt")]
    assert sorted(kept, reverse=maximize) == best
    assert float((tmp_path / f"checkpoint_best{suffix}.pt").read_text()) == best[0]
    assert not list(tmp_path.glob("*inf*"))


def test_removes_temp_files_of_killed_writes_and_nothing_else(tmp_path):
    path, other = tmp_path / "averaged.pt", tmp_path / f"other.pt.{16 * 'a'}.tmp"
    for name in ("thesis.tmp", "averaged.pt.tmp", f"averaged.pt.{15 * 'a'}.tmp"):
        (tmp_path / name).write_bytes(b"x")
    kept = sorted(tmp_path.iterdir())
    other.mkdir()  # left by an export
    (other / "weights").write_bytes(b"x")

    def write():
        with atomic_write(str(path)):
            kill()

    check_killed(write)
    assert len(list(tmp_path.iterdir())) == len(kept) + 2
    with atomic_write(str(path)) as new:
        new.write(b"new")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, path, other])
    with atomic_write(str(path)) as new:
        new.write(b"newer")
        assert remove_stale_temp_files(str(tmp_path)) == [other.name]
    assert sorted(tmp_path.iterdir()) == sorted([*kept, path])
    assert path.read_bytes() == b"newer"


def test_patches_adapt_a_checkpoint_in_order(monkeypatch):
    """The control is the function of fairseq's module, which stays."""
    utils = SimpleNamespace(__name__="utils", load_checkpoint_to_cpu=lambda path: [path])
    methods = dict.fromkeys(("__init__", "save_checkpoint", "train_step"), lambda *_: None)
    methods["load_checkpoint"] = lambda self, path, *_: module.checkpoint_utils.load_checkpoint_to_cpu(path)
    module = SimpleNamespace(checkpoint_utils=utils, Trainer=type("Trainer", (), methods))
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: False)
    monkeypatch.setattr(wrappers.plugins, "check_training", lambda trainer: None)
    for place, name in (
        (wrappers.plugins, "adapt_checkpoint"),
        (wrappers.store_ema, "add_average"),
        (wrappers.unpatched_checkpoints, "check"),
        (wrappers.position, "adapt_checkpoint"),
        (wrappers.store_ema, "restore_counter"),
    ):
        monkeypatch.setattr(place, name, lambda _, state=None, *rest, name=name: state and state.append(name))
    wrappers.patch_trainer(module)
    steps = ["adapt_checkpoint", "add_average", "check", "adapt_checkpoint", "restore_counter"]
    assert module.Trainer(None).load_checkpoint("file") == ["file", *steps]
    assert module.checkpoint_utils is utils
    assert utils.load_checkpoint_to_cpu("file") == ["file"]

"""The start-up hook: imports, patches, switches and installation. These tests do not need fairseq."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import types
import warnings
from importlib.machinery import SourceFileLoader
from zipfile import ZipFile

import pytest

import fairseq_modern
from fairseq_modern import fault_tolerance
from tests.common import ROOT

HOOK = ROOT / "fairseq_modern" / "fairseq_modern.pth"


WITHOUT_FAIRSEQ = """
import os, sys
before = set(sys.modules)
import fairseq_modern
print(sorted(set(sys.modules) - before))
fairseq_modern.install()
print(sys.meta_path.count(fairseq_modern.Finder))
for name in ("fairseq.utils", "surely_absent"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
import json.tool
print(type(json.__spec__.loader).__name__, sys.excepthook is sys.__excepthook__)
"""


def test_without_fairseq_the_hook_changes_nothing():
    """In a Python without site-packages: no torch, no fairseq, and no `.pth` file."""
    command = [sys.executable, "-S", "-c", WITHOUT_FAIRSEQ]
    output = subprocess.check_output(command, cwd=ROOT, env={}, text=True, timeout=60)
    missing = [f"No module named '{name}'" for name in ("fairseq", "surely_absent")]
    assert output.splitlines() == ["['fairseq_modern']", "1", *missing, "SourceFileLoader True"]


def test_the_hook_is_silent_without_the_project(tmp_path):
    """As after its folder has been moved. `python -S` as above."""
    program = f"{HOOK.read_text()}import sys; print('fairseq_modern' in sys.modules)"
    for cwd, imported in ((tmp_path, "False\n"), (ROOT, "True\n")):
        done = subprocess.run([sys.executable, "-S", "-c", program], cwd=cwd, env={}, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (imported, "")


@pytest.fixture(autouse=True)
def no_previous_warnings(monkeypatch):
    monkeypatch.setattr(fairseq_modern, "_warned", set())


def other_finders():
    return [finder for finder in sys.meta_path if finder is not fairseq_modern.Finder]


def test_warns_if_fairseq_is_already_imported(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", other_finders())
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    with pytest.warns(UserWarning, match="imported after fairseq"):
        fairseq_modern.install()


@pytest.fixture
def calls(monkeypatch):
    """Patches of a module `to_be_patched` that record their calls in `seen`."""
    calls = types.ModuleType("fairseq_modern.calls")
    calls.seen = []
    calls.before = lambda module: (calls.seen.append("before"), setattr(module, "seen", calls.seen))
    calls.after = lambda module: calls.seen.append("after")
    monkeypatch.setitem(sys.modules, "fairseq_modern.calls", calls)
    monkeypatch.setitem(fairseq_modern.BEFORE, "to_be_patched", ("calls.before",))
    monkeypatch.setitem(fairseq_modern.AFTER, "to_be_patched", ("calls.after",))
    monkeypatch.setattr(sys, "meta_path", [fairseq_modern.Finder, *other_finders()])
    yield calls
    sys.modules.pop("to_be_patched", None)


def test_patched_module_keeps_the_class_of_its_loader(tmp_path, monkeypatch, calls):
    (tmp_path / "to_be_patched.py").write_text("seen.append('module')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    import to_be_patched

    assert calls.seen == ["before", "module", "after"]
    assert type(to_be_patched.__spec__.loader) is SourceFileLoader
    assert inspect.getsource(to_be_patched) == "seen.append('module')\n"


def test_other_modules_of_a_zip_file_are_not_patched(tmp_path, monkeypatch, calls):
    with ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("to_be_patched.py", "seen.append('module')\n")
        archive.writestr("its_neighbour.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    import its_neighbour
    import to_be_patched  # noqa: F401

    importlib.reload(its_neighbour)  # with the loader that both share
    del sys.modules["its_neighbour"]
    assert calls.seen == ["before", "module", "after"]


def call(*names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fairseq_modern._call(names, types.SimpleNamespace(seen=None))
    return [str(warning.message) for warning in caught]


def test_patch_without_target_is_skipped_with_one_warning(calls):
    """In an older fairseq without TransformerEncoderLayerBase, or a fork."""
    calls.lost = lambda module: module.TransformerEncoderLayerBase
    (message,) = call("calls.lost", "calls.lost", "calls.after")
    assert "no attribute 'TransformerEncoderLayerBase'" in message
    assert calls.seen == ["after"]


def test_skips_patches_by_name(calls, monkeypatch):
    others = types.ModuleType("fairseq_modern.others")
    others.patch = lambda module: calls.seen.append("others")
    monkeypatch.setitem(sys.modules, "fairseq_modern.others", others)
    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "amp, calls")
    assert call("calls.after", "others.patch") == []
    assert calls.seen == ["others"]
    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "amp,encoder_lair,stopping")
    (message,) = call("calls.after", "others.patch")
    assert "encoder_lair" in message
    assert calls.seen == ["others", "after", "others"]


@pytest.mark.parametrize(
    ("setting", "enabled", "on"),
    [(None, False, False), (None, True, True), ("1", False, True), ("0", True, False), ("", True, True)],
)
def test_fault_tolerance_is_off_by_default(setting, enabled, on, monkeypatch):
    monkeypatch.setattr(fault_tolerance, "_enabled", False)
    monkeypatch.delenv("FAIRSEQ_MODERN_FAULT_TOLERANCE", raising=False)
    if setting is not None:
        monkeypatch.setenv("FAIRSEQ_MODERN_FAULT_TOLERANCE", setting)
    if enabled:
        fault_tolerance.enable()
    assert fault_tolerance.is_on() is on


@pytest.mark.parametrize("build", ["build_wheel", "build_editable"])
def test_wheels_install_and_list_the_hook(tmp_path, build):
    pytest.importorskip("setuptools", "68")
    if importlib.util.find_spec("setuptools.command.bdist_wheel") is None:
        pytest.importorskip("wheel")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("collab_fairseq", "fairseq_modern"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    stale = source / "build" / "lib" / "collab_fairseq" / "deleted.py"  # from the build of an older checkout
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    code = f"from setuptools import build_meta; build_meta.{build}({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        assert names.count(HOOK.name) == 1
        assert archive.read(HOOK.name) == HOOK.read_bytes()
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        entries = archive.read(record).decode().splitlines()
        assert sum(entry.startswith(f"{HOOK.name},sha256=") for entry in entries) == 1
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    relative = r"\]\((?!https://)"
    assert re.search(relative, (ROOT / "README.md").read_text(encoding="utf-8"))  # control
    assert not re.search(relative, metadata)
    assert "## Contents of this package" in metadata
    assert "collab_fairseq/deleted.py" not in names
    assert not any(name.startswith(("tests/", "recipes/", "data_prep/")) for name in names)

"""The start-up hook: cheap, out of the way, and installed and removed with the package. None of this needs fairseq."""

import importlib.util
import inspect
import shutil
import subprocess
import sys
import textwrap
import types
import warnings
from importlib.machinery import SourceFileLoader
from zipfile import ZipFile

import pytest

import fairseq_modern
from fairseq_modern import fault_tolerance
from tests.common import ROOT

HOOK = ROOT / "fairseq_modern" / "fairseq_modern.pth"


def bare_python(code: str, **env: str) -> str:
    """What a Python without site-packages, and so without torch, fairseq and the hook's `.pth`, prints for the code."""
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_imports_nothing_but_itself_and_changes_nothing_where_fairseq_is_absent():
    found = bare_python(
        """
        before = set(sys.modules)
        import fairseq_modern
        print(sorted(set(sys.modules) - before))
        for name in ("fairseq.utils", "surely_absent"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                print(error)
        import json.tool  # an ordinary package is found by its ordinary finder
        print(type(json.__spec__.loader).__name__, sys.excepthook is sys.__excepthook__)
        """
    )
    missing = [f"No module named '{name}'" for name in ("fairseq", "surely_absent")]
    assert found.splitlines() == ["['fairseq_modern']", *missing, "SourceFileLoader True"]


@pytest.mark.parametrize(("setting", "finders"), [("0", 0), ("1", 1)])
def test_is_installed_once_and_can_be_switched_off(setting, finders):
    code = """
        import fairseq_modern
        fairseq_modern.install()
        print(sys.meta_path.count(fairseq_modern.Finder))
        """
    assert bare_python(code, FAIRSEQ_MODERN=setting) == str(finders)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(fairseq_modern, "_warned", set())


def test_warns_if_it_comes_after_fairseq(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if f is not fairseq_modern.Finder])
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    with pytest.warns(UserWarning, match="imported after fairseq"):
        fairseq_modern.install()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fairseq_modern.install()


@pytest.fixture
def calls(monkeypatch):
    """Patches of a module `to_be_patched` that note when they are called, in `seen`."""
    calls = types.ModuleType("fairseq_modern.calls")
    calls.seen = []
    calls.before = lambda module: (calls.seen.append("before"), setattr(module, "seen", calls.seen))
    calls.after = lambda module: calls.seen.append("after")
    monkeypatch.setitem(sys.modules, "fairseq_modern.calls", calls)
    monkeypatch.setitem(fairseq_modern.BEFORE, "to_be_patched", ("calls.before",))
    monkeypatch.setitem(fairseq_modern.AFTER, "to_be_patched", ("calls.after",))
    monkeypatch.setattr(
        sys, "meta_path", [fairseq_modern.Finder, *(f for f in sys.meta_path if f is not fairseq_modern.Finder)]
    )
    yield calls
    sys.modules.pop("to_be_patched", None)


def test_patches_a_module_and_leaves_its_loader_genuine(tmp_path, monkeypatch, calls):
    (tmp_path / "to_be_patched.py").write_text("seen.append('module')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    import to_be_patched

    assert calls.seen == ["before", "module", "after"]
    assert type(to_be_patched.__spec__.loader) is SourceFileLoader
    assert inspect.getsource(to_be_patched) == "seen.append('module')\n"


def test_the_other_modules_of_a_zip_file_are_left_alone(tmp_path, monkeypatch, calls):
    with ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("to_be_patched.py", "seen.append('module')\n")
        archive.writestr("its_neighbour.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    import its_neighbour
    import to_be_patched  # noqa: F401

    importlib.reload(its_neighbour)  # by the loader that both share
    monkeypatch.delitem(sys.modules, "its_neighbour")
    assert calls.seen == ["before", "module", "after"]


def call(*names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fairseq_modern._call(names, types.SimpleNamespace(seen=None))
    return [str(warning.message) for warning in caught]


def test_a_patch_whose_target_is_missing_is_left_out_with_one_warning(calls):
    """As in an older fairseq, which has no TransformerEncoderLayerBase, or a fork."""
    calls.lost = lambda module: module.TransformerEncoderLayerBase
    (message,) = call("calls.lost", "calls.lost", "calls.after")
    assert "left out the patch calls" in message
    assert "no attribute 'TransformerEncoderLayerBase'" in message
    assert calls.seen == ["after"]


def test_single_patches_can_be_skipped_by_name(calls, monkeypatch):
    others = types.ModuleType("fairseq_modern.others")
    others.patch = lambda module: calls.seen.append("others")
    monkeypatch.setitem(sys.modules, "fairseq_modern.others", others)
    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "amp, calls")
    assert call("calls.after", "others.patch") == []
    assert calls.seen == ["others"]
    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "amp,encoder_lair,stopping")
    (message,) = call("calls.after", "others.patch")
    assert "has no patch encoder_lair, " in message
    assert " encoder_layer, " in message
    assert calls.seen == ["others", "after", "others"]


@pytest.mark.parametrize(
    ("setting", "enabled", "on"),
    [(None, False, False), (None, True, True), ("1", False, True), ("0", True, False), ("", True, True)],
)
def test_fault_tolerance_is_off_unless_it_is_asked_for(setting, enabled, on, monkeypatch):
    monkeypatch.setattr(fault_tolerance, "_enabled", False)
    if setting is None:
        monkeypatch.delenv("FAIRSEQ_MODERN_SURVIVAL", raising=False)
    else:
        monkeypatch.setenv("FAIRSEQ_MODERN_SURVIVAL", setting)
    if enabled:
        fault_tolerance.enable()
    assert fault_tolerance.is_on() is on


def test_both_kinds_of_wheel_install_and_list_the_hook(tmp_path):
    pytest.importorskip("setuptools", "68")
    if importlib.util.find_spec("setuptools.command.bdist_wheel") is None:
        pytest.importorskip("wheel")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("collab_fairseq", "fairseq_modern"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    left_over = source / "build" / "lib" / "collab_fairseq" / "deleted.py"  # by an older checkout's build
    left_over.parent.mkdir(parents=True)
    left_over.write_text("")
    kinds = {"build_wheel": tmp_path / "plain", "build_editable": tmp_path / "editable"}
    for build, target in kinds.items():
        code = f"from setuptools import build_meta; build_meta.{build}({str(target)!r})"
        done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    for kind in kinds.values():
        (wheel,) = kind.glob("*.whl")
        with ZipFile(wheel) as archive:
            names = archive.namelist()
            assert names.count(HOOK.name) == 1
            assert archive.read(HOOK.name) == HOOK.read_bytes()
            (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
            listed = archive.read(record).decode().splitlines()
        assert sum(line.startswith(HOOK.name + ",sha256=") for line in listed) == 1
        assert "collab_fairseq/deleted.py" not in names
        # no stray package lands beside: neither tests nor recipes are installed
        assert not any(name.startswith(("tests/", "recipes/", "data_prep/")) for name in names)

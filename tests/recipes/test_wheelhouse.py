"""`make wheelhouse`: the Python it finds, what it asks pip for, what it refuses. Building itself takes a network."""

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common import ROOT

SCRIPT = ROOT / "recipes" / "lib" / "wheelhouse.py"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"

spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
wheelhouse = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheelhouse)


def script(*arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def fake_python(path: Path, version, headers=True, platform="linux-x86_64"):
    """A program that answers what the script asks a Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = f'[{list(version)}, "{platform}", {str(headers).lower()}]'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_what_it_would_collect():
    names = [wheelhouse.distribution(r) for r in wheelhouse.requirements(ROOT, torch=False, plots=False, tests=False)]
    assert {"hydra-core", "omegaconf", "numpy", "sacrebleu", "sacremoses", "sentencepiece", "bitarray"} <= set(names)
    assert not {"torch", "matplotlib", "pytest"} & set(names)
    for flag, more in (("torch", {"torch"}), ("plots", {"matplotlib"}), ("tests", {"pytest", "pytest-xdist"})):
        flags = {"torch": False, "plots": False, "tests": False, flag: True}
        assert more <= {wheelhouse.distribution(r) for r in wheelhouse.requirements(ROOT, **flags)} - set(names)
    assert wheelhouse.fairseq_requirement(ROOT) == "fairseq==0.12.2"


def test_setup_is_read_as_it_is_run(monkeypatch):
    """setup.py run with a setup() that keeps its arguments, against the reading of its text."""
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__name__": "__main__"})
    read = wheelhouse.read_setup(ROOT)
    for name in ("install_requires", "extras_require", "python_requires", "version"):
        assert read[name] == given[name]


def test_dry_run_prints_the_list_and_makes_nothing(tmp_path):
    python = fake_python(tmp_path / "bin" / "python3.12", (3, 12, 1))
    done = script("--python", python, "--dry-run", "--output", tmp_path / "w", "--plots")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["Python 3.12 on linux-x86_64", "fairseq==0.12.2", "collab_fairseq"]
    assert "matplotlib" in lines
    assert not [line for line in lines if line.startswith("torch")]
    (install,) = [line for line in lines if line.startswith("    python")]
    assert install == (
        "    python3.12 -m venv --system-site-packages v && v/bin/pip install --no-index --no-deps w/*.whl"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]
    with_torch = script("--python", python, "--dry-run", "--torch").stdout
    assert "\ntorch>=2.6\n" in with_torch
    assert "--system-site-packages" not in with_torch


def test_a_version_is_looked_for_on_path_and_in_pyenv(tmp_path):
    broken = tmp_path / "shims" / "python3.12"  # as pyenv's, where that version is not switched on
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    for version in ((3, 12, 2), (3, 12, 10), (3, 11, 7)):
        name = ".".join(map(str, version))
        fake_python(tmp_path / "pyenv" / "versions" / name / "bin" / f"python3.{version[1]}", version)
    find = {"PATH": f"{broken.parent}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path / "pyenv")}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in find.items():
            patch.setenv(key, value)
        patch.setenv("PATH", str(broken.parent))
        found = wheelhouse.find_python("3.12", ROOT)
        assert found.program.endswith("versions/3.12.10/bin/python3.12")
        assert found.version == "3.12"
        assert "3.12.2" in wheelhouse.find_python("3.12.2", ROOT).program
        with pytest.raises(wheelhouse.WheelhouseError, match=r"found no Python for PYTHON=3\.13;"):
            wheelhouse.find_python("3.13", ROOT)
        patch.setenv("PATH", str(fake_python(tmp_path / "first" / "python3.12", (3, 12, 0)).parent))
        assert "first" in wheelhouse.find_python("3.12", ROOT).program


@pytest.mark.parametrize(
    ("version", "headers", "message"),
    [
        ((3, 9, 18), True, "is Python 3.9.18, expected >=3.10,<3.14 (setup.py)"),
        ((3, 14, 0), True, "is Python 3.14.0, expected >=3.10,<3.14"),
        ((3, 12, 1), False, "has no Python.h, which fairseq is compiled with"),
    ],
)
def test_a_python_that_cannot_do_it_is_refused(tmp_path, version, headers, message):
    python = fake_python(tmp_path / "python", version, headers)
    done = script("--python", python, "--dry-run")
    assert done.returncode == 1
    assert done.stderr.startswith("wheelhouse: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_outputs_that_would_be_lost_are_refused(tmp_path):
    python = fake_python(tmp_path / "python", (3, 12, 1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    done = script("--python", python, "--output", tmp_path / "mine")
    assert "is there and is no wheelhouse (it has no INSTALL.txt)" in done.stderr
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert "there is no folder" in script("--python", python, "--output", tmp_path / "a" / "b").stderr
    assert "no C++ compiler" in script("--python", python, "--output", tmp_path / "w", CXX="", PATH="/nowhere").stderr


def stub_build(wheels):
    """In place of the building: wheels with these contents, or an error after half of them."""

    def build(python, wanted, root, partial):
        (partial / "wheels").mkdir()
        for name, content in wheels.items():
            if content is None:
                raise wheelhouse.WheelhouseError("interrupted")
            (partial / "wheels" / name).write_bytes(content)
        return sorted((partial / "wheels").iterdir())

    return build


def test_it_appears_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    python = fake_python(tmp_path / "python", (3, 12, 1))
    monkeypatch.setattr(wheelhouse, "check_compiler", lambda: None)
    output = tmp_path / "w"
    arguments = ["--python", str(python), "--output", str(output)]

    monkeypatch.setattr(wheelhouse, "build", stub_build({"a.whl": b"1", "b.whl": None}))
    with pytest.raises(wheelhouse.WheelhouseError, match="interrupted"):
        wheelhouse.main(arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["python"]

    # what a kill left behind is removed
    (tmp_path / ".w.partial" / "wheels").mkdir(parents=True)
    (tmp_path / ".w.partial" / "wheels" / "old.whl").write_bytes(b"0")
    monkeypatch.setattr(wheelhouse, "build", stub_build({"a.whl": b"1", "c.whl": b"2"}))
    wheelhouse.main(arguments)
    first = ["INSTALL.txt", "SHA256SUMS", "a.whl", "c.whl"]
    assert sorted(p.name for p in output.iterdir()) == first
    assert "2 wheels, 0.0 MiB" in capsys.readouterr().out
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=output, check=True, capture_output=True)

    monkeypatch.setattr(wheelhouse, "build", stub_build({"a.whl": b"1", "b.whl": None}))
    with pytest.raises(wheelhouse.WheelhouseError):
        wheelhouse.main(arguments)
    assert sorted(p.name for p in output.iterdir()) == first
    monkeypatch.setattr(wheelhouse, "build", stub_build({"d.whl": b"3"}))
    wheelhouse.main(arguments)
    assert sorted(p.name for p in output.iterdir()) == ["INSTALL.txt", "SHA256SUMS", "d.whl"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["python", "w"]


def test_two_at_once_are_refused(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    python = fake_python(tmp_path / "python", (3, 12, 1))
    monkeypatch.setattr(wheelhouse, "check_compiler", lambda: None)
    arguments = ["--python", str(python), "--output", str(tmp_path / "w")]

    def build(*_):
        monkeypatch.setattr(wheelhouse, "build", stub_build({"x.whl": b""}))
        with pytest.raises(wheelhouse.WheelhouseError, match="another run is making"):
            wheelhouse.main(arguments)
        return stub_build({"y.whl": b"1"})(*_)

    monkeypatch.setattr(wheelhouse, "build", build)
    wheelhouse.main(arguments)
    assert (tmp_path / "w" / "y.whl").exists()


def test_the_makefile_passes_the_flags_on():
    def command(*variables):
        make = ["make", "--no-print-directory", "--dry-run", "wheelhouse"]
        done = subprocess.run([*make, *variables], cwd=ROOT, check=True, capture_output=True, text=True)
        return " ".join(done.stdout.replace("\\\n", " ").split())

    assert command("PYTHON=3.12").endswith('wheelhouse.py --python "3.12"')
    assert command("PYTHON=3.12", "TORCH=1", "PLOTS=0", "TESTS=1").endswith('"3.12" --torch --tests')


def test_it_names_no_package_index():
    assert not [word for word in ("index-url", "find-links", "http://", "https://") if word in SCRIPT.read_text()]

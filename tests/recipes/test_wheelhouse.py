"""`make wheelhouse`: what it asks pip for, what it leaves. Building itself takes a network, so pip is stood in for."""

import os
import subprocess
import sys

import pytest

from tests.common import ROOT, content

FAKE = f"""#!/bin/sh
case "$1 $2 $3" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip wheel")
        while [ "$1" != --wheel-dir ]; do shift; done
        wheels=$2 && shift 4
        if [ "$1" != --requirement ]; then echo "$*"; elif [ -z "$BROKEN" ]; then cat "$2"; else exit 1; fi >>"$ASKED"
        date >"$wheels/collab_fairseq-$(wc -l <"$ASKED").whl" ;;
    "-m pip install") ;;
    "-c import "*) ;;
    *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def wheelhouse(tmp_path):
    """The script on a Python that notes what pip is asked for: exit status, what it said, what was asked for."""

    def run(*wanted, **environment):
        asked = tmp_path / "asked"
        asked.write_text("")
        environment = {**os.environ, "ASKED": str(asked), "WHEELHOUSE": str(tmp_path / "w"), **environment}
        command = ["bash", ROOT / "recipes" / "lib" / "wheelhouse.sh", *wanted]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr, asked.read_text().splitlines()

    (tmp_path / "python3.12").write_text(FAKE)
    (tmp_path / "python3.12").chmod(0o755)
    return run


def test_it_is_found_asked_for_and_appears_whole_or_not_at_all(tmp_path, wheelhouse):
    on_path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    status, said, asked = wheelhouse("3.12", **on_path)
    assert status == 0, said
    assert asked[1] == "--no-deps --no-cache-dir fairseq"
    assert {"omegaconf<2.4,>=2.3", "sentencepiece", "sacrebleu>=2.3"} <= set(asked)
    assert not [name for name in asked if name.startswith(("torch>", "matplotlib", "pytest", "transformers"))]
    assert "v && v/bin/pip install --no-index --no-deps w/*.whl\n" in (tmp_path / "w" / "INSTALL.txt").read_text()
    assert "--system-site-packages" in said
    sums = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(sums, cwd=tmp_path / "w", check=True, capture_output=True)
    before = content(tmp_path / "w")

    assert wheelhouse(tmp_path / "python3.12", "torch", BROKEN="yes")[0] == 1
    assert content(tmp_path / "w") == before

    status, said, asked = wheelhouse(tmp_path / "python3.12", "torch", "plots", "test")
    assert {"torch>=2.6", "matplotlib", "pytest"} <= set(asked)
    assert "--system-site-packages" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "python3.12", "w"]
    assert len(list((tmp_path / "w").glob("*.whl"))) == 3


def test_what_would_be_lost_or_is_not_there_is_refused(tmp_path, wheelhouse):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "thesis.tex").write_text("x")
    assert "is there and is no wheelhouse" in wheelhouse(tmp_path / "python3.12")[1]
    assert (tmp_path / "w" / "thesis.tex").exists()
    assert "found no Python for PYTHON=3.99;" in wheelhouse("3.99", PYENV_ROOT=str(tmp_path))[1]


def test_the_makefile_passes_the_flags_on():
    command = ["make", "--no-print-directory", "--dry-run", "wheelhouse"]
    done = subprocess.run(
        [*command, "PYTHON=3.12", "TORCH=1", "PLOTS=0", "TESTS=1"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.replace("\\\n", " ").split() == ["recipes/lib/wheelhouse.sh", '"3.12"', "torch", "test"]

"""Three calls of one GPU, played by programs that note their arguments: order, limits, failures, what is skipped."""

import importlib.util
import sys
import time
import zipfile

import pytest

from tests.common import ROOT, run

RUN = ROOT / "recipes" / "gpu" / "run.sh"
spec = importlib.util.spec_from_file_location("gpu", RUN.with_suffix(".py"))
gpu = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu)
TOOL = """#!/usr/bin/env bash
shopt -s extglob
echo "${0##*/} $*" >>"${0%/*}/calls"
case $* in $SLOW) exec sleep 100 ;; $BROKEN) exit 3 ;; *) echo '"loss": "5", "wps": "7"' ;; esac
"""


@pytest.fixture
def play(tmp_path, monkeypatch, capsys):
    """Plays a call; returns the steps of its page, and what was called."""
    (tmp_path / "data" / "data-bin").mkdir(parents=True)
    for name in ("python", "collab", "fairseq-train"):
        (tmp_path / name).write_text(TOOL)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(gpu, "tool", lambda name: str(tmp_path / name))
    monkeypatch.setattr(gpu, "PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(gpu.signal, "signal", lambda *_: None)
    for name, value in (("PYTHON", ""), ("CUDA_VISIBLE_DEVICES", "0"), ("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")):
        monkeypatch.setenv(name, value)

    def call(*flags, slow="nothing", broken="nothing"):
        given = ["--device", "gpu", "--jobs", "2", "--data", tmp_path / "data", "--output", tmp_path / "gpu", *flags]
        monkeypatch.setattr("sys.argv", ["run.sh", *map(str, given)])
        monkeypatch.setenv("SLOW", slow)
        monkeypatch.setenv("BROKEN", broken)
        gpu.main()
        page = [line[2:].split(": ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
        calls = tmp_path / "calls"
        return dict(page), calls.read_text().splitlines() if calls.exists() else []

    return call


def test_each_call_has_its_steps_in_order_and_a_failure_ends_none(play):
    steps, calls = play(broken="bench layer*")
    assert list(steps)[:2] == ["probe", "tests"]
    assert list(steps)[-1] == "curve"
    assert sum(name.startswith("base-") for name in steps) == 5
    assert steps["base-fp16"] == 'finished "loss": "5", "wps": "7"'
    assert [name for name, state in steps.items() if state.startswith("failed with status 3")] == [
        "bench-layer-bfloat16", "bench-layer-float16"
    ]  # fmt: skip
    assert steps["bench-train-compiled"].startswith("finished")
    assert any("probe.py --device cuda" in line for line in calls)
    again, more = play()  # what is finished is skipped, the others are repeated
    assert len([line for line in more[len(calls) :] if "bench layer" in line]) == 2
    assert not any("-m pytest" in line for line in more[len(calls) :])
    assert again["bench-layer-float16"].startswith("finished")


def test_learning_keeps_its_time_whatever_the_others_take(play):
    begun = time.monotonic()
    steps, _ = play("--minutes", "2", slow="@(*label_smoothed*|-m pytest*|*probe.py*)")
    assert time.monotonic() - begun < 120
    assert {steps["probe"].strip(), steps["base-adam"].strip()} <= {"cut off", "not begun"}
    assert steps["bench-train-compiled"].startswith("finished")
    assert not steps["curve"].startswith("not begun")


def test_no_time_begins_nothing(play):
    steps, calls = play("--minutes", "0", "--call", "speed")
    assert {state.strip() for state in steps.values()} == {"not begun"}
    assert len(steps) == 7
    assert not calls


@pytest.mark.slow
def test_the_probe_runs_on_a_cpu():
    lines = run(sys.executable, ROOT / "recipes" / "gpu" / "probe.py", "--device", "cpu").stdout.splitlines()
    plain = [line for line in lines if line.endswith("e-07") and ", plain: " in line]
    assert len(plain) == 4
    assert all("fails" in line for line in lines if ", cudnn: " in line)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--wheels", "."], "--wheels: there are no wheels in "),
        (["--minutes", "1", "--wheels", "."], "--wheels must be the first option"),
        (["--call", "luck"], "invalid choice: 'luck'"),
    ],
)
def test_what_cannot_be_is_refused(flags, message, tmp_path):
    done = run("bash", RUN, *flags, "--output", tmp_path / "gpu", check=False)
    assert done.returncode == 1
    assert message in done.stderr


def test_wheels_are_installed_beside_the_packages_of_the_machine(tmp_path):
    with zipfile.ZipFile(tmp_path / "brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "")
        wheel.writestr("brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        wheel.writestr("brought-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("brought-1.0.dist-info/RECORD", "")
    told = run("bash", RUN, "--wheels", tmp_path, "--help", env={"PYTHON": sys.executable}).stdout
    assert "usage: recipes/gpu/run.sh" in told
    run(tmp_path / "venv" / "bin" / "python", "-c", "import brought, torch")
    assert run(sys.executable, "-c", "import brought", check=False).returncode

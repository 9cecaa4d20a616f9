"""`collab doctor`: on this machine as a user runs it, where something is missing, and on cards that are not here."""

import hashlib
import json
import re
import shutil
import sys
from email.message import Message
from importlib import metadata

import pytest
import torch

from collab_fairseq import doctor
from collab_fairseq.cli.main import main
from collab_fairseq.doctor import checks, trial

A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory": 85051637760, "capability": [8, 0]}
V100 = {"name": "Tesla V100-SXM2-32GB", "memory": 34079637504, "capability": [7, 0]}
TORCH = {"version": "2.13.0", "build": "CUDA 13.0", "gpus": [], "warnings": []}
MODELS = {"registered": ["transformer_collab", "transformer_collab_big"]}


@pytest.fixture
def data(tiny_data, tmp_path):
    """A data-bin with SHA256SUMS beside it, as data_prep leaves them."""
    folder = tmp_path / "data"
    shutil.copytree(tiny_data, folder / "data-bin")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder / "data-bin"


def test_this_machine_can_run_a_recipe(data, tmp_path, capsys):
    """Nothing is stood in for."""
    json_file = tmp_path / "found.json"
    assert main(["doctor", "--data", str(data), "--json", str(json_file)]) == 0
    screen, found = capsys.readouterr().out, json.loads(json_file.read_text())
    assert found["able"] is True
    assert "this machine can run a recipe" in screen
    by_name = {finding["name"]: finding for finding in found["findings"]}
    for name in ("Python", "packages", "fairseq", "torch", "CPU", "hook", "user-dir", "data", "trial run"):
        assert f"ok    {name:<10} {by_name[name]['text']}\n" in screen
    assert by_name["trial run"]["text"].startswith("5 updates on ")
    assert all(finding["advice"] for finding in found["findings"] if finding["status"] != "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "found.json"]


def test_what_is_missing_is_a_finding_with_advice(monkeypatch, capsys):
    def screen(*flags, **facts):
        told = {"torch": TORCH, "hook": {"active": True, "setting": None}, "user_dir": MODELS, **facts}
        monkeypatch.setattr(trial, "ask", lambda folder: told)
        status, text = main(["doctor", *flags]), capsys.readouterr().out
        assert status == ("cannot run a recipe yet: " in text)
        return text

    monkeypatch.setattr(trial, "trial", lambda *_: doctor.Finding("trial run", "ok", "tried"))
    assert "trial run  tried" in screen()
    assert "trial run" not in screen("--no-trial")
    error = {"error": "ModuleNotFoundError: No module named 'fairseq'"}
    broken = screen(user_dir=error)
    assert re.search(r"fail  user-dir .*No module named 'fairseq'\n +-> fix the lines above", broken)
    assert "warn  trial run  not tried" in broken
    assert "fail  torch " in screen(torch=error)
    assert "unset FAIRSEQ_MODERN" in screen(hook={"active": False, "setting": "0"})
    assert "install with pip" in screen(hook={"active": False, "setting": None})
    assert "reinstall this project" in screen(user_dir={"registered": []})


def test_what_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_MODERN", "0")
    found = trial.ask(str(tmp_path / "nowhere"))
    assert found["hook"] == {"active": False, "setting": "0"}
    assert found["torch"]["version"] == torch.__version__
    assert found["user_dir"]["error"]
    monkeypatch.setattr(trial, "PATIENCE", 1.0)
    for code, message in (
        ("os.kill(os.getpid(), 11)", "ended with signal 11: importing"),
        ("time.sleep(60)", "timed out after 1"),
    ):
        with pytest.raises(trial.Failure, match=message):
            trial.run(sys.executable, "-c", f"import os, sys, time; print('importing', flush=True); {code}")
    with pytest.raises(trial.Failure, match="No such file"):
        trial.run("/nowhere/fairseq-train")


def test_the_trial_trains_where_a_recipe_would(tmp_path, monkeypatch):
    commands, lines = [], [f'{{"loss": "{7 - n}.5", "num_updates": "{n}"}}\n' for n in range(1, 6)]
    monkeypatch.setattr(trial, "run", lambda *words: commands.append([*map(str, words)]) or "".join(lines))
    assert "and a checkpoint" in trial.trial([], "DIR", tmp_path).text
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint_last.pt").write_text("")
    assert "5 updates on the CPU, validated and saved; loss 6.50 to 2.50" in trial.trial([], "DIR", tmp_path)
    assert commands[-1][-3:] == ["--cpu", "--distributed-world-size", "1"]
    assert "5 updates on 2 GPUs, fp16" in trial.trial([A100, V100], "DIR", tmp_path).text
    assert commands[-1][-1] == "--fp16"
    assert "5 updates on 1 GPU, bf16" in trial.trial([A100], "DIR", tmp_path).text
    last = lines.pop()
    assert trial.trial([], "DIR", tmp_path).status == "fail"
    lines.append(last.replace("2.5", "nan"))
    assert trial.trial([], "DIR", tmp_path).status == "fail"


def test_cards_and_the_precision_that_fits_them():
    def found(*cards, driver=True, **facts):
        return list(checks.gpus({**TORCH, "gpus": list(cards), **facts}, driver))[1:]

    text = "Tesla V100-SXM2-32GB, 31.7 GiB, compute capability 7.0, fp16"
    assert found(V100) == [("GPU 0", "ok", text, "")]
    kernel = {"error": "CUDA error: no kernel image is available for execution on the device"}
    (old,) = found({**V100, **kernel})
    assert (old.status, old.text) == ("fail", f"{text}; {kernel['error']}")
    assert "torch 2.6 or 2.7" in old.advice
    first, second, mixed = found(A100, V100)
    assert (first.text[-4:], second.text[-4:], mixed.status) == ("bf16", "fp16", "warn")
    assert len(found(A100, A100)) == 2
    (bare,), (hidden,) = found(driver=False), found(warnings=["The NVIDIA driver is too old"])
    assert bare.status == hidden.status == "warn"
    assert ("too old" in hidden.text, "CUDA" in hidden.advice, "CUDA" in bare.advice) == (True, True, False)


def test_python_and_packages(monkeypatch):
    about, versions = Message(), {"torch": "2.5.1", "numpy": "2.4.6", "fairseq": "0.12.3"}
    about["Requires-Python"] = metadata.metadata("collab_fairseq")["Requires-Python"]
    for requirement in ("torch>=2.6", "numpy>=1.26", "regex", 'pytest; extra == "test"'):
        about["Requires-Dist"] = requirement
    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    monkeypatch.setattr(checks, "installed", lambda name: versions.get(name, ""))
    for version, status in {(3, 9, 18): "fail", (3, 13, 9): "ok"}.items():
        python, packages, fairseq = checks.packages(version)
        assert python.status == status
    assert packages[1:] == ("fail", "torch 2.5.1, regex is not installed", 'pip install "torch>=2.6" "regex"')
    assert fairseq.status == "warn"
    versions.update(torch="2.6.0", regex="2026.1", fairseq="")
    _, packages, fairseq = checks.packages((3, 12, 0))
    assert packages.text == "all 3 that setup.py asks for"
    assert (fairseq.status, fairseq.advice[:38]) == ("fail", "pip install --no-deps fairseq==0.12.2 ")


def test_data_is_checked_against_its_sums(data, tmp_path):
    victim, listed = data / "train.src-tgt.tgt.bin", data.parent / "SHA256SUMS"
    assert checks.data(str(data)).status == "ok"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert checks.data(str(data))[1:3] == ("fail", f"data-bin/{victim.name}: not as in {listed}")
    listed.write_text("")
    assert checks.data(str(data)).status == "fail"
    listed.unlink()
    assert checks.data(str(data)).status == "warn"
    assert checks.data(str(tmp_path / "absent")).status == "fail"

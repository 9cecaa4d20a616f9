"""`collab doctor`: on this machine as a user runs it, where something is missing, and on cards that are not here."""

import hashlib
import json
import os
import shutil
import signal
import sys
import sysconfig
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.cli import doctor, doctor_checks, doctor_trial
from collab_fairseq.cli.main import build_parser, main
from tests.common import ROOT, run

USER_DIR = str(ROOT / "collab_fairseq")
#: what torch.cuda.get_arch_list says for these builds
TORCH_26 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]  # CUDA 12.4
TORCH_213 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]  # CUDA 13.0
V100 = {"name": "Tesla V100-SXM2-32GB", "memory": 34079637504, "capability": [7, 0]}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory": 85051637760, "capability": [8, 0]}


def blocked(folder: Path, name: str) -> Path:
    """A folder for PYTHONPATH in which a module is that cannot be imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")\n")
    return folder


def with_sums(data_bin: Path, folder: Path) -> Path:
    """A copy of the data with SHA256SUMS beside it, as data_prep leaves them."""
    shutil.copytree(data_bin, folder / "data-bin")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder / "data-bin"


def statuses(output: str) -> dict:
    """The lines on the screen: name → status; a name holds two words at most."""
    lines = [line for line in output.split("\n\n")[0].split("\n") if not line.startswith(" ")]
    return {line[6:16].strip(): line[:5].strip() for line in lines}


def test_this_machine_can_run_a_recipe(tiny_data, tmp_path):
    data = with_sums(tiny_data, tmp_path / "data")
    found = tmp_path / "found.json"
    done = run("collab", "doctor", "--data", data, "--output", tmp_path / "a" / "b", "--json", found)
    assert "this machine can run a recipe" in done.stdout
    status = statuses(done.stdout)
    assert list(status)[:3] == ["Python", "packages", "torch"]
    for name in ("Python", "packages", "torch", "processes", "hook", "fairseq", "user-dir", "disk", "trial run"):
        assert status[name] == "ok", name
    assert status["data"] == status["data sums"] == "ok"
    written = json.loads(found.read_text())
    assert written["able"] is True
    text = {finding["name"]: finding["text"] for finding in written["findings"]}
    assert set(text) == set(status)
    # the base model with this dictionary: 60,989,440 parameters are those of 32,768 types (Table 3 of the paper)
    types = doctor_checks.dictionary_size(data)
    assert f" of {60989440 - (32768 - types) * 512:,} parameters" in text["disk"]
    assert all(finding["advice"] for finding in written["findings"] if finding["status"] != "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "found.json"]


@pytest.mark.parametrize(
    ("environment", "module", "failing", "advice"),
    [
        ({"FAIRSEQ_MODERN": "0"}, None, {"hook", "user-dir"}, "unset FAIRSEQ_MODERN"),
        ({}, "fairseq", {"fairseq", "user-dir"}, "pip install --no-deps fairseq==0.12.2"),
        ({}, "torch", {"torch", "processes", "fairseq", "user-dir"}, "install torch 2.6 or newer"),
    ],
)
def test_what_is_missing_is_reported(tmp_path, environment, module, failing, advice):
    if module:
        environment = {"PYTHONPATH": str(blocked(tmp_path / "blocked", module))}
    done = run("collab", "doctor", "--no-trial", env=environment, check=False)
    assert done.returncode == 1, done.stderr
    status = statuses(done.stdout)
    if environment.get("FAIRSEQ_MODERN") and sys.version_info >= (3, 11):
        failing = failing | {"fairseq"}  # there fairseq as published cannot be imported
    assert {name for name, value in status.items() if value == "fail"} == failing
    assert advice in done.stdout
    assert "this machine cannot run a recipe yet" in done.stdout
    if module:
        assert f"No module named '{module}'" in done.stdout


def test_the_trial_trains_and_a_checkpoint_has_12_bytes_per_parameter(tmp_path):
    finding, messages = doctor_trial.trial([], USER_DIR, tmp_path)
    assert finding.status == "ok", messages
    assert finding.text.startswith("5 updates on the CPU")
    path = tmp_path / "checkpoints" / "checkpoint_last.pt"
    state = checkpoints.load(path)
    assert checkpoints.num_updates(state) == 5
    parameters = sum({tensor.data_ptr(): tensor.numel() for tensor in state["model"].values()}.values())
    assert 1 < path.stat().st_size / (doctor_checks.BYTES_PER_PARAMETER * parameters) < 1.2
    # control: without Adam's moments the estimate would be far off
    assert path.stat().st_size / (4 * parameters) > 2.5

    log = messages.replace('"num_updates": "5"', '"num_updates": "4"')
    assert doctor_trial.judge(log, True, [], tmp_path).status == "fail"
    assert doctor_trial.judge(messages, False, [], tmp_path).text.endswith("no checkpoint")
    assert doctor_trial.judge("", True, [], tmp_path).text == "ended after 0 of 5 updates"
    assert doctor_trial.judge(messages, True, [], tmp_path).status == "ok"
    spoiled = '{"loss": "nan", "num_updates": "3"}\n'
    assert "expected numbers" in doctor_trial.judge(messages + spoiled, True, [], tmp_path).text


def test_a_trial_that_fails_names_the_tool_and_its_last_line(tmp_path, monkeypatch):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(scripts))
    finding, _ = doctor_trial.trial([], USER_DIR, tmp_path)
    assert finding.text.startswith("fairseq-preprocess: ")
    error = "RuntimeError: no kernel image"
    for name, line in (("fairseq-preprocess", "true"), ("fairseq-train", f"echo {error} >&2; false")):
        (scripts / name).write_text(f"#!/bin/sh\n{line}\n")
        (scripts / name).chmod(0o755)
    finding, messages = doctor_trial.trial([], USER_DIR, tmp_path)
    assert (finding.status, finding.text) == ("fail", f"fairseq-train: {error}")
    assert error in messages


def test_the_trial_runs_where_a_recipe_would():
    assert doctor_trial.device_flags([]) == ["--cpu", "--distributed-world-size", "1"]
    assert doctor_trial.device_flags([A100, A100]) == ["--bf16"]
    assert doctor_trial.device_flags([A100, V100]) == ["--fp16"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.kill(os.getpid(), 11)", "Python was ended by signal 11: importing"),
        ("sys.exit(3)", "Python ended with status 3: importing"),
        ("time.sleep(60)", "no end after 5 s"),
    ],
)
def test_a_python_that_crashes_or_hangs_is_a_finding(tmp_path, monkeypatch, code, message):
    probe = tmp_path / "probe.py"
    hook = '{"stage": "hook", "installed": true, "at_work": true, "setting": null}'
    lines = ["import os, sys, time", f"print({hook!r}, flush=True)", "print('importing', file=sys.stderr, flush=True)"]
    pid = tmp_path / "pid"
    probe.write_text("\n".join([*lines, f"open({str(pid)!r}, 'w').write(str(os.getpid()))", code]))
    monkeypatch.setattr(doctor_trial, "PROBE", probe)
    monkeypatch.setattr(doctor_trial, "PATIENCE", 5.0)
    facts, _ = doctor_trial.probe(USER_DIR, "transformer_collab", 100)
    assert doctor_checks.hook(facts["hook"]).status == "ok"
    assert message in doctor_checks.torch(facts["torch"]).text
    assert "not reached" in doctor_checks.fairseq(facts["fairseq"]).text
    assert facts["model"]["error"].startswith("not reached")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (TORCH_26, (7, 0), True),
        (TORCH_213, (7, 0), False),
        (TORCH_213, (7, 5), True),
        (TORCH_213, (8, 0), True),
        (TORCH_213, (8, 9), True),  # machine code of 8.6
        (["sm_86"], (8, 0), False),  # but not the other way round
        (TORCH_26, (9, 0), True),
        (TORCH_26, (10, 0), False),
        ([*TORCH_26, "compute_90"], (10, 0), True),  # PTX
        ([*TORCH_26, "compute_90a"], (10, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (TORCH_213, (12, 1), True),
        ([], (8, 0), None),
        (["gfx90a"], (9, 0), None),
    ],
)
def test_what_a_build_runs_on(architectures, capability, expected):
    assert doctor_checks.supports(architectures, capability) is expected


def torch_facts(cards=(), architectures=TORCH_213, cuda="13.0", **more):
    facts = {"version": "2.13.0", "cuda": cuda, "hip": None, "cards": list(cards), "architectures": architectures}
    return {**facts, "warnings": [], "gloo": True, "nccl": "2.29.7", **more}


def test_cards_and_the_precision_that_fits_them():
    (old,) = doctor_checks.cards(torch_facts([V100], TORCH_26, "12.4"), driver=True)
    assert old == ("card 0", "ok", "Tesla V100-SXM2-32GB, 31.7 GiB, compute capability 7.0, fp16", "")
    (unsupported,) = doctor_checks.cards(torch_facts([V100]), driver=True)
    assert unsupported.status == "fail"
    assert "built for sm_75, sm_80" in unsupported.text
    assert "torch 2.6 or 2.7" in unsupported.advice
    (new,) = doctor_checks.cards(torch_facts([{**A100, "capability": [10, 0]}], TORCH_26), driver=True)
    assert new.status == "fail"
    assert "newer release" in new.advice
    first, second, mixed = doctor_checks.cards(torch_facts([A100, V100], TORCH_26), driver=True)
    assert (first.text[-4:], second.text[-4:]) == ("bf16", "fp16")
    assert mixed.status == "warn"
    assert "--fp16" in mixed.advice
    assert [f.status for f in doctor_checks.cards(torch_facts([A100, A100]), driver=True)] == ["ok", "ok"]


def test_cards_that_torch_does_not_see():
    (bare,) = doctor_checks.cards(torch_facts(cuda=None), driver=False)
    (wrong_build,) = doctor_checks.cards(torch_facts(cuda=None), driver=True)
    (wrong_driver,) = doctor_checks.cards(torch_facts(warnings=["The NVIDIA driver is too old"]), driver=True)
    assert bare.status == wrong_build.status == wrong_driver.status == "warn"
    assert "CPU build" in wrong_build.advice
    assert "CPU build" not in bare.advice + wrong_driver.advice
    assert "too old" in wrong_driver.text
    assert "nvidia-smi" in wrong_driver.advice
    assert not list(doctor_checks.cards({"error": "no torch"}, driver=True))


def test_what_processes_talk_through():
    assert doctor_checks.communication(torch_facts([A100] * 8)).text == "NCCL 2.29.7 and gloo"
    assert doctor_checks.communication(torch_facts([A100] * 8, nccl=False)).status == "fail"
    assert doctor_checks.communication(torch_facts([A100], nccl=False)).status == "ok"
    assert doctor_checks.communication(torch_facts([A100], gloo=False)).status == "warn"
    assert doctor_checks.communication({"error": "no torch"}).status == "fail"


def test_the_hook_is_looked_for():
    absent = {"installed": False, "at_work": False, "setting": None}
    assert "pip install" in doctor_checks.hook(absent).advice
    assert "site-packages" in doctor_checks.hook({**absent, "installed": True}).advice
    assert "unset" in doctor_checks.hook({**absent, "setting": "0"}).advice
    assert doctor_checks.hook({**absent, "setting": "0", "at_work": True}).status == "ok"


def test_python_and_packages():
    requires = metadata.metadata("collab_fairseq")["Requires-Python"]
    expected = {(3, 9, 18): "fail", (3, 10, 0): "ok", (3, 13, 9): "ok", (3, 14, 0): "fail", (2, 7, 18): "fail"}
    assert {version: doctor_checks.python(version, requires).status for version in expected} == expected

    def installed(name):
        if name == "regex":
            raise metadata.PackageNotFoundError(name)
        return {"torch": "2.5.1", "numpy": "2.4.6"}[name]

    asked = ["torch>=2.6", "numpy>=1.26", "regex", 'pytest; extra == "test"', 'old; python_version < "3"']
    finding = doctor_checks.packages(asked, installed)
    assert finding[1:] == ("fail", "torch 2.5.1, no regex", 'pip install "torch>=2.6" "regex"')
    assert doctor_checks.packages(asked[1:2], installed).text == "all 1 that setup.py asks for"


def test_fairseq_and_the_user_dir():
    assert doctor_checks.fairseq({"version": "0.12.2"}).status == "ok"
    assert doctor_checks.fairseq({"version": "0.12.3"}).status == "warn"
    registered = {"registered": ["transformer_collab", "transformer_collab_big"], "knows": True}
    assert doctor_checks.user_dir(registered, "transformer_collab").status == "ok"
    unknown = doctor_checks.user_dir({**registered, "knows": False}, "transformer_colab")
    assert unknown.status == "fail"
    assert "transformer_colab" in unknown.text
    assert "transformer_collab_big" in unknown.advice
    assert doctor_checks.user_dir({"registered": [], "knows": True}, "transformer").status == "fail"


def test_scripts_are_those_of_this_python(tmp_path, monkeypatch):
    home = Path(sysconfig.get_path("scripts"))
    assert doctor_checks.scripts(lambda tool: str(home / tool)).status == "ok"
    absent = doctor_checks.scripts(lambda tool: None)
    assert (absent.status, absent.advice) == ("warn", f'export PATH="{home}:$PATH"')
    foreign = doctor_checks.scripts(lambda tool: str(tmp_path / tool))
    assert "of another environment" in foreign.text
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme=None: str(tmp_path))
    missing = doctor_checks.scripts(lambda tool: str(home / tool))
    assert missing.status == "fail"
    assert "fairseq-train" in missing.text


def test_disk_space(tmp_path, monkeypatch):
    parameters, checkpoints_kept = 60989440, 8
    need = 12 * parameters * checkpoints_kept
    usage = namedtuple("usage", "total used free")
    for free, status in ((need, "ok"), (need - 1, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: usage(2 * need, 2 * need - free, free))
        finding = doctor_checks.disk(str(tmp_path / "not" / "yet"), parameters, checkpoints_kept)
        assert finding.status == status
        assert bool(finding.advice) == (status == "fail")
        assert "8 checkpoints of 60,989,440 parameters take 5.5 GiB" in finding.text
    assert doctor_checks.disk(str(tmp_path), None, 8).status == "warn"
    (tmp_path / "file").write_text("")
    assert "is a file" in doctor_checks.disk(str(tmp_path / "file"), parameters, 1).text
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in doctor_checks.disk(str(tmp_path), parameters, 1).text
    assert not (tmp_path / "not").exists()


def test_data_is_checked_against_its_sums(tiny_data, tmp_path):
    data = with_sums(tiny_data, tmp_path / "data")

    def found():
        return {finding.name: finding for finding in doctor_checks.data(str(data))}

    assert {name: finding.status for name, finding in found().items()} == {"data": "ok", "data sums": "ok"}
    victim = data / "train.src-tgt.tgt.bin"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert found()["data sums"][1:3] == ("fail", f"data-bin/{victim.name} has changed")
    victim.unlink()
    assert found()["data"].text.endswith(f"lacks {victim.name}")
    victim.write_bytes(whole)
    (data / "test.src-tgt.src.idx").unlink()
    assert found()["data sums"].text == "data-bin/test.src-tgt.src.idx is missing"

    listed = data.parent / "SHA256SUMS"
    listed.write_text(listed.read_text()[:-80])
    assert "is damaged in line" in found()["data sums"].text
    listed.write_text("")
    assert found()["data sums"].status == "fail"
    listed.unlink()
    assert found()["data sums"].status == "warn"
    (data / "dict.src.txt").write_text("other 1\n")
    assert found()["data"].status == "warn"
    (data / "dict.src.txt").unlink()
    assert "two dictionaries" in found()["data"].text
    assert [f.status for f in doctor_checks.data(str(tmp_path / "absent"))] == ["fail"]


def test_without_a_working_fairseq_no_trial_is_tried(monkeypatch, capsys):
    """And what the model would take on the disk is unknown then, unless it is given."""
    broken = {name: {"error": "no module"} for name in ("fairseq", "user_dir", "model")}
    hook = {"installed": True, "at_work": True, "setting": None}
    monkeypatch.setattr(doctor_trial, "probe", lambda *_: ({"hook": hook, "torch": torch_facts(), **broken}, "why\n"))
    monkeypatch.setattr(doctor_trial, "trial", lambda *_: pytest.fail("tried"))
    for flags, disk in (([], "warn"), (["--parameters", "1000"], "ok")):
        args = build_parser().parse_args(["doctor", *flags])
        status = {finding.name: finding.status for finding in doctor.findings(args)}
        assert (status["trial run"], status["disk"], status["fairseq"]) == ("warn", disk, "fail")
    assert "why" in capsys.readouterr().err


def test_wrong_flags_are_one_sentence_before_anything_is_done(tmp_path, capsys):
    assert main(["doctor", "--json", str(tmp_path / "no" / "found.json")]) == 1
    assert capsys.readouterr().err.startswith("collab doctor: error: --json")
    with pytest.raises(SystemExit):
        main(["doctor", "--checkpoints", "0"])
    assert "expected a whole number from 1, got '0'" in capsys.readouterr().err

"""What the runner of the recipes plans for any number of cards, what a folder holds, how signals are handed on."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runner import machine, sweep
from runner.folder import keep_settings, kept_settings, locked
from runner.machine import Cards, Machine
from runner.process import run_logged
from runner.settings import RecipeError

from fairseq_modern import files, processor
from tests.common import ROOT

# --- the batch and the precision -------------------------------------------------------------------------------------


@pytest.fixture
def plan(monkeypatch):
    """Plans the paper's batch for a machine with these imaginary cards."""

    def planned(*found, **given):
        monkeypatch.setattr(machine, "cards", lambda: Cards(*found))
        planned = Machine(threads=1, **given)
        planned.find_cards()
        planned.choose_precision()
        planned.split_batch(28672, 3584)
        return planned

    monkeypatch.setattr("os.environ", dict(machine.os.environ))
    return planned


@pytest.mark.parametrize(
    ("cards", "given", "result"),
    [
        *(((number, 80), {}, f"gpu {number} {share} bf16") for number, share in (
            (1, "3584 8"), (8, "3584 1"), (7, "2048 2"), (16, "1792 1"), (28, "1024 1"))),
        *(((number, 80, memory), {}, f"gpu {number} {share} bf16") for number, memory, share in (
            (1, 39, "3584 8"), (1, 47, "3584 8"), (1, 79, "7168 4"), (1, 139, "14336 2"), (8, 139, "3584 1"))),
        ((1, 80, 139), {"device": "cpu", "cpu_precision": "fp32"}, "cpu 1 3584 8 fp32"),
        ((4, 70), {"nodes": 2}, "gpu 8 3584 1 fp16"),
        ((4, 80), {"max_tokens": 7168}, "gpu 4 7168 1 bf16"),
        *(((4, 70), {"precision": name}, f"gpu 4 3584 2 {name}") for name in ("fp16", "fp32")),
        ((4, 90), {"gpu_precision": "fp16"}, "gpu 4 3584 2 fp16"),
        *(((0,), {"precision": name}, f"cpu 1 3584 8 {name}") for name in ("fp32", "bf16")),
    ],
)  # fmt: skip
def test_the_effective_batch_is_kept_and_the_precision_suits_the_card(plan, cards, given, result, monkeypatch, caplog):
    caplog.set_level("INFO", "recipe")
    if given.get("precision") == "bf16":
        monkeypatch.setattr(processor, "bfloat16_units", lambda: ["AMX"])
    made = plan(*cards, **given)
    assert f"{made.device} {made.processes} {made.max_tokens} {made.update_freq} {made.precision}" == result
    assert made.processes * made.max_tokens * made.update_freq == 4 * 3584 * 2
    assert f"x {made.max_tokens} tokens x update-freq {made.update_freq} = 28672 tokens per update" in caplog.text


def test_on_a_card_fairseqs_own_models_are_kept_from_cudnns_attention(monkeypatch):
    for device in ("gpu", "cpu"):
        monkeypatch.setattr("os.environ", {})
        assert machine.choose_device(device, 1) == device
        assert ("TORCH_CUDNN_SDPA_DEPRIORITIZED" in machine.os.environ) == (device == "gpu")


@pytest.mark.parametrize("processes", [6, 32])
def test_an_impossible_number_of_cards_is_refused(plan, processes):
    with pytest.raises(RecipeError) as refused:
        plan(processes, 80)
    possible = re.search(r"possible numbers: ([\d, ]+)", str(refused.value))[1].split(", ")
    # by trying every pair of a share and an update frequency
    shares = range(1024, 3585)
    expected = [n for n in range(1, 65) if any(28672 % (n * share) == 0 for share in shares)]
    assert [int(number) for number in possible] == expected
    assert processes not in expected


@pytest.mark.parametrize(
    ("cards", "given", "message"),
    [
        (
            (4, 80),
            {"max_tokens": 5000},
            "--max-tokens 5000 on 4 processes does not give 28672 tokens per update; "
            "possible with --max-tokens 7168, 3584, 1792, 1024",
        ),
        ((6, 80), {"max_tokens": 4096}, "does not give 28672 tokens per update; no number does on so many"),
        ((4, 70), {"precision": "bf16"}, "bf16 needs a GPU of compute capability 8.0, this one has 7.0"),
        ((4, 80), {"gpus": 8}, "--gpus 8: this machine has 4"),
        ((0,), {"device": "gpu"}, "torch sees no GPU here"),
    ],
)
def test_what_the_machine_cannot_do_is_refused(plan, cards, given, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        plan(*cards, **given)


@pytest.mark.parametrize("units", ["none", "some"])
def test_a_cpu_trains_in_bf16_where_it_has_units_for_it(plan, units, monkeypatch):
    monkeypatch.setenv(processor.ASSUMED, units)
    amp = {"none": [], "some": ["--amp"]}[units]
    assert plan(0).training_flags()[7:] == amp
    assert "--amp" not in plan(0, cpu_precision="fp32").training_flags()
    if units == "none":
        with pytest.raises(RecipeError, match="give --precision fp32"):
            plan(0, precision="bf16")
    else:
        assert plan(0, precision="bf16").training_flags()[-1] == "--amp"


# --- the folder of a run ---------------------------------------------------------------------------------------------


def test_a_folder_names_the_settings_that_differ(tmp_path):
    folder = tmp_path / "run"
    wanted = {"common.seed": 1, "optimization.lr": [0.005], "name": "toy"}
    keep_settings(folder, wanted)
    keep_settings(folder, wanted)
    with pytest.raises(RecipeError) as refused:
        keep_settings(folder, {**wanted, "common.seed": 2, "model.dropout": 0.1})
    assert "common.seed 1 (requested: 2), model.dropout None (requested: 0.1);" in str(refused.value)
    assert kept_settings(folder) == wanted


@pytest.mark.parametrize("content", [None, "", "[", "a", b"\xff"])
def test_results_without_readable_settings_are_not_taken_for_a_new_run(content, tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    assert kept_settings(folder) == {}
    (folder / "checkpoints" / "checkpoint_1_10.pt").touch()
    if content is not None:
        (folder / "settings.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecipeError, match=r"settings.yaml is (damaged or empty|missing next to checkpoints/).*: mv "):
        keep_settings(folder, {"common.seed": 1})


def test_one_run_at_a_time_works_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_PATIENCE", 0.3)
    stale = tmp_path / f"scores.json.{16 * 'a'}.tmp"
    stale.touch()
    program = "import sys; from pathlib import Path; from runner.folder import locked\n"
    program += f"with locked(Path({str(tmp_path)!r})): print('locked', flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "recipes")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        assert not stale.exists()
        with pytest.raises(RecipeError, match="another run is active in"), locked(tmp_path):
            pass
        other.kill()  # which leaves the file, but not the lock
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_what_a_killed_runner_has_started_dies_with_it():
    program = "import sys, time; from runner.process import start; print(start(['sleep', '100']).pid, flush=True)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "recipes")}
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}; time.sleep(100)"], env=environment, stdout=subprocess.PIPE, text=True
    ) as runner:
        child = int(runner.stdout.readline())
        os.kill(child, 0)  # it is there
        runner.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_command_is_measured_and_its_output_kept(tmp_path):
    script = "import sys; print('hello'); block = bytearray(50_000_000); sys.exit(3)"
    for _ in range(2):
        assert run_logged([sys.executable, "-c", script], tmp_path / "log", tmp_path / "usage") == 3
    assert (tmp_path / "log").read_text() == "hello\nhello\n"
    lines = [json.loads(line) for line in (tmp_path / "usage").read_text().splitlines()]
    assert [line["log_from"] for line in lines[::2]] == [0, 6]
    assert [line["exit_status"] for line in lines[1::2]] == [3, 3]
    assert all(50_000_000 < line["peak_memory_bytes"] < 10**9 and line["wall_seconds"] > 0 for line in lines[1::2])


@pytest.mark.parametrize(("program", "status"), [("raise SystemExit(3)", 3), ("import time; time.sleep(100)", 75)])
def test_a_signal_reaches_what_runs_and_the_log_has_its_words(program, status, tmp_path):
    told = "import sys; print('begun'); sys.stdout.flush()"
    text = "from pathlib import Path; from runner.process import run_logged; import sys\n"
    text += f"sys.exit(run_logged([sys.executable, '-c', {f'{told}; {program}'!r}], Path({str(tmp_path / 'log')!r})))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "recipes")}
    process = subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    if status == 75:
        process.terminate()
    assert process.wait(60) == status
    assert (tmp_path / "log").read_text() == "begun\n"


def test_runs_at_a_time_have_cards_of_their_own_as_far_as_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "cards", lambda: Cards(4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    program = "import os, pathlib, sys, time; at = pathlib.Path(sys.argv[1]); at.write_text(os.environ[sys.argv[2]])"
    program += "\nwhile len(list(at.parent.glob('[ab]'))) < 2: time.sleep(0.01)"
    names = {name: [sys.executable, "-c", program, tmp_path / name, "CUDA_VISIBLE_DEVICES"] for name in "abc"}
    assert sweep.make(names, tmp_path / "runs", jobs=2, gpus=2) == []
    assert {(tmp_path / name).read_text() for name in "ab"} == {"4,5", "6,7"}
    assert (tmp_path / "c").read_text() in ("4,5", "6,7")
    assert sweep.shares(3, 3) == ["4,5,6", "7,4,5", "6,7,4"]
    assert sweep.shares(3, 0) == sweep.shares(1, 1) == []
    monkeypatch.setattr(sweep, "cards", lambda: Cards(1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert sweep.shares(3, 1) == ["0"] * 3


def test_a_sweep_that_is_stopped_waits_until_its_runs_have_saved(tmp_path):
    run = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.5), open({!r}, 'w'), sys.exit(75)))"
    run += "; sys.stdout.write('begun\\n'); sys.stdout.flush(); time.sleep(100)"
    text = "import sys; from runner.process import forward_signals, start; from runner.sweep import wait_for\n"
    text += "running = {}\n"
    for name in ("a", "b"):
        program = run.format(str(tmp_path / name))
        text += f"running[{name!r}] = start([sys.executable, '-c', {program!r}])\n"
    text += """
import signal, threading, time
def tell():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.01)
    sys.stdout.write("waiting\\n")
    sys.stdout.flush()
threading.Thread(target=tell).start()
with forward_signals(running.values()) as received:
    wait_for(running, 1, received)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "recipes")}
    process = subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True)
    assert sorted(process.stdout.readline() for _ in range(3)) == ["begun\n", "begun\n", "waiting\n"]
    process.terminate()
    assert process.wait(60) == 75
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]

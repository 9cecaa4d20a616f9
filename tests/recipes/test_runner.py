"""The runner: division of the batch, precision, folder and lock of a run, child processes and signals."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from collab_fairseq.records.training import read_usage
from fairseq_modern import files, processor
from fairseq_modern.errors import UserError
from recipes.runner import evaluation, machine, sweep
from recipes.runner.folder import keep_settings, kept_settings, locked
from recipes.runner.launch import gpu_shares, run_logged
from recipes.runner.machine import Gpus, Machine
from recipes.runner.recipe_run import Average, RecipeRun
from tests import forked
from tests.common import ROOT


@pytest.fixture
def plan(monkeypatch):
    """Divide the paper's batch on a machine with simulated GPUs."""

    def plan(*gpus, **options):
        monkeypatch.setattr(machine, "find_gpus", lambda: Gpus(*gpus))
        planned = Machine(threads=1, **options)
        planned.find_gpus()
        planned.choose_precision()
        planned.split_batch(28672, 3584)
        return planned

    monkeypatch.setattr("os.environ", dict(os.environ))
    return plan


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        ((8, 80), {}, "cuda 8 3584 1 bf16"),
        ((7, 80), {}, "cuda 7 2048 2 bf16"),
        ((28, 80), {}, "cuda 28 1024 1 bf16"),
        ((1, 80, 47), {}, "cuda 1 3584 8 bf16"),
        ((1, 80, 79), {}, "cuda 1 7168 4 bf16"),
        ((1, 80, 139), {}, "cuda 1 14336 2 bf16"),
        ((1, 80, 139), {"device": "cpu", "cpu_precision": "fp32"}, "cpu 1 3584 8 fp32"),
        ((0,), {"device": "cpu", "gpus": 4, "cpu_precision": "fp32"}, "cpu 4 3584 2 fp32"),
        ((0,), {"default_gpus": 4, "cpu_precision": "fp32"}, "cpu 1 3584 8 fp32"),
        ((8, 80), {"default_gpus": 4}, "cuda 4 3584 2 bf16"),
        ((2, 80), {"default_gpus": 4}, "cuda 2 3584 4 bf16"),
        ((0,), {"gpus": 4, "dry_run": True, "precision": "fp16"}, "cuda 4 3584 2 fp16"),
        ((4, 70), {"nodes": 2}, "cuda 8 3584 1 fp16"),
        ((4, 80), {"max_tokens": 7168}, "cuda 4 7168 1 bf16"),
        ((4, 70), {"precision": "fp32"}, "cuda 4 3584 2 fp32"),
        ((4, 90), {"gpu_precision": "fp16"}, "cuda 4 3584 2 fp16"),
    ],
)
def test_batch_size_is_kept_and_precision_fits_the_gpus(plan, gpus, options, expected):
    made = plan(*gpus, **options)
    assert f"{made.device} {made.processes} {made.max_tokens} {made.update_freq} {made.precision}" == expected
    assert made.processes * made.max_tokens * made.update_freq == 4 * 3584 * 2
    # cuDNN's attention is slow for fairseq's own models on a GPU
    assert (os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1") == (made.device == "cuda")


@pytest.mark.parametrize("processes", [6, 32])
def test_rejects_numbers_of_gpus_that_cannot_yield_the_batch(plan, processes):
    with pytest.raises(UserError) as error:
        plan(processes, 80)
    possible = re.search(r"possible numbers: ([\d, ]+)", str(error.value))[1].split(", ")
    # reference: try every pair of share and update frequency
    expected = [n for n in range(1, 65) if any(28672 % (n * share) == 0 for share in range(1024, 3585))]
    assert [int(number) for number in possible] == expected
    assert processes not in expected


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        ((4, 80), {"max_tokens": 5000}, "got 5000; possible: 7168, 3584, 1792, 1024"),
        ((4, 70), {"precision": "bf16"}, "bf16 needs a GPU of compute capability 8.0 or later; got 7.0"),
        ((4, 80), {"gpus": 8}, "--gpus must be at most 4, the GPUs that torch sees here; got 8"),
        ((0,), {"device": "gpu"}, "--device gpu: torch sees no GPU here"),
        ((0,), {"device": "cuda"}, "--device cuda: torch sees no GPU here"),
        ((0,), {"gpus": 4}, "--gpus 4: torch sees no GPU here (see collab doctor); --device cpu uses the CPU"),
    ],
)
def test_rejects_options_that_the_machine_does_not_support(plan, gpus, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        plan(*gpus, **options)


def test_a_slurm_job_with_gpus_does_not_train_on_the_cpu(plan, monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    with pytest.raises(UserError, match="this Slurm job has GPUs: torch sees no GPU here"):
        plan(0, default_gpus=1)
    assert plan(0, device="cpu").device == "cpu"
    assert plan(2, 80, default_gpus=1).gpus == 1
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "0")
    assert plan(0, default_gpus=1).device == "cpu"


@pytest.mark.parametrize(("units", "amp"), [("none", []), ("some", ["--amp"])])
def test_cpu_trains_in_bf16_only_with_native_support(plan, units, amp, monkeypatch):
    monkeypatch.setenv(processor.ASSUMED, units)
    assert plan(0).training_flags()[7:] == amp
    assert "--amp" not in plan(0, cpu_precision="fp32").training_flags()
    if amp:
        assert plan(0, precision="bf16").training_flags()[-1] == "--amp"
    else:
        with pytest.raises(UserError, match="give --precision fp32"):
            plan(0, precision="bf16")


@pytest.mark.parametrize("content", [None, b"", b"[", b"a", b"\xff"])
def test_results_without_readable_settings_are_not_taken_for_a_new_run(content, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert kept_settings(tmp_path) == {}
    (tmp_path / "checkpoints" / "checkpoint_1_10.pt").touch()
    if content is not None:
        (tmp_path / "settings.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"settings.yaml is (damaged or empty|missing next to checkpoints/).*: mv "):
        keep_settings(tmp_path, {"common.seed": 1})


def python(program):
    """Run a program that can import the runner in a new interpreter."""
    options = {"env": {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'recipes'}"}, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, **options)


def test_one_run_at_a_time_uses_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.3)
    stale = tmp_path / f"scores.json.{16 * 'a'}.tmp"
    stale.touch()
    with locked(tmp_path):
        assert not stale.exists()
        with pytest.raises(UserError, match="another run is active in"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG of Linux")
def test_children_die_with_a_killed_runner():
    program = "import time; from recipes.runner.launch import start; print(start(['sleep', '100']).pid, flush=True)"
    with python(f"{program}; time.sleep(100)") as runner:
        child = int(runner.stdout.readline())
        os.kill(child, 0)  # control: it exists
        runner.kill()
        runner.communicate(timeout=30)  # until the child, which writes to the same pipe, has ended


def test_resources_are_measured_and_output_is_appended(tmp_path):
    script = "import sys; print('hello'); block = bytearray(50_000_000); sys.exit(3)"
    for about in (None, {"precision": "bf16"}):
        assert run_logged([sys.executable, "-c", script], tmp_path / "log", tmp_path / "usage", about) == 3
    assert (tmp_path / "log").read_text() == "hello\nhello\n"
    lines = [json.loads(line) for line in (tmp_path / "usage").read_text().splitlines()]
    assert [line["log_to"] for line in lines[1::2]] == [6, 12]
    assert lines[::2] == [{"log_from": 0}, {"log_from": 6, "precision": "bf16"}]
    assert [line["exit_status"] for line in lines[1::2]] == [3, 3]
    assert all(50_000_000 < line["peak_memory_bytes"] < 10**9 and line["wall_seconds"] > 0 for line in lines[1::2])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG of Linux")
@pytest.mark.parametrize("previous", [b"", b'{"log_from": 0}\n{"wall_sec'])
def test_seconds_of_a_part_that_was_killed_with_the_runner(previous, tmp_path, monkeypatch):
    """The reference is the clock of the child, which the runner writes to the usage file until both are killed."""
    usage = tmp_path / "usage"
    usage.write_bytes(previous)
    child = "import time\nbegin = time.monotonic(); print(begin, flush=True)\n"
    child += "while True: print(time.monotonic() - begin, flush=True); time.sleep(0.01)"
    program = "import sys; from pathlib import Path; from recipes.runner.launch import run_logged\n"
    program += f"run_logged([sys.executable, '-c', {child!r}], *map(Path, {[str(tmp_path / 'log'), str(usage)]!r}))"
    with python(program) as runner:
        forked.wait_for(lambda: read_usage(usage)[-1].get("train_seconds", 0) > 1, runner)
        runner.kill()
        runner.communicate(timeout=30)  # until the child, which writes to the same log, has ended
    trained = float((tmp_path / "log").read_text().split()[-2])
    part = read_usage(usage)[-1]
    assert 1 < part["train_seconds"] < trained + 0.5
    assert part["train_seconds"] < part["wall_seconds"]
    assert len(read_usage(usage)) == (2 if previous else 1)
    run_logged(["true"], tmp_path / "log", usage)  # the next part
    assert read_usage(usage)[-2] == part
    assert read_usage(usage)[-1]["log_from"] >= part["log_to"] > 0


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 20),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_record_is_an_error_with_the_command_that_recovers(damage, tmp_path):
    record = tmp_path / "record.json"
    shutil.copy(next((ROOT / "results" / "runs").glob("toy-*.json")), record)
    assert set(evaluation.recorded_scores(record)) == {"test"}  # control
    DAMAGES[damage](record)
    with pytest.raises(UserError, match=r"record.json is no complete record; run: rm ") as error:
        evaluation.recorded_scores(record)
    command = re.search("run: (.*) and then the same command", str(error.value))[1]
    subprocess.run(command, shell=True, check=True)
    assert evaluation.recorded_scores(record) == {}


@pytest.mark.parametrize(("ending", "status"), [("raise SystemExit(3)", 3), ("import time; time.sleep(100)", 75)])
def test_signals_are_forwarded_and_the_log_is_complete(ending, status, tmp_path):
    child = f"print('begun', flush=True); {ending}"
    program = "from pathlib import Path; from recipes.runner.launch import run_logged; import sys\n"
    program += f"sys.exit(run_logged([sys.executable, '-c', {child!r}], Path({str(tmp_path / 'log')!r})))"
    process = python(program)
    assert process.stdout.readline() == "begun\n"
    if status == 75:
        process.terminate()
    assert process.wait(60) == status
    assert (tmp_path / "log").read_text() == "begun\n"


def test_parallel_runs_use_separate_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "find_gpus", lambda: Gpus(4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    program = "import os, pathlib, sys, time; file = pathlib.Path(sys.argv[1])\n"
    program += "file.write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    program += "while len(list(file.parent.glob('[ab]'))) < 2: time.sleep(0.01)"
    runs = {name: [sys.executable, "-c", program, tmp_path / name] for name in "abc"}
    assert sweep.make(runs, tmp_path / "runs", jobs=2, gpus=2, updates=1) == []
    assert {(tmp_path / name).read_text() for name in "ab"} == {"4,5", "6,7"}
    assert (tmp_path / "c").read_text() in ("4,5", "6,7")
    assert gpu_shares(3, 3, 4) == ["4,5,6", "7,4,5", "6,7,4"]
    assert gpu_shares(3, 1, 0) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_shares(3, 1, 1) == ["0", "0", "0"]


def test_stopped_sweep_waits_until_its_runs_have_saved(tmp_path):
    child = "import signal, time; signal.signal(15, lambda *_: (time.sleep(0.5), open({!r}, 'w'), exit(75)))\n"
    child += "print('begun', flush=True); time.sleep(100)"
    saved = [tmp_path / "a" / "saved", tmp_path / "b" / "saved"]
    runs = {file.parent.name: [sys.executable, "-c", child.format(str(file))] for file in saved}
    program = "from pathlib import Path; from recipes.runner.sweep import make\n"
    process = python(f"{program}make({runs!r}, Path({str(tmp_path)!r}), jobs=2, gpus=0, updates=1)")
    begun = [file.with_name("messages.txt") for file in saved]
    forked.wait_for(lambda: all(file.exists() and file.read_text() == "begun\n" for file in begun), process)
    process.terminate()
    assert process.wait(60) == 75
    assert all(file.exists() for file in saved)


def test_a_sweep_finishes_model_and_translations_of_an_interrupted_run(tmp_path):
    run, corpus = tmp_path / "run", tmp_path / "corpus"
    run.mkdir()
    corpus.mkdir()
    recipe = {"blind": ["unseen"], "blind_sources": None, "corpus": str(corpus)}
    cfg = OmegaConf.create({"recipe": recipe, "task": {"source_lang": "en", "target_lang": "de"}})
    without_blind = OmegaConf.merge(cfg, {"recipe": {"blind": []}})

    def finished(settings=cfg):
        return sweep.is_finished(run, settings)

    assert not finished(without_blind)
    (run / "record.json").touch()
    assert finished()  # a copied record
    (run / "averaged.pt").touch()
    assert not finished()
    assert finished(without_blind)
    (run / "model").mkdir()
    assert finished()  # the text is not available
    (corpus / "unseen.en.gz").touch()
    assert not finished()
    cfg.recipe.corpus = None
    assert finished()
    cfg.recipe.blind_sources = str(corpus)
    assert not finished()
    (run / "hypotheses").mkdir()
    (run / "hypotheses" / "unseen.de.gz").touch()
    assert finished()


@pytest.fixture
def planned(tmp_path):
    """A run without training."""
    recipe = dict.fromkeys(("tests", "valid_tests", "training_module", "blind_sources"), None)
    recipe.update(valid=False, average=5, blind=["unseen"], corpus=str(tmp_path), source_option="--corpus")
    cfg = {"recipe": recipe, "common": {"seed": 1}, "model": {"attention_from": None}, "checkpoint": {}}
    cfg.update(task={"source_lang": "en", "target_lang": "de"}, optimization={"max_update": 2}, generation={"beam": 1})
    places = {"output": tmp_path, "data": tmp_path}
    return RecipeRun(OmegaConf.create(cfg), name="x", **places, machine=Machine(threads=1), command_line="y")


def test_a_run_without_test_sets_has_a_record(planned, monkeypatch):
    content = {"schema": 1, "kind": "training", "name": "x", "parts": {"scores": {}}}
    for name in ("make_record", "load_average", "losses"):
        monkeypatch.setattr(evaluation, name, lambda *_, **__: content)
    evaluation.record(planned, Average(None, "update", 5))
    assert json.loads((planned.output / "record.json").read_text()) == content
    monkeypatch.setattr(evaluation, "make_record", None)
    evaluation.record(planned, Average(None, "update", 5))  # control: an existing record stays


def test_blind_translations_have_the_search_of_the_run_and_are_kept_if_they_cannot_be_repeated(planned, monkeypatch):
    source, translations = planned.output / "unseen.en.gz", planned.output / "hypotheses" / "unseen.de.gz"
    translations.parent.mkdir()
    source.write_bytes(gzip.compress(b"a\n"))
    commands = []
    monkeypatch.setattr(evaluation, "run_logged", lambda command, **_: commands.append(command))
    evaluation.translate_blind(planned, "unseen")
    assert commands[0][-2:] == ["--beam", 1]
    translations.unlink()
    beam = planned.cfg.pop("generation")
    evaluation.translate_blind(planned, "unseen")  # both programs have the same defaults
    assert commands[1] == commands[0][:-2]
    planned.cfg.generation = beam
    model = planned.output / "model"
    model.mkdir()
    (model / "record.json").write_text("former")
    (planned.output / "record.json").write_text("other settings of decoding")
    source.unlink()
    with pytest.raises(UserError, match=r"unseen.de.gz must be made again, without a text: give --corpus"):
        evaluation.publish(planned)
    assert translations.is_file()
    source.write_bytes(gzip.compress(b"a\n"))
    monkeypatch.setattr(evaluation, "export", lambda *_: None)
    monkeypatch.setattr(evaluation, "translate_blind", lambda *_: None)
    evaluation.publish(planned)
    assert not translations.exists()


def test_evaluation_has_the_training_files_of_the_run_in_the_folder(planned):
    module = "recipes/curve/masked_mixing"
    existing = {"name": "z", "common.seed": 2, "optimization.max_update": 4, "recipe.average": 5}
    keep_settings(planned.output, {**existing, "checkpoint.save_interval_updates": 1, "recipe.training_module": module})
    assert evaluation.file_settings(planned) == {}
    planned.continue_in_folder(other_average=False)
    assert evaluation.file_settings(planned)["recipe.training_module"]["file"] == "__init__.py"

"""The WMT14 recipe: its commands, the rehearsal, and jobs under a simulated Slurm."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runner import evaluation
from runner.settings import RecipeError

from collab_fairseq import checkpoints
from collab_fairseq.records.rows import load_run
from tests.common import ROOT, run
from tests.fairseq import forked
from tests.recipes import played_slurm

RECIPES = ROOT / "recipes"
WMT14 = RECIPES / "wmt14_en_de"
PYTHON = ["--python", sys.executable]


def test_step_without_a_run_names_the_step_before(tmp_path):
    flags = ["--output", tmp_path / "run", "--device", "cpu", *PYTHON]
    done = run("bash", WMT14 / "average.sh", *flags, check=False)
    assert f"there is no run in {tmp_path / 'run'}; train.sh makes it" in done.stderr


def test_reference_lengths_identify_the_published_test_set(tmp_path, capsys, caplog):
    lengths = {"compound-split BLEU": 64496, "sacreBLEU": 62688}
    scores = {"scores": [{"metric": metric, "ref_len": length} for metric, length in lengths.items()]}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    shutil.copy(ROOT / "data_prep" / "wmt16_en_de.tsv", tmp_path / "prepared.txt")
    files = "newstest2014", tmp_path / "scores.json", tmp_path / "prepared.txt"
    evaluation.check_lengths(*files)
    assert capsys.readouterr().out.count("as in published results") == 2
    scores["scores"][1]["ref_len"] = 62689
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(RecipeError, match="must have 62688 tokens for sacreBLEU; got 62689"):
        evaluation.check_lengths(*files)
    (tmp_path / "prepared.txt").write_text("# a miniature\n")
    caplog.set_level("INFO", "recipe")
    evaluation.check_lengths(*files)
    assert "reference lengths not checked" in caplog.text


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """Folder and output of a rehearsal with two models and ten updates each."""
    folder = tmp_path_factory.mktemp("rehearsal") / "run"
    small = ["--updates", 10, "--train", 320, "--test", 10, "--runs", "none:64 encoder_cross_decoder:16"]
    return folder, run("bash", WMT14 / "rehearse.sh", "--output", folder, *small, *PYTHON, timeout=900, fresh=True)


NAMES = ["none-dk64-s1-u10", "encoder_cross_decoder-dk16-s1-u10"]


@pytest.mark.slow
def test_rehearsal_ends_with_the_tables(rehearsed):
    folder, done = rehearsed
    for name in NAMES:
        record = load_run(folder / name / "record.json")
        metrics = [score["metric"] for score in record["scores"]["newstest2014"]["scores"]]
        assert metrics == ["tokenised BLEU", "compound-split BLEU", "sacreBLEU", "chrF", "chrF++", "TER"]
        assert [entry["num_updates"] for entry in record["averaged_from"]] == [10, 9, 8]
        assert record["training"]["updates"] == 10
        assert [point["updates"] for point in record["curves"]["valid"]][-1] == 10
        for part, averaged in (("u3", [3, 2, 1]), ("u6", [6, 5, 4]), ("epochs2", [8, 4])):
            other = load_run(folder / name / f"record.{part}.json")
            assert [entry["num_updates"] for entry in other["averaged_from"]] == averaged
            assert other["curves"]["valid"][-1]["updates"] == (10 if part == "epochs2" else averaged[0])
    averages = re.findall(r"^\| (?:standard|collaborative)", (folder / "averages.md").read_text(), re.MULTILINE)
    assert len(averages) == len(list(folder.glob("*/record*.json"))) > 6
    for page in ("table.md", "averages.md"):
        assert (folder / page).read_text(encoding="utf-8") in done.stdout
    for row in ("standard, authors' initialisation +\\| 64", "collaborative, authors' initialisation +\\| 16"):
        assert re.search(rf"\| {row} +\| 10 ", done.stdout)
    assert "killed (SIGKILL); the same command resumes it" in done.stderr
    assert re.search(r"training, stage \d of 3: resuming from checkpoint_(last|best|1_\d)\.pt", done.stderr)


@pytest.mark.slow
def test_averages_of_other_numbers_have_separate_files(rehearsed):
    run_folder = rehearsed[0] / NAMES[0]
    before = (run_folder / "averaged.pt").read_bytes()
    flags = ["--config", WMT14 / "rehearsal.yaml", "--output", run_folder, "--data", rehearsed[0] / "data", *PYTHON]
    run("bash", WMT14 / "average.sh", *flags, "--average", 2)
    (run_folder / "averaged.last2.pt").unlink()  # as if interrupted before the end
    run("bash", WMT14 / "average.sh", *flags, "--average", 2)
    state = checkpoints.load(run_folder / "averaged.last2.pt")
    assert [entry["num_updates"] for entry in state["extra_state"]["averaged_from"]] == [10, 9]
    assert (run_folder / "averaged.pt").read_bytes() == before


@pytest.fixture
def slurm(tmp_path):
    return played_slurm.job(tmp_path)


@pytest.mark.parametrize(
    ("given", "cores"), [({"SLURM_CPUS_PER_TASK": "6"}, 6), ({"SLURM_CPUS_ON_NODE": "5"}, 5), ({}, 3)]
)
def test_srun_gives_each_node_all_its_cores(slurm, given, cores, tmp_path):
    slurm.update({"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "", **given})
    flags = ["--gpus", 1, "--output", tmp_path / "run", "--dry-run", *PYTHON]
    done = run("bash", WMT14 / "train.sh", *flags, env=slurm).stdout
    assert f" srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --kill-on-bad-exit=1 --cpus-per-task {cores} " in done
    assert done.startswith("env OMP_NUM_THREADS=3 FAIRSEQ_MODERN_SURVIVAL=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=100 ")


@pytest.mark.slow
def test_job_on_two_nodes_saves_on_sigterm_and_is_requeued(rehearsed, slurm, tmp_path):
    data = ["--data", rehearsed[0] / "data", "--reference", rehearsed[0] / "miniature" / "references.de"]
    flags = ["--output", tmp_path / "run", *data, "--updates", 400, *PYTHON, "checkpoint.save_interval_updates=5"]
    command = [str(word) for word in ("bash", RECIPES / "slurm" / "run.sbatch", "wmt14_en_de", *flags)]
    options = {"env": {**os.environ, **slurm}, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    first = subprocess.Popen(command, **options)
    forked.wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("checkpoint_*_5.pt")), first)
    first.send_signal(signal.SIGTERM)  # as Slurm does before a time limit, to the script alone
    output = first.communicate(timeout=200)[0]
    assert first.returncode == 0, output[-3000:]
    log = Path(slurm["SLURM_LOG"]).read_text().splitlines()
    assert log[-1] == f"scontrol requeue {slurm['SLURM_JOB_ID']}"
    assert "2 CPU process(es) x 1024 tokens x update-freq 1" in output
    (srun,) = [line for line in log if line.startswith("srun")]
    assert f"--master_addr 127.0.0.1 --master_port {20000 + int(slurm['SLURM_JOB_ID']) % 10000}" in srun
    assert "--nodes 2 --ntasks 2 --ntasks-per-node 1" in srun
    assert "training on 2 devices" in output

    reached = checkpoints.load(tmp_path / "run" / "checkpoints" / "checkpoint_last.pt")
    updates = reached["optimizer_history"][-1]["num_updates"]
    assert 5 <= updates < 400


def test_job_must_be_submitted_from_the_repository(slurm, tmp_path):
    slurm["SLURM_SUBMIT_DIR"] = str(tmp_path)
    done = run("bash", RECIPES / "slurm" / "run.sbatch", "wmt14_en_de", env=slurm, check=False)
    assert done.returncode == 1
    assert "submit from the root of the repository" in done.stderr
    help_text = run("bash", RECIPES / "slurm" / "run.sbatch", "--help").stdout
    assert "sbatch --gpus-per-node 4 recipes/slurm/run.sbatch" in help_text


def test_commands_of_the_cluster_page_work():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    commands = re.findall(r"(recipes/wmt14_en_de/\w+\.sh) ([^`\n]*)", page)
    assert len(commands) == 3
    for script, rest in commands:
        flags = [*shlex.split(rest), *([] if "sweep" in script else ["--device", "gpu"]), "--dry-run", *PYTHON]
        done = run("bash", ROOT / script, *flags, env={"RECIPE_CONFIG": ""})
        assert done.stdout.count("recipes/slurm/run.sbatch" if "sweep" in script else "--max-update 200 ") in (1, 24)


def test_the_eight_runs_of_the_paper_can_be_submitted(tmp_path):
    submit = tmp_path / "submit"
    submit.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/submitted\n')
    submit.chmod(0o755)
    flags = ["--submit", f"{submit} --partition gpu", "--seeds", "1,2", "--output", tmp_path / "runs", *PYTHON]
    run("bash", WMT14 / "sweep.sh", *flags, env={"RECIPE_CONFIG": ""})
    expected = [
        f"--partition gpu {RECIPES}/slurm/run.sbatch wmt14_en_de --heads {heads} --key-dim {key_dim} --seed {seed}"
        f" --output {tmp_path}/runs/{heads}-dk{key_dim}-s{seed}-u300000 "
        for seed in (1, 2)
        for key_dim in (512, 256, 128, 64)
        for heads in ("none", "encoder_cross_decoder")
    ]
    lines = (tmp_path / "submitted").read_text().splitlines()
    assert all(line.startswith(prefix) for line, prefix in zip(lines, expected, strict=True))


def test_nodes_outside_slurm_need_an_address(tmp_path):
    flags = ["--config", WMT14 / "rehearsal.yaml", "--output", tmp_path / "run", "--nodes", 2, "--gpus", 1, "--dry-run"]
    done = run("bash", WMT14 / "train.sh", *flags, *PYTHON, check=False)
    assert "--nodes 2 outside Slurm needs --master HOST:PORT" in done.stderr
    command = run("bash", WMT14 / "train.sh", *flags, *PYTHON, "--master", "first:1234", "--node-rank", 1).stdout
    assert "--nproc_per_node 1 --nnodes 2 --master_addr first --master_port 1234 --node_rank 1" in command

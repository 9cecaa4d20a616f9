"""The WMT14 recipe: its commands, the rehearsal, and jobs under a simulated Slurm."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.records.rows import load_run
from fairseq_modern.errors import UserError
from recipes.runner import evaluation
from tests import forked
from tests.common import ROOT, program, rejected, run

RECIPES = ROOT / "recipes"
WMT14 = RECIPES / "wmt14_en_de"


def test_reference_lengths_identify_the_published_test_set(tmp_path, capsys, caplog):
    def check(sacrebleu, prepared):
        lengths = {"compound-split BLEU": 64496, "sacreBLEU": sacrebleu}
        scores = {"scores": [{"metric": metric, "ref_len": length} for metric, length in lengths.items()]}
        (tmp_path / "scores.json").write_text(json.dumps(scores))
        evaluation.check_lengths("newstest2014", tmp_path / "scores.json", prepared)

    check(62688, ROOT / "data_prep" / "wmt16_en_de.tsv")
    assert capsys.readouterr().out.count("as in published results") == 2
    with pytest.raises(UserError, match="must have 62688 tokens for sacreBLEU; got 62689"):
        check(62689, ROOT / "data_prep" / "wmt16_en_de.tsv")
    caplog.set_level("INFO", "recipe")
    check(62689, tmp_path / "nothing.tsv")
    assert "reference lengths not checked" in caplog.text


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """Folder and output of a rehearsal with two models and ten updates each."""
    folder = tmp_path_factory.mktemp("rehearsal") / "run"
    small = ["--updates", 10, "--train", 320, "--test", 10, "--runs", "none:64 encoder_cross_decoder:16"]
    return folder, run("bash", WMT14 / "run.sh", "rehearse", "--output", folder, *small, timeout=900, fresh=True)


def test_rehearsal_rejects_other_sizes_of_its_corpus(tmp_path):
    (tmp_path / "settings.yaml").write_text("--train: 320\n--test: 10\n")
    sizes = ["--train", 640, "--test", 10]
    done = program("recipes", "wmt14_en_de", "rehearse", "--output", tmp_path, *sizes)
    rejected(done, "--train 320 (requested: 640)")
    assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]


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


SRUN = r"""#!/usr/bin/env bash
# simulates srun: runs the command once per node, all on this machine; kills it on SIGTERM, forwards SIGUSR1 to all
# processes
set -m
echo "srun $*" >>"$SLURM_LOG"
while [ $# -gt 0 ]; do
    case $1 in --nodes) nodes=$2 ;; --ntasks* | --cpus-per-task) ;; --*) shift && continue ;; *) break ;; esac
    shift 2
done
pids=()
trap 'kill -KILL -- "${pids[@]/#/-}"' TERM
trap 'kill -USR1 -- "${pids[@]/#/-}"' USR1
for ((node = 0; node < nodes; node++)); do SLURM_NODEID=$node SLURM_PROCID=$node "$@" & pids+=($!); done
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
    while kill -0 "$pid" 2>/dev/null; do wait "$pid" || status=$?; done
done
exit "$status"
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$SLURM_LOG"
if [ "$1 $2" = "show hostnames" ]; then printf '127.0.0.1\\nelsewhere\\n'; fi
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The environment of a job on two nodes. srun and scontrol are scripts that write to the returned log."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        program = tmp_path / name
        program.write_text(text)
        program.chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_LOG": tmp_path / "slurm.log",
        "SLURM_JOB_ID": 1_230_000 + os.getpid() % 10000,
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_GPUS_ON_NODE": 1,
        "SLURM_SUBMIT_DIR": ROOT,
        "RECIPE_CONFIG": WMT14 / "rehearsal.yaml",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "slurm.log"


@pytest.mark.parametrize(("variable", "cores"), [("SLURM_CPUS_PER_TASK", 6), ("SLURM_CPUS_ON_NODE", 5)])
def test_srun_starts_one_runner_per_node_with_all_its_cores(slurm, variable, cores, tmp_path):
    unset = {"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": ""}
    job = {"OMP_NUM_THREADS": "3", **unset, variable: str(cores)}
    words = ["wmt14_en_de", "--output", tmp_path / "run", "--dry-run"]
    done = run("bash", RECIPES / "slurm" / "run.sbatch", *words, env=job).stdout
    _, srun = slurm.read_text().splitlines()
    flags = f"--nodes 2 --ntasks 2 --ntasks-per-node 1 --cpus-per-task {cores} --kill-on-bad-exit=1 --wait=0"
    assert srun.startswith(f"srun {flags} {WMT14 / 'run.sh'} --gpus 1 --nodes 2 --output ")
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
    assert srun.endswith(f" --dry-run --master 127.0.0.1:{port}")
    for rank in (0, 1):
        launch = f" --nnodes 2 --master_addr 127.0.0.1 --master_port {port} --node_rank {rank} "
        assert sum(launch in line for line in done.splitlines()) == 3  # stages
    assert done.count("env OMP_NUM_THREADS=3 FAIRSEQ_MODERN_FAULT_TOLERANCE=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=100 ") == 6


def test_job_with_gpus_that_torch_does_not_see_is_rejected(slurm, tmp_path):
    job = {"SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2", "RECIPE_CONFIG": "", "CUDA_VISIBLE_DEVICES": ""}
    words = ["toy", "--output", tmp_path / "run"]
    rejected(run("bash", RECIPES / "slurm" / "run.sbatch", *words, env=job, check=False), "--gpus 2: torch sees no GPU")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_job_on_two_nodes_saves_before_its_time_limit_and_is_requeued(rehearsed, slurm, tmp_path):
    data = ["--data", rehearsed[0] / "data", "--reference", rehearsed[0] / "miniature" / "references.de"]
    flags = ["--output", tmp_path / "run", *data, "--updates", 400, "checkpoint.save_interval_updates=5"]
    command = [str(word) for word in ("bash", RECIPES / "slurm" / "run.sbatch", "wmt14_en_de", *flags)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    forked.wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("checkpoint_*_5.pt")), first)
    first.send_signal(signal.SIGUSR1)  # as Slurm does before a time limit, to the script alone
    output = first.communicate(timeout=200)[0]
    assert first.returncode == 0, output[-3000:]
    assert "2 CPU process(es) x 1024 tokens x update-freq 1" in output
    assert "training on 2 devices" in output
    log = slurm.read_text().splitlines()
    assert log[-1] == f"scontrol requeue {os.environ['SLURM_JOB_ID']}"
    assert sum(line.startswith("srun ") for line in log) == 1
    reached = checkpoints.load(tmp_path / "run" / "checkpoints" / "checkpoint_last.pt")
    assert 5 <= reached["optimizer_history"][-1]["num_updates"] < 400


@pytest.mark.parametrize("delay", ["", "trap 'sleep 0.2' DEBUG"], ids=["waiting", "starting"])
@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_only_the_signal_before_the_time_limit_requeues_a_job(slurm, number, requeued, delay, tmp_path):
    """Slurm sends SIGTERM for scancel. With a delay before every command, the signal arrives while the job starts."""
    (tmp_path / "delay").write_text(delay)
    recipe = tmp_path / "recipes" / "waiting"
    recipe.mkdir(parents=True)
    script = recipe / "run.sh"
    script.write_text("#!/bin/bash\ntrap 'exit 75' TERM\ntouch started\nwhile true; do sleep 0.02; done\n")
    script.chmod(0o755)
    job = {**os.environ, "SLURM_JOB_NUM_NODES": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
    job["BASH_ENV"] = str(tmp_path / "delay")
    command = ["bash", str(RECIPES / "slurm" / "run.sbatch"), "waiting"]
    process = subprocess.Popen(command, env=job, cwd=tmp_path)
    forked.wait_for((tmp_path / "started").exists, process)
    process.send_signal(number)
    assert process.wait(timeout=20) == (0 if requeued else 75)
    assert slurm.exists() == requeued


@pytest.mark.parametrize(
    "stop",
    [lambda pid: os.killpg(pid, signal.SIGUSR1), lambda pid: os.kill(pid, signal.SIGTERM)],
    ids=["srun", "scancel"],
)
def test_signals_to_a_node_become_one_sigterm_to_torchrun(stop, tmp_path):
    """srun forwards SIGUSR1 to all processes of a node; scancel may send SIGTERM to the first one alone."""
    torchrun, waiting = tmp_path / "torchrun", "while true; do sleep 0.02; done"
    torchrun.write_text(f"#!/bin/bash\ntrap 'echo saved; exit 75' TERM\n({waiting}) & touch started\n{waiting}\n")
    torchrun.chmod(0o755)
    program = f"from recipes.runner.launch import run_logged; run_logged([{str(torchrun)!r}])"
    options = {"env": {**os.environ, "PYTHONPATH": f"{ROOT}:{RECIPES}"}, "stdout": subprocess.PIPE, "text": True}
    node = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, start_new_session=True, **options)
    forked.wait_for((tmp_path / "started").exists, node)
    stop(node.pid)
    assert node.wait(timeout=20) == 75
    os.killpg(node.pid, signal.SIGTERM)  # the child is still there
    assert node.stdout.read() == "saved\n"


def test_job_must_be_submitted_from_the_repository(tmp_path):
    job = {"SLURM_SUBMIT_DIR": str(tmp_path)}
    done = run("bash", RECIPES / "slurm" / "run.sbatch", "wmt14_en_de", env=job, check=False)
    assert done.returncode == 1
    assert "submit from the root of the repository" in done.stderr
    help_text = run("bash", RECIPES / "slurm" / "run.sbatch", "--help").stdout
    assert "sbatch --gpus-per-node 4 recipes/slurm/run.sbatch" in help_text


def test_commands_of_the_cluster_page_work():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    commands = re.findall(r"recipes/wmt14_en_de/run\.sh ([^`\n]*)", page)
    assert len(commands) == 3
    for words in map(shlex.split, commands):
        flags = [*words, *([] if "sweep" in words else ["--device", "cuda"]), "--dry-run"]
        done = run("bash", WMT14 / "run.sh", *flags, env={"RECIPE_CONFIG": ""})
        assert done.stdout.count("recipes/slurm/run.sbatch" if "sweep" in words else "--max-update 200 ") in (1, 24)


def test_the_eight_runs_of_the_paper_can_be_submitted(tmp_path):
    submit = tmp_path / "submit"
    submit.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/submitted\n')
    submit.chmod(0o755)
    flags = ["--submit", f"{submit} --partition gpu", "--seeds", "1,2", "--output", tmp_path / "runs"]
    run("bash", WMT14 / "run.sh", "sweep", *flags, env={"RECIPE_CONFIG": ""})
    expected = [
        f"--partition gpu {RECIPES}/slurm/run.sbatch wmt14_en_de --heads {heads} --key-dim {key_dim} --seed {seed}"
        f" --output {tmp_path}/runs/{heads}-dk{key_dim}-s{seed}-u300000"
        for seed in (1, 2)
        for key_dim in (512, 256, 128, 64)
        for heads in ("none", "encoder_cross_decoder")
    ]
    assert (tmp_path / "submitted").read_text().splitlines() == expected


def test_nodes_need_an_address(tmp_path):
    flags = ["--config", WMT14 / "rehearsal.yaml", "--output", tmp_path / "run", "--nodes", 2, "--gpus", 1, "--dry-run"]
    done = run("bash", WMT14 / "run.sh", "train", *flags, check=False)
    assert "--nodes 2 needs --master HOST:PORT" in done.stderr
    command = run("bash", WMT14 / "run.sh", "train", *flags, "--master", "first:1234", "--node-rank", 1).stdout
    assert "--nproc_per_node 1 --nnodes 2 --master_addr first --master_port 1234 --node_rank 1" in command

"""A run on two nodes, simulated on the loopback interface: either node is killed, and both resume."""

import os
import signal
import subprocess

import pytest

from collab_fairseq import checkpoints
from tests.common import BIN, ROOT, free_port
from tests.fairseq import forked
from tests.fairseq.models import same_model

UPDATES = 24


def start(data, output, rank, port):
    """Start one node. Both use the same folder, as on a shared disk of a cluster."""
    command = [ROOT / "recipes" / "toy" / "run.sh", "--data", data, "--output", output, "--updates", UPDATES]
    command += ["--nodes", 2, "--gpus", 1, "--master", f"127.0.0.1:{port}", "--node-rank", rank, "--device", "cpu"]
    command += ["--average", 2, "--threads", 1, "recipe.batch_tokens=2400"]
    command += ["lr_scheduler.warmup_updates=4", "checkpoint.save_interval_updates=4"]
    environment = {**os.environ, "PYTHON": str(BIN / "python"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment.update(OMP_NUM_THREADS="1", RECIPE_CONFIG="")
    with open(output.with_suffix(f".{rank}.out"), "ab") as out:
        words = [str(word) for word in command]
        return subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True)


def both(data, output):
    port = free_port()
    return [start(data, output, rank, port) for rank in (0, 1)]


def finish(data, output):
    nodes = both(data, output)
    messages = output.with_suffix(".0.out")
    assert [node.wait(300) for node in nodes] == [0, 0], messages.read_text()[-3000:]


@pytest.mark.slow
def test_two_nodes_resume_after_either_is_killed(tmp_path):
    data = tmp_path / "data"
    sizes = ["--train", 200, "--valid", 10, "--test", 10, "--vocab-size", 250]
    prepare = [ROOT / "data_prep" / "toy.sh", *sizes, "--output", data, "--python", BIN / "python"]
    subprocess.run([str(word) for word in prepare], check=True, capture_output=True)
    finish(data, tmp_path / "uninterrupted")
    for rank, updates in ((0, 8), (1, 16)):
        nodes = both(data, tmp_path / "killed")
        saved = tmp_path / "killed" / "checkpoints"
        forked.wait_for(lambda saved=saved, updates=updates: list(saved.glob(f"checkpoint_*_{updates}.pt")), nodes[0])
        nodes[rank].send_signal(signal.SIGKILL)
        statuses = [node.wait(300) for node in nodes]
        assert statuses[rank] == -signal.SIGKILL
        assert statuses[1 - rank] != 0
        assert not list((tmp_path / "killed").glob("averaged*"))
    finish(data, tmp_path / "killed")
    states = [checkpoints.load(tmp_path / name / "averaged.pt") for name in ("uninterrupted", "killed")]
    assert [entry["num_updates"] for entry in states[1]["extra_state"]["averaged_from"]] == [24, 20]
    assert same_model(*(state["model"] for state in states))

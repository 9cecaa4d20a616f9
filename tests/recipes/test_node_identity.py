"""Nodes of one run are compared before they train."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_prep.folders import write_checksums
from fairseq_modern.errors import UserError
from recipes.runner import cli, training
from recipes.runner.nodes import joined
from tests.common import free_port


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "data-bin").mkdir(parents=True)
    for name in ("dict.en.txt", "train.en-de.en.bin"):
        (folder / "data-bin" / name).write_text(name)
    write_checksums(folder)
    return folder


@pytest.fixture
def start(tmp_path):
    """A function that starts two nodes, with data and options for each; returns what the second one would train, and
    the error messages of both."""

    def start(*nodes):
        master = ["--nodes", "2", "--gpus", "1", "--device", "cpu", "--master", f"127.0.0.1:{free_port()}"]
        runs = []
        for rank, (data, *words) in enumerate(nodes):
            argv = [*master, "--node-rank", str(rank), "--data", str(data), "--output", str(tmp_path / "run"), *words]
            runs.append(cli.plan_run("toy", "train", argv, cli.read_run("toy", "train", argv)[0]))

        def node(run):
            try:
                with joined(run.machine, 60) as others:
                    if run.machine.node_rank:
                        stage = others.next_stage(lambda: training.node_identity(run))
                        assert others.next_stage(None) is None
                        return (stage.end, stage.resumes, run.machine.torchrun_port), None
                    others.start(run.updates, True, training.node_identity(run))
                    return (run.updates, True, run.machine.torchrun_port), None
            except UserError as error:
                return None, str(error)

        with ThreadPoolExecutor(2) as threads:
            return tuple(zip(*threads.map(node, runs), strict=True))

    return start


def test_equal_nodes_train(data, start, tmp_path):
    moved = shutil.copytree(data, tmp_path / "local" / "data")
    stages, errors = start([data], [moved])
    assert errors == (None, None)
    assert stages[0] == stages[1]


@pytest.mark.parametrize("case", ["seed", "stages", "dictionary", "damaged", "no checksums"])
def test_different_nodes_do_not_train(case, data, start, tmp_path):
    words, copied = [], shutil.copytree(data, tmp_path / "copied")
    file = copied / "data-bin" / "dict.en.txt"
    message = f"node 1: {file} is missing, damaged or not listed in SHA256SUMS"
    if case == "seed":
        words = ["--seed", "2"]
        message = "common.seed must be the same on all nodes; got 1 on node 0 and 2 on node 1"
    elif case == "stages":
        words = ["--stages", "2"]
        message = "stages must be the same on all nodes; got [1500] on node 0 and [750, 1500] on node 1"
    elif case == "no checksums":
        (copied / "SHA256SUMS").unlink()
        message = f"node 1: {copied} has no SHA256SUMS; prepare the data again"
    else:
        file.write_text("another")
    if case == "dictionary":
        (copied / "SHA256SUMS").unlink()
        write_checksums(copied)
        message = "data must be the same on all nodes; got "
    _, errors = start([data], [copied, *words])
    assert all(error.startswith(message) for error in errors)

"""Nodes of one run are compared before they train."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from folders import write_checksums

from tests.common import ROOT, free_port, run

NODE = ROOT / "recipes" / "runner" / "node.py"
SETTINGS = {"common.seed": 1, "max_tokens": 2000}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "data-bin").mkdir(parents=True)
    for name in ("dict.en.txt", "train.en-de.en.bin"):
        (folder / "data-bin" / name).write_text(name)
    write_checksums(folder)
    return folder


def start(nodes, tmp_path):
    """Start node.py on several nodes: (settings, data) of each. The first process hosts the store, as torchrun does."""
    program = tmp_path / "fairseq-train"
    program.write_text("import os, sys; print(os.environ['RANK'], *sys.argv[2:])")
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_RANK": "0"}
    common.update({"WORLD_SIZE": str(len(nodes)), "GROUP_WORLD_SIZE": str(len(nodes))})

    def node(rank):
        settings, data = nodes[rank]
        words = [json.dumps(settings), program, data / "data-bin", "--cpu"]
        env = {**common, "RANK": str(rank), "GROUP_RANK": str(rank)}
        return run("python", NODE, *words, env=env, check=False, timeout=60)

    with ThreadPoolExecutor(len(nodes)) as threads:
        return list(threads.map(node, range(len(nodes))))


def test_equal_nodes_train(data, tmp_path):
    moved = shutil.copytree(data, tmp_path / "local" / "data")
    done = start([(SETTINGS, data), (SETTINGS, moved)], tmp_path)
    assert [(each.returncode, each.stdout) for each in done] == [(0, "0 --cpu\n"), (0, "1 --cpu\n")]


@pytest.mark.parametrize("case", ["seed", "damaged", "other"])
def test_different_nodes_do_not_train(case, data, tmp_path):
    settings, copied = dict(SETTINGS), shutil.copytree(data, tmp_path / "copied")
    file = copied / "data-bin" / "train.en-de.en.bin"
    message = f"node 1: {file} is missing, damaged or not listed in SHA256SUMS"
    if case == "seed":
        settings["common.seed"] = 2
        message = "common.seed must be the same on all nodes; got 1 on node 0 and 2 on node 1"
    else:
        file.write_text("another")
    if case == "other":
        (copied / "SHA256SUMS").unlink()
        write_checksums(copied)
        message = "data must be the same on all nodes; got "
    done = start([(SETTINGS, data), (settings, copied)], tmp_path)
    assert [(each.returncode, each.stdout) for each in done] == [(1, ""), (1, "")]
    assert all(f"fairseq-train: error: {message}" in each.stderr for each in done)

"""Runs that are killed while they save resume to the same files, with the same weights, as an uninterrupted run."""

import os
import signal

import pytest
import torch

from tests import forked
from tests.common import TINY_MODEL, TINY_TRAINING, mostly_slow
from tests.models.cases import same_training

# A --user-dir that kills the process before a checkpoint is written or removed. Numbers of both count from 1.
KILL = """
import os, signal
operations = []

def counted(operation):
    def count(*paths):
        if str(paths[-1]).endswith(".pt"):
            operations.append(paths)
            if len(operations) == int(os.environ["KILL_BEFORE"]):
                os.kill(os.getpid(), signal.SIGKILL)
        return operation(*paths)
    return count

os.replace, os.remove = counted(os.replace), counted(os.remove)
"""
# Per epoch of 5 updates: checkpoint_E_U, best, checkpointE, best, last; in the second one, checkpoint_1_5 is removed.
OPERATIONS = 11
FILES = {"checkpoint1.pt", "checkpoint2.pt", "checkpoint_2_10.pt", "checkpoint_best.pt", "checkpoint_last.pt"}


@pytest.fixture(scope="module")
def train(tiny_data, tmp_path_factory):
    """A function that trains two epochs, and returns the exit status and the checkpoints."""
    parent = tmp_path_factory.mktemp("saves")
    user_dir = forked.user_dir(parent / "kill", KILL)
    flags = [tiny_data, "--user-dir", user_dir, *TINY_MODEL, *TINY_TRAINING, "--max-epoch", 2]
    flags += ["--save-interval-updates", 5, "--keep-interval-updates", 1]

    def run(name, kill=0):
        (status,) = forked.train(parent / name, flags, env={"KILL_BEFORE": str(kill)})["statuses"]
        names = [file for file in os.listdir(parent / name) if file.endswith(".pt")]
        return status, {file: torch.load(parent / name / file, weights_only=False) for file in names}

    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    status, checkpoints = train("uninterrupted")
    assert (status, set(checkpoints)) == (0, FILES)
    assert not same_training(checkpoints["checkpoint1.pt"], checkpoints["checkpoint2.pt"]), "the control"
    return checkpoints


# 3 is the first operation after the update checkpoint and its copy
@pytest.mark.parametrize("number", mostly_slow(range(1, OPERATIONS + 2), 3))
def test_a_kill_before_any_write_loses_no_file(train, uninterrupted, number):
    status, _ = train(f"kill{number}", kill=number)
    assert status == (-signal.SIGKILL if number <= OPERATIONS else 0)
    status, checkpoints = train(f"kill{number}")
    assert status == 0
    assert set(checkpoints) == FILES
    for name, expected in uninterrupted.items():
        assert same_training(checkpoints[name], expected), name
        assert checkpoints[name]["extra_state"]["val_loss"] == expected["extra_state"]["val_loss"]

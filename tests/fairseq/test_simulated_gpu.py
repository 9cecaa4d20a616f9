"""GPU synchronizations of training and search, counted on a simulated GPU (simulated_gpu.py) at base size."""

import json

import pytest

from tests.common import ROOT, run


def synchronizations(*command):
    """Synchronizations of one update or decoding step: those in our code, and all."""
    done = run("python", "-W", "ignore", "-m", "tests.fairseq.simulated_gpu", *command, cwd=ROOT)
    counts = json.loads(done.stdout)
    assert counts["mixed"] == {}
    ours = [n for where, n in counts["waits"].items() if not where.split(": ")[1].startswith("fairseq.")]
    return sum(ours), sum(counts["waits"].values())


@pytest.mark.parametrize("precision", ["bf16", "fp16", "amp"])
def test_update_synchronizes_at_most_eight_times(precision):
    ours, all_of_them = synchronizations("training", f"--{precision}")
    assert ours <= 8
    assert all_of_them > ours  # control: fairseq reads the gradient norm


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_decoding_step_synchronizes_at_most_twice(precision):
    ours, all_of_them = synchronizations("search", f"--{precision}")
    assert 0 < ours <= 2
    assert all_of_them > ours

"""What a GPU would make the host wait for, counted on a simulated one (simulated_gpu.py), at base size."""

import json

import pytest

from tests.common import ROOT, run


def counted(*command):
    """Waits by the line that asks, ours and all, and operations on the GPU, of one update or decoding step."""
    found = json.loads(run("python", "-W", "ignore", "-m", "tests.fairseq.simulated_gpu", *command, cwd=ROOT).stdout)
    assert found["mixed"] == {}
    ours = {where: n for where, n in found["waits"].items() if not where.split(": ")[1].startswith("fairseq.")}
    return ours, found["waits"], found["launches"]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "amp"])
def test_an_update_waits_a_few_times_whatever_the_number_of_parameters(precision):
    ours, waits, _ = counted("training", f"--{precision}")
    assert sum(ours.values()) <= 8
    assert sum(waits.values()) > sum(ours.values())  # the control: fairseq looks at the norm of the gradients


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_decoding_step_waits_at_most_twice(precision):
    ours, waits, _ = counted("search", f"--{precision}")
    assert 0 < sum(ours.values()) <= 2
    assert sum(waits.values()) > sum(ours.values())

"""GPU synchronizations of training and search, counted on a simulated GPU (simulated_gpu.py) at base size."""

import json

import pytest

from tests.common import ROOT, run

SEARCHES = ("--bf16 --attention-content-bias", "--fp16", "--fp16 --collaborative-heads none")


@pytest.mark.parametrize(
    ("program", "flags", "limit"),
    [
        *(("training", flags, 1) for flags in ("--bf16", "--fp16", "--amp")),
        *(("search", flags, 2) for flags in SEARCHES),
    ],
)
def test_updates_and_decoding_steps_rarely_synchronize(program, flags, limit):
    """In our code; fairseq also reads the gradient norm, and finished hypotheses."""
    command = ["-W", "ignore", "-m", "tests.fairseq.simulated_gpu", program, *flags.split()]
    counts = json.loads(run("python", *command, cwd=ROOT).stdout)
    assert counts["mixed"] == {}
    ours = [number for place, number in counts["waits"].items() if not place.split(": ")[1].startswith("fairseq.")]
    assert 0 < sum(ours) <= limit
    assert sum(counts["waits"].values()) > sum(ours)  # control

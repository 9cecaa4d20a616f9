"""Half an hour of one GPU, rehearsed on the CPU: what does not fit into the time comes next time."""

import sys

import pytest

from tests.common import ROOT, run
from tests.recipes.test_multi30k import prepare, write_corpus

pytestmark = pytest.mark.slow

RUN = ROOT / "recipes" / "gpu" / "run.sh"


def rehearse(folder, minutes):
    return run(
        "bash", RUN, "--device", "cpu", "--minutes", minutes, "--quick", "--jobs", "1", "--seeds", "1",
        "--data", folder / "data" / "mini", "--output", folder / "gpu", "--python", sys.executable,
    )  # fmt: skip


def test_finished_steps_are_skipped_and_the_page_tells_the_rest(tmp_path):
    prepare(write_corpus(tmp_path))
    begun = rehearse(tmp_path, 0)  # no time for anything
    steps = [line[2:].split(":")[0] for line in begun.stdout.splitlines() if line.startswith("- ")]
    assert steps[0] == "tests"
    assert steps[-1] == "table"
    assert begun.stdout.count("not begun") == len(steps)
    (tmp_path / "gpu" / ".done").mkdir()
    for step in set(steps) - {"precision-fp32"}:
        (tmp_path / "gpu" / ".done" / step).touch()
    assert "precision-fp32: finished" in rehearse(tmp_path, 30).stderr
    assert list((tmp_path / "gpu" / "records").glob("precision-fp32.json"))
    again = rehearse(tmp_path, 30)
    assert "at most" not in again.stderr
    assert "- precision-fp32: finished" in again.stdout


def test_what_is_no_wheelhouse_is_refused(tmp_path):
    done = run("bash", RUN, "--wheels", tmp_path, "--output", tmp_path / "gpu", check=False)
    assert done.returncode == 1
    assert f"{tmp_path} is no folder of make wheelhouse" in done.stderr

"""Half an hour of one GPU, rehearsed on the CPU in less: what does not fit into the time comes next time."""

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


def test_what_is_cut_off_goes_on(tmp_path):
    prepare(write_corpus(tmp_path))
    page = rehearse(tmp_path, 1).stdout
    assert "- tests: finished" in page
    assert "- table: not begun" in page
    again = rehearse(tmp_path, 1)
    assert "tests: at most" not in again.stderr  # done before
    assert len((tmp_path / "gpu" / "page.md").read_text()) > len(page) / 2
    assert again.stdout.count("finished") > page.count("finished")


def test_what_is_no_wheelhouse_is_refused(tmp_path):
    done = run("bash", RUN, "--wheels", tmp_path, "--output", tmp_path / "gpu", check=False)
    assert done.returncode == 1
    assert f"{tmp_path} is no folder of make wheelhouse" in done.stderr

"""Tiers, the server of warm.py, CPU time of tests, and `pytest --record FILE`: what was run, on what, its results."""

import os

# before torch is imported: tests that run side by side would wait for each other's threads
os.environ["OMP_NUM_THREADS"] = "1"

import shlex
import sys

import pytest
import torch

from collab_fairseq.records import environment
from collab_fairseq.records.files import write_json
from collab_fairseq.records.record import without_paths
from tests import warm
from tests.common import ROOT

SPENT = pytest.StashKey()

# the recipes' default, which `make test PYTHON=...` sets to what the virtual environment was made with
os.environ["PYTHON"] = sys.executable


def pytest_configure(config):
    """The processes of a parallel run share one server."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        warm.start()


def pytest_collection_modifyitems(items):
    """The tier of a test is that of its folder, unless it is marked slow; tests for a GPU are skipped without one."""
    without_gpu = not torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("slow") is None:
            item.add_marker("unit" if "unit" in item.path.relative_to(ROOT).parts else "integration")
        if without_gpu and item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_addoption(parser):
    parser.addoption("--slowest", type=int, default=10, metavar="N", help="list the N tests with most CPU time")
    parser.addoption("--record", metavar="FILE", help="write what was run, on what, and its results to a JSON file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note the CPU time of each test and fixture; on busy machines a clock shows something else."""
    report = yield
    now = warm.seconds()
    report.user_properties.append(("seconds", now - item.config.stash.get(SPENT, now)))
    item.config.stash[SPENT] = now
    return report


def print_slowest(terminalreporter):
    spent = [
        (seconds, f"{report.when:9}{report.nodeid}")
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, seconds in getattr(report, "user_properties", ())[-1:]
    ]
    terminalreporter.section(f"CPU time of all tests: {sum(seconds for seconds, _ in spent) / 60:.1f} minutes")
    for seconds, name in sorted(spent, reverse=True)[: terminalreporter.config.getoption("slowest")]:
        terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """With --numprocesses this is called in the process that started the others, which knows all results."""
    print_slowest(terminalreporter)
    file = config.getoption("--record")
    if not file or hasattr(config, "workerinput"):
        return
    found = {kind: terminalreporter.stats.get(kind, []) for kind in ("passed", "failed", "error", "skipped", "xfailed")}
    record = {
        "command": without_paths(f"pytest {shlex.join(sys.argv[1:])}"),
        "status": int(exitstatus),
        **{kind: len(reports) for kind, reports in found.items()},
        "failures": sorted(report.nodeid for kind in ("failed", "error") for report in found[kind]),
        "reasons_to_skip": sorted({str(report.longrepr[2]) for report in found["skipped"]}),
        **environment.circumstances(str(ROOT), device="gpu" if torch.cuda.is_available() else "cpu"),
    }
    write_json(record, file)

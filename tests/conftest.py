"""GPU tests, CPU time per test, and `pytest --record FILE`, which saves results and provenance."""

import os

# before torch is imported: threads of tests that run in parallel would wait for each other
os.environ["OMP_NUM_THREADS"] = "1"

import shlex
import sys

import pytest
import torch

from collab_fairseq.files import write_json
from collab_fairseq.records import environment
from collab_fairseq.records.record import without_paths
from tests import warm
from tests.common import ROOT

CPU_SECONDS = pytest.StashKey()
pytest_plugins = ["tests.fixtures"]

# the recipes' default, which `make test PYTHON=...` sets to the interpreter of the virtual environment
os.environ["PYTHON"] = sys.executable


def pytest_configure(config):
    """The processes of a parallel run share one server (tests/warm.py)."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        warm.start()


def pytest_collection_modifyitems(items):
    """Skip GPU tests without a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_addoption(parser):
    parser.addoption("--record", metavar="FILE", help="write results and provenance of the tests to a JSON file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note the CPU time of each test and fixture, which depends less on other load than wall time."""
    report = yield
    now = warm.seconds()
    report.user_properties.append(("seconds", now - item.config.stash.get(CPU_SECONDS, now)))
    item.config.stash[CPU_SECONDS] = now
    return report


def print_slowest(terminalreporter, number=10):
    times = [
        (seconds, f"{report.when:9}{report.nodeid}")
        for reports in terminalreporter.stats.values()
        for report in reports
        for _, seconds in getattr(report, "user_properties", ())[-1:]
    ]
    terminalreporter.section(f"CPU time of all tests: {sum(seconds for seconds, _ in times) / 60:.1f} minutes")
    for seconds, name in sorted(times, reverse=True)[:number]:
        terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """With --numprocesses, pytest calls this in the main process, which has all results."""
    print_slowest(terminalreporter)
    file = config.getoption("--record")
    if not file or hasattr(config, "workerinput"):
        return
    outcomes = ("passed", "failed", "error", "skipped", "xfailed")
    reports = {outcome: terminalreporter.stats.get(outcome, []) for outcome in outcomes}
    record = {
        "command": without_paths(f"pytest {shlex.join(sys.argv[1:])}"),
        "status": int(exitstatus),
        **{outcome: len(reports[outcome]) for outcome in outcomes},
        "failures": sorted(report.nodeid for report in [*reports["failed"], *reports["error"]]),
        "reasons_to_skip": sorted({str(report.longrepr[2]) for report in reports["skipped"]}),
        **environment.provenance(str(ROOT), device="gpu" if torch.cuda.is_available() else "cpu"),
    }
    write_json(record, file)

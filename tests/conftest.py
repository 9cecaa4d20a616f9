"""`pytest --record FILE`: what was run of the tests, on what, and how it ended, as a record for results/tests."""

import os
import shlex
import sys

from collab_fairseq.records import environment
from collab_fairseq.records.files import write_json
from collab_fairseq.records.record import without_paths
from tests.common import ROOT

# the recipes' default, which `make test PYTHON=...` sets to what the virtual environment was made with
os.environ["PYTHON"] = sys.executable


def pytest_addoption(parser):
    parser.addoption("--record", metavar="FILE", help="write what was run, on what and how it ended to a JSON file")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """With --numprocesses this is called in the process that started the others, which knows all results."""
    file = config.getoption("--record")
    if not file or hasattr(config, "workerinput"):
        return
    import torch

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

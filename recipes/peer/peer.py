"""Runs fairseq's own tests in copies and compares what fails with what is expected (see README.md)."""

import argparse
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple
from xml.etree import ElementTree

import collab_fairseq
from collab_fairseq.records.files import write_text
from collab_fairseq.records.pages import table

EXPECTED = Path(__file__).with_name("expected.tsv")
NOT_RUN = "not run"
#: folders that fairseq's tests import from
FOLDERS = ("tests", "scripts", "examples")
#: of one file, against hanging; test_binaries.py takes many minutes
SECONDS = 7200
REGISTER = """from argparse import Namespace

from fairseq import utils

utils.import_user_module(Namespace(user_dir={user_dir!r}))
"""


class Expected(NamedTuple):
    """Tests of a file that may fail (names, `*` for all, or `not run`), and why."""

    tests: List[str]
    reason: str


def read_expected(path: Path) -> Dict[str, Expected]:
    """File → what may fail in it, from lines `file<TAB>test, test<TAB>reason`; # begins a remark."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    return {file: Expected([name.strip() for name in tests.split(",")], reason) for file, tests, reason in rows}


def copy_tests(source: Path, target: Path) -> None:
    """The folders that the tests need; the empty settings keep pytest from those of a folder above."""
    for folder in FOLDERS:
        shutil.copytree(source / folder, target / folder)
    for path in [target, *target.rglob("*")]:  # the source may be read-only
        path.chmod(path.stat().st_mode | 0o200)
    (target / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")


def substitute(folder: Path) -> List[str]:
    """Put transformer_collab in place of transformer, as with --user-dir; returns the files that this changes."""
    changed = []
    for path in sorted((folder / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        other = re.sub(r'"transformer(_iwslt_de_en)?"', r'"transformer_collab\1"', text)
        if other != text:
            path.write_text(other, encoding="utf-8")
            changed.append(str(path.relative_to(folder)))
    user_dir = os.path.dirname(collab_fairseq.__file__)
    (folder / "conftest.py").write_text(REGISTER.format(user_dir=user_dir), encoding="utf-8")
    return changed


def outcomes(junit: Path, status: int) -> Dict[str, str]:
    """Test → passed, failed or skipped, from pytest's XML; a process that left none counts as one failed test."""
    if not junit.exists():
        return {f"(the process ended with status {status})": "failed"}
    found: Dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        name = f"{case.get('classname')}.{case.get('name')}"
        if found.get(name) != "failed":
            found[name] = outcome
    return found or {"(no tests)": "failed"}


def run_file(folder: Path, file: str, output: Path, scratch: Path) -> Dict[str, str]:
    """Run one file of tests, with its own process and temporary folder."""
    stem = output / file.replace("/", "-").removesuffix(".py")
    junit = stem.with_suffix(".xml")
    # some tests write to the home folder and leave temporary files
    environment = {**os.environ, "HOME": str(scratch), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", file]
    with open(stem.with_suffix(".log"), "wb") as log:
        try:
            status = subprocess.run(
                command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    return outcomes(junit, status)


def row(file: str, found: Dict[str, str], expected: Expected) -> "tuple[List[str], bool]":
    """The line of the table, and whether the file is as expected."""
    # a name is that of all its parameters
    failed = dict.fromkeys(
        name.partition("[")[0].rpartition(".")[2] for name, outcome in found.items() if outcome == "failed"
    )
    surprises = [name for name in failed if "*" not in expected.tests and name not in expected.tests]
    counts = [str(list(found.values()).count(kind)) for kind in ("passed", "failed", "skipped")]
    may = ", ".join(expected.tests) + " may fail" if expected.tests else "all pass"
    told = f"unexpected: {', '.join(surprises)}" if surprises else "as expected"
    return [file, *counts, may, expected.reason, told], not surprises


def main() -> int:
    """Copy, run, compare; the status is 1 where a test fails that is not expected to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--files", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies go away
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, one test sends it
    (args.output / "table.md").unlink(missing_ok=True)
    expected = read_expected(EXPECTED)
    sections, good = [], True
    with tempfile.TemporaryDirectory(prefix="collab-peer-") as temporary:
        for kind, title in (("hook", "with the hook"), ("collab", "transformer_collab in place of transformer")):
            folder, scratch = Path(temporary, kind), Path(temporary, f"{kind}-scratch")
            output = args.output / kind
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
            scratch.mkdir()
            copy_tests(args.tests, folder)
            files = sorted(str(path.relative_to(folder)) for path in (folder / "tests").rglob("test_*.py"))
            if kind == "collab":
                files = [file for file in substitute(folder) if file in files]
            rows = [["file", "passed", "failed", "skipped", "expected", "reason", "result"]]
            for file in files:
                known = expected.get(file, Expected([], ""))
                if not fnmatch.fnmatch(file, args.files):
                    continue
                if known.tests == [NOT_RUN]:
                    rows.append([file, "", "", "", NOT_RUN, known.reason, "as expected"])
                    continue
                line, as_expected = row(file, run_file(folder, file, output, scratch), known)
                good = good and as_expected
                rows.append(line)
                sys.stderr.write(f"peer: {kind}: {' '.join(line[:4])} {line[-1]}\n")
            sections.append(f"fairseq's tests, {title}:\n\n{table(rows)}\n")
    text = "\n".join(sections)
    write_text(text, args.output / "table.md")
    sys.stdout.write(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

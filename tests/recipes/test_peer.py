"""The runner of fairseq's own tests, on a few made-up ones."""

import importlib.util
import re
import shutil
import sys

import pytest

from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "peer" / "run.sh"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the recipes are bash scripts")

_spec = importlib.util.spec_from_file_location("peer", RECIPE.with_name("peer.py"))
peer = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(peer)

BINARIES = """
import unittest
class Test(unittest.TestCase):
    def test_names(self):
        self.assertEqual("transformer_" + "collab", "transformer")
        from fairseq.models import ARCH_MODEL_REGISTRY
        self.assertIn("transformer_iwslt_de_en", ARCH_MODEL_REGISTRY)
    @unittest.skip("")
    def test_skipped(self):
        pass
"""


@pytest.fixture
def tests(tmp_path):
    folder = tmp_path / "fairseq"
    for name in ("tests", "scripts", "examples"):
        (folder / name).mkdir(parents=True)
    (folder / "tests" / "test_binaries.py").write_text(BINARIES, encoding="utf-8")
    (folder / "tests" / "test_hf_hub.py").write_text("raise SystemExit", encoding="utf-8")
    return folder


def test_a_folder_of_fairseqs_tests_is_needed(tmp_path):
    for flags, message in (([], "--fairseq-tests is needed"), (["--fairseq-tests", tmp_path], "test_binaries.py")):
        done = run("bash", RECIPE, *flags, check=False)
        assert done.returncode == 1
        assert message in done.stderr


def test_both_runs_are_compared_with_what_is_expected(tests, tmp_path):
    """The made-up test passes only where transformer_collab is registered and in place of transformer."""
    before = sorted((path, path.stat().st_mtime_ns) for path in tests.rglob("*"))
    output = tmp_path / "output"
    flags = ["--fairseq-tests", tests, "--output", output, "--python", sys.executable]
    done = run("bash", RECIPE, *flags, check=False, env={"TMPDIR": str(tmp_path)}, timeout=900)
    assert done.returncode == 1
    plain, collab = done.stdout.split("transformer_collab in place of transformer:")
    assert re.search(r"^\| tests/test_binaries.py \| 0 \| 1 \| 1 \|.* unexpected: test_names \|$", plain, re.MULTILINE)
    assert "| tests/test_hf_hub.py |  |  |  | not run | downloads trained models | as expected |" in plain
    assert re.search(r"^\| tests/test_binaries.py \| 1 \| 0 \| 1 \|.*\| as expected \|$", collab, re.MULTILINE)
    assert (output / "table.md").read_text(encoding="utf-8") == done.stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in tests.rglob("*")) == before
    assert not list(tmp_path.glob("collab-peer-*"))


def test_what_may_fail_is_as_expected_and_a_file_without_results_is_not(tmp_path):
    found = {f"tests.test_x.Test.test_{name}": outcome for name, outcome in (("a[0.5]", "failed"), ("b", "passed"))}
    for names, good in ((["test_a"], True), (["*"], True), (["test_b"], False), ([], False)):
        assert peer.row("tests/test_x.py", found, peer.Expected(names, ""))[1] is good
    crashed = peer.outcomes(tmp_path / "absent.xml", -11)
    assert not peer.row("tests/test_x.py", crashed, peer.Expected([], ""))[1]
    (tmp_path / "empty.xml").write_text("<testsuites><testsuite/></testsuites>", encoding="utf-8")
    assert not peer.row("tests/test_x.py", peer.outcomes(tmp_path / "empty.xml", 5), peer.Expected([], ""))[1]


def test_every_expectation_has_a_reason():
    expected = peer.read_expected(peer.EXPECTED)
    assert expected
    for file, (names, reason) in expected.items():
        assert file.startswith("tests/")
        assert all(names)
        assert reason

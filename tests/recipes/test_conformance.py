"""The runner of fairseq's own tests, on a few made-up ones."""

import sys

from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "conformance" / "run.sh"
BINARIES = """
import unittest
class Test(unittest.TestCase):
    def test_names(self):
        self.assertEqual("transformer_" + "collab", "transformer")
        from fairseq.models import ARCH_MODEL_REGISTRY
        self.assertIn("transformer_iwslt_de_en", ARCH_MODEL_REGISTRY)
    def test_insertion_transformer(self):
        self.fail("expected.tsv names it")
"""


def test_both_runs_are_compared_with_what_is_expected(tmp_path):
    """The made-up test passes only where transformer_collab is registered and in place of transformer."""
    for name in ("tests", "scripts", "examples"):
        (tmp_path / "fairseq" / name).mkdir(parents=True)
    flags = ["--fairseq-tests", tmp_path / "fairseq", "--output", tmp_path / "output", "--python", sys.executable]
    assert "has no tests/test_binaries.py" in run("bash", RECIPE, *flags, check=False).stderr
    for name, text in (("binaries", BINARIES), ("hf_hub", "raise SystemExit"), ("other", BINARIES)):
        (tmp_path / "fairseq" / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")
    done = run("bash", RECIPE, *flags, "--files", "tests/test_[bh]*", check=False, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "a test failed that is not expected to" in done.stderr
    binaries, hub, collab = (tmp_path / "output" / "summary.txt").read_text().splitlines()
    assert binaries.startswith("hook tests/test_binaries.py: 1 failed, 1 xfailed")
    assert hub == "hook tests/test_hf_hub.py: not run"
    assert collab.startswith("collab tests/test_binaries.py: 1 passed, 1 xfailed")
    assert (tmp_path / "fairseq" / "tests" / "test_binaries.py").read_text(encoding="utf-8") == BINARIES
    assert {path.name for path in tmp_path.iterdir()} == {"fairseq", "output"}

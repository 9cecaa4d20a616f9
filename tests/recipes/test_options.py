"""Every script of recipes and data_prep has --help and rejects unknown options in one line."""

import shutil
import stat
import sys

import pytest

from tests.common import ROOT, run

SCRIPTS = sorted(
    path
    for folder in ("recipes", "data_prep")
    for path in (ROOT / folder).rglob("*.sh")
    if path.stat().st_mode & stat.S_IXUSR
)


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """A symbolic link to the checkout, as in home folders of clusters."""
    path = tmp_path_factory.mktemp("link") / "checkout"
    path.symlink_to(ROOT)
    return path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_script_has_help_and_rejects_unknown_options(script, link, tmp_path):
    name = script.relative_to(ROOT)
    help_text = run("bash", name, "--help", cwd=link, env={"CDPATH": "."}).stdout
    assert f"usage: {name}" in help_text
    assert "--output DIR " in help_text
    done = run("bash", link / name, "--sauce", "x", "--python", sys.executable, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"{name}: error: unknown argument '--sauce' (see --help)\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_pass_shellcheck():
    run("shellcheck", "--external-sources", *SCRIPTS, ROOT / "recipes" / "slurm" / "run.sbatch", cwd=ROOT)

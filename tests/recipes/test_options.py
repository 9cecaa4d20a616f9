"""How the scripts of recipes and data_prep read their options: by what their help says."""

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

SCRIPT = f"""
set -eu
root={ROOT}
. "$root/recipes/lib/options.sh"
usage() {{
    cat <<END
usage: script [options]

  --key-dim N       shared key dimension
  --node-rank R     its number from 0
  --runs "A:N ..."  runs
  --output DIR      where the run is; --quiet is no option
  --test SPLIT=FILE raw references
  --finetune-updates N
                    length
  --dry-run         print the command
END
}}
key_dim=1 node_rank=0 runs=none output='' test='' finetune_updates='' dry_run=''
read_options "$@"
echo "$key_dim|$node_rank|$runs|$output|$finetune_updates|$dry_run|${{split_files[*]-}}|${{rest[*]-}}|$given"
"""


def read(*options, check=True, cwd=None):
    return run("bash", "-c", SCRIPT, "script", *options, check=check, cwd=cwd)


def test_options_become_variables(tmp_path):
    assert read().stdout == "1|0|none|||||| \n"
    (tmp_path / "a.de").write_text("")
    flags = ["--key-dim", 16, "--dry-run", "--runs", "none:64 cross:32", "--node-rank", 0, "--output", "--odd"]
    files = ["--test", "test=a.de", "--test", f"test1={tmp_path}/a.de", "--finetune-updates", 7]
    done = read(*flags, *files, "--", "--lr", "3 4", cwd=tmp_path)
    given = "key_dim dry_run runs node_rank output test test finetune_updates"
    split_files = f"--test test={tmp_path}/a.de --test test1={tmp_path}/a.de"
    assert done.stdout == f"16|0|none:64 cross:32|--odd|7|yes|{split_files}|--lr 3 4| {given} \n"
    assert read("--key-dim", 2, "--help", "--what").stdout.startswith("usage: script [options]\n\n  --key-dim N ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--key-dim", "wide"], "--key-dim must be a whole number, got 'wide'"),
        (["--key-dim", "0"], "--key-dim must be at least 1, got 0"),
        (["--node-rank", "-1"], "--node-rank must be a whole number, got '-1'"),
        (["--output"], "--output needs a value"),
        (["--test", "nothing"], "--test must be SPLIT=FILE, got 'nothing'"),
        (["--test", "test=nowhere"], "--test must be SPLIT=FILE, got 'test=nowhere'"),
        *(([word, "x"], f"unknown argument '{word}'") for word in ("--sauce", "--quiet", "--key", "--.*", "where")),
    ],
)
def test_what_is_wrong_is_named(flags, message):
    done = read("--dry-run", *flags, check=False)
    assert done.returncode == 1
    assert f"error: {message}" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_script_has_help_and_refuses_unknown_options(script, tmp_path):
    help_text = run("bash", script, "--help", cwd=tmp_path).stdout
    assert f"usage: {script.relative_to(ROOT)}" in help_text
    assert "--output DIR " in help_text
    done = run("bash", script, "--sauce", "x", "--python", sys.executable, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"{script.relative_to(ROOT)}: error: unknown argument '--sauce' (see --help)\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_content():
    run("shellcheck", "--external-sources", *SCRIPTS, ROOT / "recipes" / "slurm" / "run.sbatch", cwd=ROOT)

#!/usr/bin/env bash
# Everything that a machine without internet needs, in a folder of wheels. Called by `make wheelhouse`:
#
#     usage: recipes/lib/wheelhouse.sh PYTHON [torch] [plots] [test]      PYTHON: a version (3.12), a program or a path
#
# fairseq 0.12.2 is compiled for that Python; its dependencies, this project and theirs are collected at the versions of
# constraints.txt, and all are tried in a fresh environment. torch is left out unless asked for: most machines with GPUs
# have one that fits them. The folder ($WHEELHOUSE, else wheelhouse) has SHA256SUMS and INSTALL.txt with the line that
# installs; it appears whole or not at all. Needs a package index for pip, a C++ compiler, the headers of that Python.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;; esac
wanted=${1:?name a Python: a version (3.12), a program or a path}
shift
output=${WHEELHOUSE:-$root/wheelhouse}

die() {
    echo "wheelhouse: error: $*" >&2
    exit 1
}

find_python() { # a version is looked for on PATH, then among pyenv's; one of pyenv's on PATH may not be switched on
    local program candidates=("$wanted") pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
    case $wanted in 3.*) candidates=("python$wanted" "$pyenv/$wanted"{,.*}/bin/python3) ;; esac
    for program in "${candidates[@]}"; do
        if "$program" -c '' 2>/dev/null; then command -v "$program" && return; fi
    done
    die "found no Python for PYTHON=$wanted; expected a version such as 3.12 on PATH or in pyenv, a program or a path"
}
python=$(find_python)
[ ! -e "$output" ] || [ -f "$output/INSTALL.txt" ] || die "$output is there and is no wheelhouse (it has no INSTALL.txt)"

# these would let the environments here see packages of others
unset PYTHONPATH PYTHONHOME PIP_NO_BUILD_ISOLATION PIP_TARGET PIP_PREFIX PIP_USER
work=$(mktemp -d "$(dirname "$output")/.wheelhouse.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/wheels" "$work/source"
(cd "$root" && cp -r setup.py pyproject.toml README.md LICENSE collab_fairseq fairseq_modern "$work/source")

"$python" -m venv "$work/venv"
venv=$work/venv/bin/python
collect() {
    "$venv" -m pip wheel --quiet --disable-pip-version-check --wheel-dir "$work/wheels" --constraint "$root/constraints.txt" "$@"
}
echo "wheelhouse: building for $python" >&2
collect --no-deps "$work/source"
collect --no-deps --no-cache-dir fairseq # isolated, and not from pip's cache: it must not see torch while it is built
"$venv" -m pip install --quiet --no-index --no-deps "$work"/wheels/collab_fairseq-*.whl
"$venv" -c '
import sys
from importlib.metadata import requires

for requirement in requires("collab_fairseq"):
    name, _, marker = requirement.partition(";")
    extra = marker.partition("extra == ")[2].strip("\"")
    if extra in ("", *sys.argv[1:]) and (not name.startswith("torch>") or "torch" in sys.argv):
        print(name)' "$@" >"$work/requirements.txt"
echo "wheelhouse: collecting $(tr '\n' ' ' <"$work/requirements.txt")" >&2
collect --requirement "$work/requirements.txt"
echo "wheelhouse: trying all in a fresh environment" >&2
"$venv" -m pip install --quiet --no-index --no-deps --force-reinstall "$work"/wheels/*.whl
"$venv" -c 'import fairseq_modern, collab_fairseq.cli.main, hydra, omegaconf, numpy, sacrebleu, sacremoses, sentencepiece'

version=$("$venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# a plain virtual environment would not see the torch that the machine has
case " $* " in *" torch "*) flag='' ;; *) flag=' --system-site-packages' ;; esac
install="pip install --no-index --no-deps $(basename "$output")/*.whl"
cat >"$work/wheels/INSTALL.txt" <<END
collab_fairseq, fairseq and what they need for Python $version on $(uname -sm)${flag:+, but torch 2.6 or newer, which must be there}:

    python$version -m venv$flag v && v/bin/$install

In an environment that is there already: $install
--no-deps is needed: fairseq's metadata asks for versions that cannot be installed any more, which is all that \`pip check\` will say.
END
(cd "$work/wheels" && sha256sum ./*.whl >SHA256SUMS)
[ ! -e "$output" ] || mv "$output" "$work/old"
mv "$work/wheels" "$output"
cat "$output/INSTALL.txt"

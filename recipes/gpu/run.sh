#!/usr/bin/env bash
# Half an hour of one GPU, in three calls: truth, speed, learning. See --help.
set -euo pipefail
unset CDPATH

if [ "${1:-}" = --wheels ]; then
    wheels=$(cd "${2:-/nowhere}" 2>/dev/null && pwd || true) && venv=$wheels/venv machine=${PYTHON:-python}
    if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
        echo "recipes/gpu/run.sh: error: --wheels: there are no wheels in '${2:-}'" >&2
        exit 1
    fi
    if [ ! -e "$venv/installed" ]; then # with the machine's own packages besides
        "$machine" -m venv --clear --without-pip "$venv"
        "$machine" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
            >"$(echo "$venv"/lib/python3*/site-packages)/machine.pth"
        "$machine" -m pip --python "$venv/bin/python" install --quiet --no-index --no-deps "$wheels"/*.whl
        touch "$venv/installed"
    fi
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    export PYTHON=$venv/bin/python PYTHONPATH=$root # this checkout, whatever the wheels were made from
    shift 2
fi
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"

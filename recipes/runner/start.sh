# shellcheck shell=bash
# Sourced by the scripts of every recipe: find Python and pass the arguments to recipes/run.py.
set -euo pipefail
unset CDPATH # with it, cd prints the folder

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
python=${PYTHON:-python}
for ((word = 1; word <= $#; word++)); do
    case ${!word} in
        --python) next=$((word + 1)) && python=${!next-} ;;
        --python=*) python=${!word#*=} ;;
    esac
done
command -v "$python" >/dev/null || {
    echo "${script#"$root/"}: error: no Python '$python'; name one with --python" >&2
    exit 2
}
# a relative path must also be valid in other folders
case $python in /*) ;; */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
PYTHON=$python exec "$python" "$root/recipes/run.py" "$script" "$@"

#!/usr/bin/env bash
# Half an hour of one GPU, in three calls: truth, speed, learning. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"

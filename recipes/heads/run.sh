#!/usr/bin/env bash
# All head analyses of one trained translation model (`collab heads`). See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes heads "$@"

#!/usr/bin/env bash
# Lookup: a synthetic task for heads with shared and with disjoint attributes. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes lookup "$@"

#!/usr/bin/env bash
# WMT14 English-German, from data to record. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes wmt14_en_de "$@"

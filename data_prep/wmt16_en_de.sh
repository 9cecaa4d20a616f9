#!/usr/bin/env bash
# WMT14 English-German as preprocessed by Google (the data of the paper) for fairseq. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m data_prep wmt16_en_de "$@"

#!/usr/bin/env bash
# Micro-WMT English-German for fairseq, with SentencePiece. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m data_prep micro_wmt "$@"

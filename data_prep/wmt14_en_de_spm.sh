#!/usr/bin/env bash
# WMT14 English-German from the raw corpora for fairseq, with SentencePiece; for sacreBLEU only. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m data_prep wmt14_en_de_spm "$@"

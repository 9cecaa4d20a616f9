#!/usr/bin/env bash
# WMT14 English-German from the raw corpora for fairseq, with SentencePiece; for sacreBLEU only. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep wmt14_en_de_spm "$@"

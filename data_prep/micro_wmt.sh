#!/usr/bin/env bash
# Micro-WMT English-German for fairseq, with SentencePiece. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep micro_wmt "$@"

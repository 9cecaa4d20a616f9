#!/usr/bin/env bash
# Multi30k English-German for fairseq, with SentencePiece. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep multi30k "$@"

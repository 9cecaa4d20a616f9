#!/usr/bin/env bash
# Your own corpus for fairseq, with SentencePiece. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep own "$@"

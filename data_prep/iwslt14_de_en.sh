#!/usr/bin/env bash
# IWSLT14 German-English (TED talks) for fairseq, with SentencePiece. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep iwslt14_de_en "$@"

#!/usr/bin/env bash
# WMT14 English-German with SentencePiece, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes wmt14_en_de_spm "$@"

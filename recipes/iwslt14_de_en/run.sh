#!/usr/bin/env bash
# IWSLT14 German-English with SentencePiece, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes iwslt14_de_en "$@"

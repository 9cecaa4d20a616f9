#!/usr/bin/env bash
# IWSLT14 German-English with SentencePiece, from data to record. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes iwslt14_de_en "$@"

#!/usr/bin/env bash
# Synthetic English-German sentences (data_prep/toy_grammar.py) for fairseq, with SentencePiece. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m data_prep toy "$@"

#!/usr/bin/env bash
# Synthetic English-German sentences (data_prep/toy_grammar.py) for fairseq, with SentencePiece. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep toy "$@"

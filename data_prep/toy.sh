#!/usr/bin/env bash
# Synthetic English-German sentences (data_prep/toy_grammar.py) for fairseq, with SentencePiece. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

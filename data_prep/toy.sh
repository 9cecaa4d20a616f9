#!/usr/bin/env bash
# The corpus of the demo: sentences of data_prep/toy_grammar.py -> joint SentencePiece BPE -> fairseq data-bin. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

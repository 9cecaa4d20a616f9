#!/usr/bin/env bash
# The corpus of the demo: sentences of data_prep/toy.py -> joint SentencePiece BPE -> fairseq data-bin. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"

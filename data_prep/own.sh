#!/usr/bin/env bash
# Two raw text files of your own, or a folder of them -> joint SentencePiece BPE -> fairseq data-bin. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"

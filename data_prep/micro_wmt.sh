#!/usr/bin/env bash
# Micro-WMT English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"

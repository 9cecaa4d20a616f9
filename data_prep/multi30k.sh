#!/usr/bin/env bash
# Multi30K English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

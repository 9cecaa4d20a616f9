#!/usr/bin/env bash
# Multi30K English-German for fairseq, with SentencePiece. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

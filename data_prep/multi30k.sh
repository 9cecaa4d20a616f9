#!/usr/bin/env bash
# Multi30k English-German for fairseq, with SentencePiece. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

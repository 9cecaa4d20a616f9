#!/usr/bin/env bash
# WMT14 English-German from the raw corpora for fairseq, with SentencePiece; for sacreBLEU only. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

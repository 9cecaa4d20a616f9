#!/usr/bin/env bash
# WMT14 English-German from the raw corpora with SentencePiece: untokenised, for sacreBLEU alone. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"

#!/usr/bin/env bash
# WMT14 English-German from the raw corpora with SentencePiece: untokenised, for sacreBLEU alone. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"

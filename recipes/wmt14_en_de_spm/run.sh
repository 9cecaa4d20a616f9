#!/usr/bin/env bash
# WMT14 English-German with SentencePiece. One run from data to record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"

#!/usr/bin/env bash
# WMT14 English-German, untokenised, with SentencePiece. Standard and collaborative heads at several key dimensions, and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
